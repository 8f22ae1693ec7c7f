"""How a tuner spreads its work over this machine's cores: a pure function of run and machine."""

from __future__ import annotations

import dataclasses

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
    """

    exclusive: bool
    searchers: int
    builders: int
    lookahead: int
    owners: dict[int, int]
    search: SearchOptions
    recycle_bytes: int = _GIB


def make_plan(manifest: Manifest, cores: int) -> Plan:
    """Return the plan for a run on a machine with this many cores for the tuner."""
    options = manifest.options
    exclusive = manifest.device.startswith("cpu")
    if exclusive:
        searchers = 1 if cores <= 2 else min(4, cores // 2)
        builders = options.workers or cores
        lookahead = options.batch_size
    else:
        # a candidate costs about as much to find as to build; the device's process needs a core
        searchers = max(1, cores * 2 // 5)
        builders = options.workers or max(1, cores * 3 // 4)
        lookahead = 2 * builders + searchers * options.batch_size
    searchers = max(1, min(searchers, len(manifest.tasks)))
    population = options.population or _POPULATION
    fresh = population * (_FRESH_SHARE_CPU if exclusive else _FRESH_SHARE_GPU)
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
    )


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
