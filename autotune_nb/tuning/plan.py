"""How a tuner spreads its work over this machine's cores: a pure function of run and machine."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Collection

from autotune_nb.run.buffers import network_bytes
from autotune_nb.run.manifest import Manifest
from autotune_nb.run.records import TaskInfo
from autotune_nb.tuning.messages import SearchOptions

# A search costs CPU in proportion to population times generations, all of it time in which nothing
# is built; benchmarks/search_quality.py shows what a larger one brings.
_POPULATION = 64
_GENERATIONS = 2
# On a GPU nine in ten random schedules break its limits, so sampling half a population costs more
# than all mutations; what is needed is some new blood beside the best that were measured.
_FRESH_SHARE_CPU, _FRESH_SHARE_GPU = 0.5, 0.2
_GIB = 2**30
_LEAST_MEMORY_BYTES = 2 * _GIB  # a builder needs half a GiB, a candidate that needs more is no good


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Modules:
    """Where the functions that workers run are found; a test of the tuner has others, without TVM.

    Attributes
    ----------
    search
        Module with ``open_run``, ``propose`` and ``learn``.
    candidates
        Module with ``build`` and ``measure``.
    remote
        Module with ``acquire`` and ``measure``, for servers.
    preload
        Module that is imported once for all workers that are forked.
    """

    search: str = "autotune_nb.tuning.search"
    candidates: str = "autotune_nb.tuning.jobs"
    remote: str = "autotune_nb.tuning.rpc_jobs"
    preload: str = "autotune_nb.tuning.preload"


TVM_MODULES = Modules()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Workers of a tuner.

    Attributes
    ----------
    exclusive
        True where candidates run on the cores that search and build, so that measuring needs them
        for itself.
    searchers, builders
        Processes of each kind; with `exclusive`, builders also measure.
    lookahead
        Candidates that may wait to be built before another round is started.
    owners
        The searcher of each task; tasks with the same searcher share its cost model.
    search
        Settings of the evolutionary search.
    recycle_bytes
        A builder that has grown beyond this is replaced when it holds nothing.
    memory_bytes
        A builder that takes more than this is killed in the middle of its job; None for no limit.
    network_bytes
        What one execution of the network touches.
    modules
        Where the workers' jobs are found.
    """

    exclusive: bool
    searchers: int
    builders: int
    lookahead: int
    owners: dict[int, int]
    search: SearchOptions
    recycle_bytes: int = _GIB
    memory_bytes: int | None = None
    network_bytes: int = 0
    modules: Modules = TVM_MODULES


def make_plan(manifest: Manifest, cores: int, memory_bytes: int | None = None) -> Plan:
    """Return the plan for a run on a machine with this many cores and bytes for the tuner."""
    options = manifest.options
    on_cpu = manifest.device.startswith("cpu")
    exclusive = on_cpu and not manifest.measure
    # on a GPU a candidate costs about as much to find as to build
    searchers = min(4, cores) if exclusive else cores * 2 // 5
    searchers = max(1, min(searchers, len(manifest.tasks)))
    lookahead = searchers * options.batch_size
    if exclusive:
        builders = options.workers or cores
    else:
        # the device's process needs a core
        builders = options.workers or max(1, cores * 3 // 4)
        lookahead += 2 * builders
    population = options.population or _POPULATION
    fresh = population * (_FRESH_SHARE_CPU if on_cpu else _FRESH_SHARE_GPU)
    limit = None
    if memory_bytes is not None:
        # sharing alone would leave too little for a build where there are many cores
        share = max(_LEAST_MEMORY_BYTES, memory_bytes // (builders + searchers))
        limit = min(share, memory_bytes * 4 // 5)
    return Plan(
        exclusive=exclusive,
        searchers=searchers,
        builders=builders,
        lookahead=lookahead,
        owners=_share_out(manifest.tasks, searchers),
        search=SearchOptions(
            population=population,
            fresh=min(50, max(8, int(fresh))),
            generations=options.generations or _GENERATIONS,
            batch_size=options.batch_size,
            seed=options.seed,
        ),
        memory_bytes=limit,
        network_bytes=network_bytes(manifest.tasks),
    )


def build_timeout_s(times: Collection[float], most_s: float) -> float:
    """Return the time-out of a task's next build: learnt from its builds, at most `most_s`.

    A candidate that takes many times as long as others is a huge unrolled loop nest, which has
    hardly ever been a good one: the best of 18 tasks on a GPU took at most three times as long as
    the median of their task.
    """
    if len(times) < 8:
        return most_s
    return min(most_s, max(3.0, 5 * statistics.median(times)))


def _share_out(tasks: tuple[TaskInfo, ...], searchers: int) -> dict[int, int]:
    """Deal the tasks out so that each searcher has its part of the work, the largest first.

    A searcher whose tasks are all small has nothing worth doing once these are good.
    """
    load = [0.0] * searchers
    owners: dict[int, int] = {}
    total = sum(task.flops * task.weight for task in tasks) or 1.0
    for task in sorted(tasks, key=lambda t: (-t.flops * t.weight, t.id)):
        lightest = min(range(searchers), key=lambda s: (load[s], s))
        load[lightest] += task.flops * task.weight / total + 1e-3
        owners[task.id] = lightest
    return owners
