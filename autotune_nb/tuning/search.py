"""Jobs of a search worker: MetaSchedule's evolutionary search, driven one round at a time.

A search worker owns some of the tasks: their design spaces, the candidates it has proposed, and a
cost model that learns from their results. Several workers with one thread each search several
tasks side by side; TVM's search threads get in each other's way, and one thread also makes the
search reproducible, since TVM hands random states out by thread.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import tvm
import tvm_ffi
from tvm.s_tir import meta_schedule as ms

from autotune_nb.run import database, seeds
from autotune_nb.tuning import fallback
from autotune_nb.tuning.cost_model import GroupedCostModel, Lesson
from autotune_nb.tuning.messages import Candidate, SearchOptions

_MAX_ROUNDS = 2**30  # to TVM: the budget is ours to watch
_TRIES = 4
_SEEDS_MEASURED = 8  # the best seeds of a task, measured before they count


@dataclasses.dataclass(slots=True, kw_only=True)
class _Task:
    """One task while it is searched."""

    index: int
    workload: Any
    seen: set[str]
    context: Any = None
    proposed: dict[str, Any] = dataclasses.field(default_factory=dict)
    first: list[Any] = dataclasses.field(default_factory=list)
    population: int = 0
    searched: bool = True  # or its first candidates are all there is


class _Searcher:
    """Everything a search worker holds."""

    def __init__(
        self,
        directory: str,
        target: str,
        options: SearchOptions,
        found: Mapping[int, Sequence[str]],
    ) -> None:
        logging.getLogger("tvm").setLevel(logging.ERROR)
        self.options = options
        self.directory = Path(directory)
        self.target = tvm.target.Target(json.loads(target))
        self.database = ms.database.MemoryDatabase()
        self.model = GroupedCostModel(seed=options.seed)
        self.tasks: dict[int, _Task] = {}
        self._workloads = database.read_workloads(self.directory)
        self._earlier: dict[int, list[database.StoredRecord]] = {}
        for stored in database.read_records(self.directory)[0]:
            self._earlier.setdefault(stored.task, []).append(stored)
        self._seeds = seeds.read(self.directory)
        self._found = found

    def propose(self, index: int, count: int) -> list[Candidate]:
        task = self._task(index)
        fresh: list[Candidate] = []
        while task.first and len(fresh) < count:
            candidate = task.first.pop(0)
            key = _key(candidate.sch.mod)
            if key not in task.seen:
                fresh.append(self._take(task, key, candidate))
        if len(fresh) >= count or not task.searched:
            return fresh
        for attempt in range(_TRIES):
            if task.context is None:
                self._open(task)
            found = task.context.generate_measure_candidates()
            for candidate in found or ():
                key = _key(candidate.sch.mod)
                if key in task.seen or len(fresh) >= count:
                    continue
                fresh.append(self._take(task, key, candidate))
            if len(fresh) >= count:
                break
            if not found:
                # Too few valid samples, or nothing new among them: a larger population finds more.
                task.population *= 2
                task.context = None
            elif fresh and attempt:
                break
        return fresh

    def learn(self, index: int, results: list[tuple[str, list[float]]]) -> Lesson | None:
        task = self.tasks[index]
        known = [(task.proposed.pop(key), times) for key, times in results if key in task.proposed]
        if not known:
            return None
        candidates = [candidate for candidate, _ in known]
        for candidate, times in known:
            if times:
                self.database.commit_tuning_record(
                    ms.database.TuningRecord(
                        candidate.sch.trace, task.workload, times, self.target, candidate.args_info
                    )
                )
        return self.model.add(task.context, candidates, [times for _, times in known])

    def _task(self, index: int) -> _Task:
        if index not in self.tasks:
            workload = ms.database.Workload.from_json(json.loads(self._workloads[index]))
            workload = self.database.commit_workload(workload.mod)
            task = _Task(
                index=index,
                workload=workload,
                seen=set(self._found.get(index, ())),
                population=self.options.population,
                searched=not fallback.is_enough(workload.mod, self.target),
            )
            self.tasks[index] = task
            self._open(task)
            self._recall(task)
            task.first = [
                ms.MeasureCandidate(
                    schedule, ms.arg_info.ArgInfo.from_entry_func(schedule.mod, remove_preproc=True)
                )
                for schedule in fallback.candidates(workload.mod, self.target)
            ]
            task.first += self._learn_from_seeds(task)
        return self.tasks[index]

    def _open(self, task: _Task) -> None:
        rounds = 1 + len(task.seen)  # after a resume, not the candidates of the first round again
        seed = (self.options.seed * 1_000_003 + task.index * 10_007 + rounds) % (2**31 - 1) + 1
        task.context = ms.TuneContext(
            mod=task.workload.mod,
            target=self.target,
            task_name=f"task{task.index}",
            num_threads=1,
            rand_state=seed,
            space_generator="post-order-apply",
            search_strategy=ms.search_strategy.EvolutionarySearch(
                population_size=task.population,
                init_min_unmeasured=self.options.fresh,
                genetic_num_iters=self.options.generations,
            ),
        )
        task.context.pre_tuning(
            _MAX_ROUNDS,
            self.options.batch_size,
            task.context.generate_design_space(),
            self.database,
            self.model.for_search(),
        )

    def _recall(self, task: _Task) -> None:
        """Take over what earlier sessions measured of a task."""
        replayed = self._replay(task, self._earlier.pop(task.index, ()))
        for record, candidate, times in replayed:
            task.seen.add(_key(candidate.sch.mod))
            if times:
                self.database.commit_tuning_record(record)
        self._teach(task, replayed)

    def _learn_from_seeds(self, task: _Task) -> list[Any]:
        """Let the cost model learn from other runs' records; return the best, to be measured."""
        replayed = self._replay(task, self._seeds.pop(task.index, ()))
        self._teach(task, replayed)
        good = [candidate for _, candidate, times in replayed if times]
        return good[:_SEEDS_MEASURED]

    def _replay(
        self, task: _Task, stored: Iterable[database.StoredRecord]
    ) -> list[tuple[Any, Any, list[float]]]:
        replayed = []
        for item in stored:
            try:
                record = ms.database.TuningRecord.from_json(json.loads(item.line)[1], task.workload)
                candidate = record.as_measure_candidate()
            except Exception:  # noqa: S112  a schedule that cannot be replayed teaches nothing
                continue
            times = [] if item.latency_s is None else [item.latency_s]
            replayed.append((record, candidate, times))
        return replayed

    def _teach(self, task: _Task, replayed: list[tuple[Any, Any, list[float]]]) -> None:
        if replayed:
            candidates = [candidate for _, candidate, _ in replayed]
            self.model.add(task.context, candidates, [times for _, _, times in replayed])

    def _take(self, task: _Task, key: str, candidate: Any) -> Candidate:
        task.seen.add(key)
        task.proposed[key] = candidate
        record = ms.database.TuningRecord(
            candidate.sch.trace, task.workload, [1.0], self.target, candidate.args_info
        )
        trace, _, target, args_info = record.as_json()
        return Candidate(
            key=key,
            module=tvm.ir.save_json(candidate.sch.mod),
            trace=trace,
            target=target,
            args_info=args_info,
        )


_searcher: _Searcher | None = None


def open_run(
    directory: str, target: str, options: SearchOptions, found: Mapping[int, Sequence[str]]
) -> None:
    """Make this process the search worker of a run.

    `found` holds, by task, the candidates that were found by an earlier worker of this session.
    """
    global _searcher  # noqa: PLW0603  a worker process serves one run
    _searcher = _Searcher(directory, target, options, found)


def propose(index: int, count: int) -> tuple[list[Candidate], float]:
    """Return at most `count` new candidates for a task, and the seconds it took.

    No candidate is returned twice, nor one that an earlier session measured. None at all means
    that the task's space is exhausted.
    """
    assert _searcher is not None
    start = time.perf_counter()
    found = _searcher.propose(index, count)
    return found, time.perf_counter() - start


def learn(index: int, results: list[tuple[str, list[float]]]) -> bytes:
    """Take in results, as (candidate key, seconds of each repeat or [] if it failed).

    Returns what was learnt, for `hear` in other search workers; empty if nothing was.
    """
    assert _searcher is not None
    lesson = _searcher.learn(index, results)
    return b"" if lesson is None else lesson.to_bytes()


def hear(lesson: bytes) -> None:
    """Take in what another search worker learnt: features carry over from task to task."""
    assert _searcher is not None
    _searcher.model.hear(Lesson.from_bytes(lesson))


def _key(module: Any) -> str:
    return f"{tvm_ffi.structural_hash(module) & (2**64 - 1):016x}"
