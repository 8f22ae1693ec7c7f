"""Rounds on their way through search, build and measurement, on warm workers.

A round is one task's batch of candidates. Searching and building of several rounds overlap. On a
CPU target measurements do not: while candidates are timed, nothing else of ours runs. Where other
devices measure, candidates are timed as soon as they are built; see `measuring`.
"""

from __future__ import annotations

import collections
import dataclasses
import statistics

from autotune_nb.run.manifest import Options
from autotune_nb.run.measure import Measure
from autotune_nb.tuning.measuring import measurers
from autotune_nb.tuning.messages import MeasureOptions
from autotune_nb.tuning.plan import Plan, build_timeout_s
from autotune_nb.tuning.process import Answer, Worker, Workers
from autotune_nb.tuning.rounds import (
    Devices,
    Finished,
    Gone,
    Item,
    Measured,
    Outcome,
    Round,
    Searched,
)
from autotune_nb.tuning.searchers import Searchers

_LOSSES = 3


class Pipeline:
    """Moves rounds along; `step` does so and tells what happened.

    Parameters
    ----------
    workers
        Where worker processes come from.
    plan
        How many of which, and whether measuring excludes everything else.
    options
        Time-outs, repeats and search settings of the run.
    directory, target, device
        The run directory, TVM's target configuration as JSON, and the device that measures.
    scratch
        Folder for exported candidates.
    measure
        Where candidates are measured, if not by `device` alone.
    """

    def __init__(
        self,
        workers: Workers,
        plan: Plan,
        options: Options,
        *,
        directory: str,
        target: str,
        device: str,
        scratch: str,
        measure: Measure | None = None,
    ) -> None:
        self._workers = workers
        self._plan = plan
        self._options = options
        self._target = target
        self._scratch = None if plan.exclusive else scratch
        self._searchers = Searchers(workers, plan, directory=directory, target=target)
        self._builders = workers.add("build", plan.builders, memory_bytes=plan.memory_bytes)
        self._measurers = measurers(
            workers, plan, options, scratch=scratch, device=device, measure=measure or Measure()
        )
        self._present: tuple[str, ...] = ()
        self._rounds: list[Round] = []
        self._best: dict[int, float] = {}
        self._paused = False
        self._build_times: dict[int, collections.deque[float]] = collections.defaultdict(
            lambda: collections.deque(maxlen=64)
        )

    @property
    def rounds(self) -> list[Round]:
        """The rounds under way, oldest first."""
        return self._rounds

    @property
    def room(self) -> bool:
        """True if another round should be started to keep the workers busy."""
        queued = sum(i.status == "queued" for r in self._rounds for i in r.items)
        ahead = sum(not r.searched for r in self._rounds)
        if ahead >= self._plan.searchers:
            return False
        return queued + ahead * self._options.batch_size <= self._plan.lookahead

    def in_flight(self) -> dict[int, int]:
        """Return the number of rounds under way by task."""
        return dict(collections.Counter(r.task for r in self._rounds))

    def busy_tasks(self) -> set[int]:
        """Return the tasks whose searcher is at work on a round."""
        return self._searchers.sharing({r.task for r in self._rounds if not r.searched})

    def start(self, number: int, task: int, count: int, best_s: float | None) -> None:
        """Start a round of `count` candidates for a task whose best latency so far is `best_s`."""
        started = Round(number=number, task=task, count=count)
        self._rounds.append(started)
        if best_s is not None:
            self._best[task] = best_s
        self._searchers.propose(started, count)
        self._advance([])

    def step(self, timeout_s: float) -> list[Outcome]:
        """Wait at most `timeout_s` for something to happen, act on it, and return what did."""
        outcomes: list[Outcome] = []
        for answer in self._workers.wait(timeout_s):
            self._take(answer, outcomes)
        self._advance(outcomes)
        return outcomes

    def pause(self) -> None:
        """Stop all work, except that a measurement under way is let end; see `quiet`."""
        self._paused = True
        self._advance([])

    def unpause(self) -> None:
        """Go on after `pause`."""
        self._paused = False
        for worker in self._workers:
            worker.resume()

    @property
    def quiet(self) -> bool:
        """True while nothing runs: nothing was started, or `pause` has taken effect."""
        return all(worker.stopped or not worker.busy for worker in self._workers)

    @property
    def unmeasured(self) -> int:
        """Candidates of the rounds under way that are not measured yet, found or asked for."""
        return sum(
            sum(i.status != "done" for i in r.items) if r.searched else r.count
            for r in self._rounds
        )

    def cancel_unmeasured(self, count: int) -> None:
        """Drop `count` of the candidates that are not measured yet, the newest first."""
        for current in reversed(self._rounds):
            if not current.searched:
                cut = min(count, current.count)
                current.count -= cut
                count -= cut
            for item in reversed(current.items):
                if count and item.status in ("queued", "built"):
                    item.status = "done"
                    count -= 1

    # -- answers

    def _take(self, answer: Answer, outcomes: list[Outcome]) -> None:
        if answer.job is None:  # an idle worker died; what it held is found missing in _advance
            for item in self._oldest("built"):
                item.losses += item.holder is answer.worker
            return
        what, subject = answer.job
        if what == "propose":
            self._take_proposal(answer, subject, outcomes)
        elif what == "build":
            self._take_build(answer, subject, outcomes)
        elif what == "acquire":
            self._measurers.acquired(answer)
        elif what == "measure":
            judged = self._measurers.judge(answer, subject)
            if isinstance(judged, Gone):
                outcomes.append(judged)
            else:
                self._take_measurement(judged, subject, outcomes)
        elif what == "learn" and answer.status == "done":
            self._searchers.share(answer.worker, subject, answer.value)
        elif what == "open" and answer.status != "done":
            for failed in self._searchers.not_opened(answer.worker):
                self._take_proposal(answer, failed, outcomes)

    def _take_proposal(self, answer: Answer, subject: Round, outcomes: list[Outcome]) -> None:
        subject.searched = True
        if answer.status == "done":
            candidates, subject.search_s = answer.value
            subject.items = [Item(round=subject, source=c) for c in candidates[: subject.count]]
            self._searchers.found(subject)
            outcomes.append(Searched(round=subject))
        else:
            message = answer.message or answer.status
            outcomes.append(Searched(round=subject, error=f"search {answer.status}: {message}"))

    def _take_build(self, answer: Answer, item: Item, outcomes: list[Outcome]) -> None:
        item.build_s += answer.duration_s
        item.round.build_s += answer.duration_s
        if answer.status == "done":
            item.status = "built"
            self._build_times[item.round.task].append(answer.duration_s)
            return
        kind = {"error": "build", "timeout": "build_timeout", "crash": "build_crash"}
        self._end(item, [], outcomes, kind=kind[answer.status], error=answer.message)

    def _take_measurement(self, answer: Answer, item: Item, outcomes: list[Outcome]) -> None:
        item.round.measure_s += answer.duration_s
        if answer.status == "done":
            times = [float(t) for t in answer.value]
            if times and all(0 < t < 1e9 for t in times):
                mean = statistics.fmean(times)
                self._best[item.round.task] = min(self._best.get(item.round.task, mean), mean)
                self._end(item, times, outcomes, measure_s=answer.duration_s)
                return
            answer = dataclasses.replace(
                answer, status="error", message=f"impossible times {times}"
            )
        kind = {"error": "measure", "timeout": "measure_timeout", "crash": "measure_crash"}
        self._end(
            item,
            [],
            outcomes,
            kind=kind[answer.status],
            error=answer.message,
            measure_s=answer.duration_s,
        )

    def _end(
        self,
        item: Item,
        times: list[float],
        outcomes: list[Outcome],
        *,
        kind: str = "",
        error: str = "",
        measure_s: float = 0.0,
    ) -> None:
        item.status = "done"
        item.round.results.append((item.key, times))
        outcomes.append(
            Measured(
                item=item, latencies_s=times, error_kind=kind, error=error, measure_s=measure_s
            )
        )

    # -- what to do next

    def _advance(self, outcomes: list[Outcome]) -> None:
        self._requeue_lost(outcomes)
        self._retire(outcomes)
        if self._paused:
            for worker in self._workers:
                if not (worker.busy and worker.job[0] in ("measure", "acquire")):
                    worker.suspend()
            return
        if self._plan.exclusive:
            self._advance_exclusively()
        else:
            self._build_where_idle()
            self._measurers.serve(self._oldest("built"), self._timing)
            if self._measurers.present != self._present:
                self._present = self._measurers.present
                outcomes.append(Devices(present=self._present))
        self._searchers.serve()

    def _advance_exclusively(self) -> None:
        building = any(w.busy and w.job[0] == "build" for w in self._builders)
        measuring = any(w.busy and w.job[0] == "measure" for w in self._builders)
        current = next((r for r in self._rounds if r.searched and not r.finished), None)
        ready = current is not None and not any(
            i.status in ("queued", "building") for i in current.items
        )
        if measuring:
            return
        if ready and not building:
            assert current is not None
            built = [i for i in current.items if i.status == "built"]
            self._measurers.serve(built, self._timing)
            return
        if not building:
            for worker in self._workers:
                worker.resume()
        if not ready:  # a round that waits to be measured lets no new build begin
            self._build_where_idle()

    def _build_where_idle(self) -> None:
        queued = self._oldest("queued")
        for worker in self._builders:
            if worker.busy or not queued:
                continue
            if worker.memory_bytes() > self._plan.recycle_bytes and not self._held_by(worker):
                worker.restart()
            item = queued.pop(0)
            item.status, item.holder, item.generation = "building", worker, worker.generation
            worker.submit(
                ("build", item),
                f"{self._plan.modules.candidates}:build",
                item.key,
                item.source.module,
                self._target,
                self._scratch,
                timeout_s=build_timeout_s(
                    self._build_times[item.round.task], self._options.build_timeout_s
                ),
            )

    def _timing(self, item: Item) -> MeasureOptions:
        return MeasureOptions(
            repeats=self._options.repeats,
            min_repeat_ms=self._options.min_repeat_ms,
            best_s=self._best.get(item.round.task),
            cool_down_ms=self._options.cool_down_ms,
            between_bytes=self._plan.network_bytes,
        )

    def _requeue_lost(self, outcomes: list[Outcome]) -> None:
        """Build again what a dead worker held; what its job was is to blame, and has ended."""
        if not self._plan.exclusive:
            return
        for current in self._rounds:
            for item in current.items:
                if item.status != "built" or item.holder is None:
                    continue
                if item.holder.generation != item.generation:
                    if item.losses < _LOSSES:
                        item.status = "queued"
                    else:
                        lost = f"its worker died idle {item.losses} times before it was measured"
                        self._end(item, [], outcomes, kind="measure_crash", error=lost)

    def _retire(self, outcomes: list[Outcome]) -> None:
        for current in [r for r in self._rounds if r.finished]:
            self._rounds.remove(current)
            if current.results:
                self._searchers.learn(current)
            outcomes.append(Finished(round=current))

    def _oldest(self, status: str) -> list[Item]:
        return [i for r in self._rounds for i in r.items if i.status == status]

    def _held_by(self, worker: Worker) -> bool:
        return any(i.holder is worker for i in self._oldest("built"))
