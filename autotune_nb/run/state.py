"""State of a run: a pure fold of its journal, the same in the tuner, a notebook and a test."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence

from autotune_nb.errors import RunError
from autotune_nb.run import choices as ch
from autotune_nb.run import events as ev
from autotune_nb.run.devices import DevicesDraft
from autotune_nb.run.records import (
    Budget,
    Choice,
    CurvePoint,
    ErrorCount,
    RequestState,
    State,
    TaskInfo,
    TaskState,
)

__all__ = ["CurvePoint", "Draft", "RequestState", "State", "TaskState", "fold", "initial"]

_RATE_WINDOW = 64  # trials over which the current speed is taken


def initial(tasks: Sequence[TaskInfo], choices: Sequence[Choice] = ()) -> State:
    """Return the state of a run in which nothing has happened yet."""
    uses = ch.uses(choices, [None] * len(tasks))
    return State(
        tasks=tuple(TaskState(info=task, uses=uses.get(task.id)) for task in tasks),
        choices=tuple(choices),
    )


def fold(state: State, events: Iterable[ev.Event]) -> State:
    """Return the state after `events`.

    Raises
    ------
    RunError
        If an event cannot follow what came before it: an unknown task, a trial number that is
        not the next, the end of a round that is not under way, an answer to no request.
    """
    draft = Draft(state)
    for event in events:
        draft.apply(event)
    return draft.freeze()


class _TaskDraft:
    """A task while a batch of events is applied; lists instead of tuples."""

    __slots__ = (
        "best_latency_s",
        "best_record",
        "best_trial",
        "errors",
        "failures",
        "info",
        "note",
        "rounds",
        "state",
        "trials",
        "uses",
    )

    def __init__(self, task: TaskState) -> None:
        self.info = task.info
        self.trials = task.trials
        self.failures = task.failures
        self.best_latency_s = task.best_latency_s
        self.best_trial = task.best_trial
        self.best_record = task.best_record
        self.rounds = list(task.rounds)
        self.state = task.state
        self.note = task.note
        self.errors = {e.kind: e for e in task.errors}
        self.uses = task.uses

    def freeze(self) -> TaskState:
        return TaskState(
            info=self.info,
            trials=self.trials,
            failures=self.failures,
            best_latency_s=self.best_latency_s,
            best_trial=self.best_trial,
            best_record=self.best_record,
            rounds=tuple(self.rounds),
            state=self.state,
            note=self.note,
            errors=tuple(self.errors.values()),
            uses=self.uses,
        )


class Draft:
    """A state while a batch of events is applied, so that a long journal folds in linear time.

    An event that is refused leaves it as it was.
    """

    def __init__(self, state: State) -> None:
        self._base = state
        self._changes: dict[str, object] = {}
        self._tasks: dict[int, _TaskDraft] = {}
        self._curve: list[CurvePoint] = []
        self._requests = {r.id: r for r in state.requests}
        self._recovered = list(state.recovered)
        self._recent = list(state.recent)
        self._devices = DevicesDraft(state.devices, state.waiting)
        self._trials = state.trials
        self._failed = state.failed_trials
        self._used_s = state.used_s
        self._time = state.time
        self._rounds = state.rounds
        self._costs = [state.search_s, state.build_s, state.measure_s]
        # summed anew each time: the total must not depend on how events are batched
        self._weighted = [t.weighted_latency_s or 0.0 for t in state.tasks]
        self._missing = sum(t.missing for t in state.tasks)
        self._best_s = [t.best_latency_s for t in state.tasks]
        self._open = dict(state.open_rounds)

    def freeze(self) -> State:
        """Return the state as it now is."""
        base = self._base
        tasks = base.tasks
        if self._tasks:
            changed = list(tasks)
            for index, draft in self._tasks.items():
                changed[index] = draft.freeze()
            tasks = tuple(changed)
        return dataclasses.replace(
            base,
            tasks=tasks,
            trials=self._trials,
            failed_trials=self._failed,
            rounds=self._rounds,
            used_s=self._used_s,
            time=self._time,
            search_s=self._costs[0],
            build_s=self._costs[1],
            measure_s=self._costs[2],
            curve=base.curve + tuple(self._curve),
            requests=tuple(self._requests.values()),
            recovered=tuple(self._recovered),
            recent=tuple(self._recent),
            devices=self._devices.freeze(),
            waiting=self._devices.waiting(),
            open_rounds=tuple(self._open.items()),
            **self._changes,  # type: ignore[arg-type]
        )

    @property
    def trials(self) -> int:
        """Trials so far."""
        return self._trials

    @property
    def rounds(self) -> int:
        """Number of the newest round."""
        return self._rounds

    def apply(self, event: ev.Event) -> None:
        """Apply one event, or raise RunError if it cannot follow what came before."""
        handler = getattr(self, f"_on_{event.kind}", None)
        if handler is None:
            raise RunError(f"journal event of unknown kind {event.kind!r}")
        before = self._used_s
        self._used_s = max(self._used_s, event.used_s)
        try:
            handler(event)
        except RunError:
            self._used_s = before
            raise
        self._time = event.time

    def _task(self, index: int) -> _TaskDraft:
        draft = self._tasks.get(index)
        if draft is None:
            if not 0 <= index < len(self._base.tasks):
                raise RunError(
                    f"the journal speaks of task {index}, the run has {len(self._base.tasks)}"
                )
            draft = self._tasks[index] = _TaskDraft(self._base.tasks[index])
        return draft

    def _on_trial(self, event: ev.TrialDone) -> None:
        if event.trial != self._trials + 1:
            raise RunError(f"the journal has trial {event.trial} after trial {self._trials}")
        if event.latency_s is not None and not 0 < event.latency_s < math.inf:
            raise RunError(f"the journal gives trial {event.trial} {event.latency_s} seconds")
        # a trial restored before the first round names round 1
        if event.round > max(1, self._rounds):
            raise RunError(f"the journal has a trial of round {event.round} before its start")
        task = self._task(event.task)
        self._trials += 1
        task.trials += 1
        if task.state == "waiting":
            task.state = "tuning"
        self._devices.trial(event, self._used_s)
        self._costs[1] += event.build_s
        self._costs[2] += event.measure_s
        if event.latency_s is None:
            self._failed += 1
            task.failures += 1
            known = task.errors.get(event.error_kind)
            task.errors[event.error_kind] = ErrorCount(
                kind=event.error_kind,
                count=known.count + 1 if known else 1,
                first_message=known.first_message if known else event.error,
            )
        elif task.best_latency_s is None or event.latency_s < task.best_latency_s:
            self._set_best(event.task, event.latency_s, event.trial, event.record)
            self._curve.append(
                CurvePoint(
                    trial=event.trial,
                    used_s=self._used_s,
                    task=event.task,
                    latency_s=event.latency_s,
                    estimated_total_latency_s=math.fsum(self._weighted),
                    partial=self._missing > 0,
                )
            )

    def _set_best(
        self, index: int, latency_s: float | None, trial: int | None, record: str
    ) -> None:
        task = self._task(index)
        if task.uses is None:
            self._missing += (latency_s is None) - (task.best_latency_s is None)
            self._weighted[index] = (latency_s or 0.0) * task.info.weight
        task.best_latency_s, task.best_trial, task.best_record = latency_s, trial, record
        self._best_s[index] = latency_s
        if task.uses is not None:
            self._choose()

    def _choose(self) -> None:
        """Let each choice have its fastest formulation again, after a result of one of them."""
        for index, count in ch.uses(self._base.choices, self._best_s).items():
            self._weighted[index] = (self._best_s[index] or 0.0) * count
            if self._uses(index) != count:
                self._task(index).uses = count
        tasks = enumerate(self._best_s)
        self._missing = sum(best is None and self._uses(index) != 0 for index, best in tasks)

    def _uses(self, index: int) -> int | None:
        draft = self._tasks.get(index)
        return self._base.tasks[index].uses if draft is None else draft.uses

    def _on_round_started(self, event: ev.RoundStarted) -> None:
        self._task(event.task)
        if event.round <= self._rounds:
            raise RunError(f"the journal starts round {event.round} after round {self._rounds}")
        self._rounds = event.round
        self._open[event.round] = event.task

    def _check_open(self, event: ev.RoundSearched | ev.RoundFinished) -> None:
        if self._open.get(event.round) != event.task:
            raise RunError(
                f"the journal speaks of round {event.round} of task {event.task}, "
                "which is not under way"
            )

    def _on_round_searched(self, event: ev.RoundSearched) -> None:
        self._check_open(event)
        self._devices.searched(event)
        self._costs[0] += event.search_s

    def _on_round_finished(self, event: ev.RoundFinished) -> None:
        self._check_open(event)
        del self._open[event.round]
        self._devices.finished(event.round)
        task = self._task(event.task)
        task.rounds.append((task.trials, task.best_latency_s))
        self._recent.append((self._used_s, self._trials))
        # the first mark of a session stands for its start, so that start-up does not slow the rate
        while len(self._recent) > 2 and self._trials - self._recent[1][1] >= _RATE_WINDOW:
            self._recent.pop(0)

    def _on_measurement_lost(self, event: ev.MeasurementLost) -> None:
        self._task(event.task)
        self._devices.lost(event)

    def _on_devices(self, event: ev.DevicesSeen) -> None:
        self._devices.seen(event)

    def _on_task_set_aside(self, event: ev.TaskSetAside) -> None:
        task = self._task(event.task)
        task.state, task.note = event.state, event.reason

    def _on_tuner_started(self, event: ev.TunerStarted) -> None:
        self._recent.clear()
        self._open.clear()
        self._devices.rest()
        for index in range(len(self._base.tasks)):
            task = self._task(index)
            if task.state == "failed":  # the cause may be gone: it gets another round
                task.state, task.note = "tuning" if task.trials else "waiting", ""
        self._changes.update(
            phase="starting",
            message="",
            pid=event.pid,
            started=event.time,
            versions=event.versions,
        )

    def _on_phase(self, event: ev.PhaseChanged) -> None:
        self._changes["phase"] = event.phase
        self._recent = [(self._used_s, self._trials)]

    def _on_budget(self, event: ev.BudgetSet) -> None:
        self._changes["budget"] = Budget(trials=event.trials, seconds=event.seconds)

    def _on_focus(self, event: ev.FocusSet) -> None:
        self._changes["focus"] = event.tasks

    def _on_request_taken(self, event: ev.RequestTaken) -> None:
        known = self._requests.get(event.request)
        if known is not None and known.done is not None:
            raise RunError(f"the journal takes request {event.request} after it was done")
        self._requests[event.request] = RequestState(
            id=event.request, wish=event.wish, taken=event.time
        )

    def _on_request_done(self, event: ev.RequestDone) -> None:
        taken = self._requests.get(event.request)
        if taken is None:
            raise RunError(f"the journal ends request {event.request}, which was never taken")
        if taken.done is not None:
            raise RunError(f"the journal ends request {event.request} twice")
        self._requests[event.request] = dataclasses.replace(
            taken, done=event.time, refused=event.refused
        )

    def _on_recovered(self, event: ev.Recovered) -> None:
        self._recovered.append(event.what)

    def _on_record_lost(self, event: ev.RecordLost) -> None:
        if self._task(event.task).best_trial != event.trial:
            raise RunError(
                f"the journal loses trial {event.trial}, which is not the best of task {event.task}"
            )
        self._set_best(event.task, event.best_latency_s, event.best_trial, event.best_record)

    def _on_tuner_stopped(self, event: ev.TunerStopped) -> None:
        self._changes.update(phase=event.outcome, message=event.reason, pid=None)
        self._open.clear()
