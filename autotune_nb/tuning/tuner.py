"""The tuner process: a loop that starts rounds, journals what happens, and grants requests.

It never loads TVM: searching, building and measuring happen in its workers. So it starts at once,
a crash in TVM costs one candidate and not the run, and it answers requests while all of them work.
"""

from __future__ import annotations

import collections
import statistics
import time

from autotune_nb.run import database
from autotune_nb.run import events as ev
from autotune_nb.run import requests as rq
from autotune_nb.run.directory import RunWriter
from autotune_nb.run.records import Budget
from autotune_nb.tuning import scheduler
from autotune_nb.tuning.clock import Clock
from autotune_nb.tuning.pipeline import Pipeline
from autotune_nb.tuning.rounds import Devices, Finished, Gone, Measured, Outcome, Searched

_STEP_S = 0.2
_SEARCH_TRIES = 2  # a search that crashes this often in a row sets its task aside
_HOPELESS_TRIALS = 96  # a run in which this many trials fail in a row is stopped


class Tuner:
    """Tunes one run until its budget is spent, it is asked to stop, or it cannot go on.

    Parameters
    ----------
    writer
        The run, opened for writing.
    pipeline
        Where rounds are searched, built and measured.
    clock
        What measures the time spent.
    """

    def __init__(self, writer: RunWriter, pipeline: Pipeline, clock: Clock) -> None:
        self._writer = writer
        self._pipeline = pipeline
        self._clock = clock
        self._manifest = writer.directory.manifest
        # requests of earlier sessions that were granted are in the journal; the rest still count
        self._requests_at = 0
        self._asked: set[str] = {r.id for r in writer.state.requests if r.done is not None}
        self._pending: list[rq.Request] = []
        self._search_errors: collections.Counter[int] = collections.Counter()
        # failures since the last result, where a result could be expected
        self._failing: list[Measured] = []
        self._stopping = ""
        self._outcome = ""
        self._synced = time.monotonic()

    def run(self) -> str:
        """Tune; return the outcome: ``finished``, ``stopped`` or ``failed``."""
        self._note(ev.PhaseChanged(phase="tuning", **self._when()))
        while not self._over():
            for outcome in self._pipeline.step(_STEP_S):
                self._journal(outcome)
            self._writer.beat()
        self._note(
            ev.TunerStopped(outcome=self._outcome, reason=self._stopping, **self._when()),
            sync=True,
        )
        return self._outcome

    def _over(self) -> bool:
        """Grant requests and start rounds; tell whether the tuning is over."""
        self._take_requests()
        self._grant_requests()
        if not self._outcome:
            self._start_rounds()
        return bool(self._outcome)

    def interrupt(self, reason: str) -> None:
        """Stop as soon as the measurement under way has ended; safe in a signal handler."""
        self._stopping = self._stopping or reason

    # -- requests

    def _take_requests(self) -> None:
        found, self._requests_at = rq.read(self._writer.directory.requests, self._requests_at)
        for request in found:
            if request.id in self._asked:
                continue
            self._asked.add(request.id)
            self._pending.append(request)
            self._note(ev.RequestTaken(request=request.id, wish=request.wish, **self._when()))

    def _grant_requests(self) -> None:
        if self._stopping and not self._pending:
            self._end_if_quiet("stopped", self._stopping)
        while self._pending and not self._outcome:
            request = self._pending[0]
            done, refused = self._grant(request)
            if not done:
                return  # it takes effect when a measurement has ended
            self._pending.pop(0)
            self._note(ev.RequestDone(request=request.id, refused=refused, **self._when()))

    def _grant(self, request: rq.Request) -> tuple[bool, str]:
        """Act on a request; return whether it has taken effect, and why it is refused if it is."""
        if request.wish == "budget":
            return True, self._set_budget(Budget(trials=request.trials, seconds=request.seconds))
        if request.wish == "focus":
            return True, self._set_focus(request.tasks)
        if request.id in self._writer.earlier_requests:
            return True, "it was meant for an earlier session"
        if request.wish == "pause":
            return self._pause(), ""
        if request.wish == "resume":
            self._resume()
            return True, ""
        self._stopping = "stopped on request"
        self._pipeline.pause()
        return self._pipeline.quiet, ""

    def _set_budget(self, budget: Budget) -> str:
        state = self._writer.state
        if budget.trials is not None and budget.trials < state.trials:
            return f"{state.trials} trials are spent already"
        self._note(ev.BudgetSet(trials=budget.trials, seconds=budget.seconds, **self._when()))
        if budget.trials is not None:
            planned = state.trials + self._pipeline.unmeasured
            if planned > budget.trials:
                self._pipeline.cancel_unmeasured(planned - budget.trials)
        return ""

    def _set_focus(self, tasks: tuple[int, ...] | None) -> str:
        known = range(len(self._writer.state.tasks))
        unknown = [task for task in tasks or () if task not in known]
        if unknown:
            return f"there is no task {unknown[0]}; ids go from 0 to {len(known) - 1}"
        self._note(ev.FocusSet(tasks=tasks, **self._when()))
        return ""

    def _pause(self) -> bool:
        self._pipeline.pause()
        if not self._pipeline.quiet:
            return False
        if self._writer.state.phase != "paused":
            self._clock.pause()
            self._note(ev.PhaseChanged(phase="paused", **self._when()), sync=True)
        return True

    def _resume(self) -> None:
        self._pipeline.unpause()
        self._clock.resume()
        if self._writer.state.phase != "tuning":
            self._note(ev.PhaseChanged(phase="tuning", **self._when()))

    # -- rounds

    def _start_rounds(self) -> None:
        state = self._writer.state
        if state.phase == "paused" or self._stopping:
            return
        if state.budget.reached(state.trials, self._clock.used_s):
            self._end_if_quiet("finished", f"budget of {state.budget} spent")
            return
        if len(self._failing) >= _HOPELESS_TRIALS:
            self._end("failed", self._hopeless())
            return
        started = False
        while self._pipeline.room:
            in_flight = self._pipeline.in_flight()
            task = scheduler.next_task(state, in_flight, self._pipeline.busy_tasks())
            if task is None:
                break
            count = scheduler.round_size(
                state, task, self._manifest.options.batch_size, self._pipeline.unmeasured
            )
            if count <= 0:
                break
            started = True
            number = max([state.rounds, *(r.number for r in self._pipeline.rounds)]) + 1
            self._note(ev.RoundStarted(round=number, task=task, **self._when()))
            self._pipeline.start(number, task, count, state.tasks[task].best_latency_s)
        if not started and not self._pipeline.rounds and not scheduler.eligible(state):
            self._end_without_tasks()

    def _end_without_tasks(self) -> None:
        state = self._writer.state
        results = sum(task.best_latency_s is not None for task in state.tasks)
        if results:
            self._end("finished", "no task is left to tune: each is exhausted or set aside")
        else:
            self._end("failed", self._hopeless())

    def _hopeless(self) -> str:
        failing = collections.Counter((m.error_kind, m.error) for m in self._failing)
        if not failing:
            notes = [task.note for task in self._writer.state.tasks if task.note]
            return f"no task gave a candidate to measure; the first: {notes[0] if notes else '?'}"
        (kind, message), _ = failing.most_common(1)[0]
        return (
            f"the last {len(self._failing)} trials all failed, most often {kind}: {message}; run "
            "'autotune-nb doctor', and resume when the cause is gone"
        )

    def _end(self, outcome: str, reason: str) -> None:
        self._outcome, self._stopping = outcome, reason

    def _end_if_quiet(self, outcome: str, reason: str) -> None:
        """End once the measurement under way is in the journal; it is paid for already."""
        self._pipeline.pause()
        if self._pipeline.quiet:
            self._end(outcome, reason)

    # -- the journal

    def _journal(self, outcome: Outcome) -> None:
        if isinstance(outcome, Measured):
            self._journal_trial(outcome)
        elif isinstance(outcome, Searched):
            self._journal_search(outcome)
        elif isinstance(outcome, Devices):
            self._note(ev.DevicesSeen(present=outcome.present, **self._when()))
        elif isinstance(outcome, Gone):
            self._journal_lost(outcome)
        else:
            self._journal_round(outcome)

    def _journal_search(self, outcome: Searched) -> None:
        current = outcome.round
        self._note(
            ev.RoundSearched(
                round=current.number,
                task=current.task,
                candidates=len(current.items),
                search_s=round(current.search_s, 4),
                **self._when(),
            )
        )
        if current.items or current.count == 0:
            self._search_errors.pop(current.task, None)
            return
        task = self._writer.state.tasks[current.task]
        if outcome.error:
            self._search_errors[current.task] += 1
            if self._search_errors[current.task] < _SEARCH_TRIES:
                return
        # what was found before may still be on its way to a result
        found = task.best_latency_s or any(
            r.items for r in self._pipeline.rounds if r.task == current.task
        )
        self._note(
            ev.TaskSetAside(
                task=current.task,
                state="failed" if outcome.error or not found else "exhausted",
                reason=outcome.error or "the search finds no candidate that is new",
                **self._when(),
            )
        )

    def _journal_trial(self, outcome: Measured) -> None:
        source, current = outcome.item.source, outcome.item.round
        times = [float(f"{t:.6g}") for t in outcome.latencies_s]
        state = self._writer.state
        if times:
            self._failing.clear()
        elif state.failed_trials == state.trials or state.tasks[current.task].best_latency_s:
            self._failing.append(outcome)
        line = database.record_line(
            current.task, source.trace, times, source.target, source.args_info
        )
        self._writer.append_record(line)
        self._note(
            ev.TrialDone(
                trial=self._writer.state.trials + 1,
                round=current.number,
                task=current.task,
                candidate=outcome.item.key,
                latency_s=statistics.fmean(times) if times else None,
                latencies_s=tuple(times),
                error_kind=outcome.error_kind,
                error=outcome.error,
                build_s=round(outcome.item.build_s, 4),
                measure_s=round(outcome.measure_s, 4),
                record=database.digest(line),
                device=outcome.item.device or self._manifest.device,
                **self._when(),
            )
        )

    def _journal_lost(self, outcome: Gone) -> None:
        self._note(
            ev.MeasurementLost(
                round=outcome.item.round.number,
                task=outcome.item.round.task,
                candidate=outcome.item.key,
                device=outcome.device,
                reason=outcome.reason,
                dropped=outcome.dropped,
                **self._when(),
            )
        )

    def _journal_round(self, outcome: Finished) -> None:
        current = outcome.round
        self._note(
            ev.RoundFinished(
                round=current.number,
                task=current.task,
                trials=len(current.results),
                build_s=round(current.build_s, 4),
                measure_s=round(current.measure_s, 4),
                **self._when(),
            )
        )
        task = self._writer.state.tasks[current.task]
        if task.state == "tuning" and (reason := scheduler.verdict(task)):
            self._note(
                ev.TaskSetAside(task=current.task, state="failed", reason=reason, **self._when())
            )

    def _when(self) -> dict[str, float]:
        return {"time": round(time.time(), 3), "used_s": round(self._clock.used_s, 3)}

    def _note(self, event: ev.Event, *, sync: bool = False) -> None:
        # every second is enough for the disk: a killed process loses nothing that was written
        now = time.monotonic()
        if now - self._synced > 1.0:
            sync, self._synced = True, now
        self._writer.commit([event], sync=sync)
