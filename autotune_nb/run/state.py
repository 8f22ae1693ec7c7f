"""State of a run: a pure fold of its journal, the same in the tuner, a notebook and a test."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence

from autotune_nb.errors import RunError
from autotune_nb.run import events as ev
from autotune_nb.run.records import Budget, ErrorCount, TaskInfo

_RATE_WINDOW = 64  # trials over which the current speed is taken


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TaskState:
    """One task so far.

    Attributes
    ----------
    info
        The task itself.
    trials, failures
        Trials spent on it, and how many of these failed.
    best_latency_s, best_trial, best_record
        The best result, its trial number and its record's digest; None before the first.
    rounds
        Finished rounds as (trials spent, best latency or None) after each: what the gradient
        scheduler learns from.
    state
        ``waiting`` (no trial yet), ``tuning``, ``failed``, ``exhausted``.
    note
        Why the task was set aside.
    errors
        Failures by kind.
    """

    info: TaskInfo
    trials: int = 0
    failures: int = 0
    best_latency_s: float | None = None
    best_trial: int | None = None
    best_record: str = ""
    rounds: tuple[tuple[int, float | None], ...] = ()
    state: str = "waiting"
    note: str = ""
    errors: tuple[ErrorCount, ...] = ()

    @property
    def gflops(self) -> float | None:
        """Speed of the best schedule in GFLOPS, or None before the first result."""
        if self.best_latency_s is None:
            return None
        return self.info.flops / self.best_latency_s / 1e9

    @property
    def weighted_latency_s(self) -> float | None:
        """Latency times weight: the task's part of the estimated total."""
        if self.best_latency_s is None:
            return None
        return self.best_latency_s * self.info.weight


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CurvePoint:
    """A trial that improved its task, and what the whole run then stood at."""

    trial: int
    used_s: float
    task: int
    latency_s: float
    estimated_total_latency_s: float
    partial: bool


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RequestState:
    """A request the tuner has read: what it asked, when it was taken and took effect."""

    id: str
    wish: str
    taken: float
    done: float | None = None
    refused: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """Everything a run is, after some events.

    Attributes
    ----------
    phase
        ``new``, ``starting``, ``tuning``, ``paused``, ``stopped``, ``finished`` or ``failed``:
        what the journal last said. Whether the tuner lives is for the lock to say.
    next_task
        The task of the newest round under way, or None.
    search_s, build_s, measure_s
        Time spent in each step; builds and searches overlap, so the sum may exceed `used_s`.
    recent
        (used_s, trials) marks from which `trials_per_s` is taken.
    """

    tasks: tuple[TaskState, ...]
    phase: str = "new"
    message: str = ""
    trials: int = 0
    failed_trials: int = 0
    rounds: int = 0
    used_s: float = 0.0
    budget: Budget = Budget()
    focus: tuple[int, ...] | None = None
    next_task: int | None = None
    search_s: float = 0.0
    build_s: float = 0.0
    measure_s: float = 0.0
    curve: tuple[CurvePoint, ...] = ()
    requests: tuple[RequestState, ...] = ()
    recovered: tuple[str, ...] = ()
    recent: tuple[tuple[float, int], ...] = ()
    pid: int | None = None
    started: float | None = None
    time: float = 0.0
    versions: dict[str, str] = dataclasses.field(default_factory=dict)

    @property
    def partial(self) -> bool:
        """True while any task has no result, so that the estimated total leaves it out."""
        return any(t.best_latency_s is None for t in self.tasks)

    @property
    def estimated_total_latency_s(self) -> float | None:
        """Sum of latency times weight over the tasks that have a result; None before any."""
        parts = [t.weighted_latency_s for t in self.tasks if t.weighted_latency_s is not None]
        return math.fsum(parts) if parts else None

    @property
    def trials_per_s(self) -> float | None:
        """Current speed in trials per second of tuning time, over the last rounds."""
        if not self.recent:
            return None
        used_s, trials = self.recent[0]
        if self.used_s <= used_s or self.trials <= trials:
            return None
        return (self.trials - trials) / (self.used_s - used_s)

    @property
    def time_left_s(self) -> float | None:
        """Expected tuning time to the end of the budget in seconds, or None if unknown."""
        rate, left = self.trials_per_s, []
        if self.budget.trials is not None and rate:
            left.append(max(0.0, (self.budget.trials - self.trials) / rate))
        if self.budget.seconds is not None:
            left.append(max(0.0, self.budget.seconds - self.used_s))
        return min(left) if left else None


def initial(tasks: Sequence[TaskInfo]) -> State:
    """Return the state of a run in which nothing has happened yet."""
    return State(tasks=tuple(TaskState(info=task) for task in tasks))


def fold(state: State, events: Iterable[ev.Event]) -> State:
    """Return the state after `events`.

    Raises
    ------
    RunError
        If an event cannot follow what came before it (an unknown task, a trial number that is
        not the next).
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
        self._trials = state.trials
        self._failed = state.failed_trials
        self._used_s = state.used_s
        self._time = state.time
        self._rounds = state.rounds
        self._costs = [state.search_s, state.build_s, state.measure_s]
        weighted = [t.weighted_latency_s for t in state.tasks]
        self._total = math.fsum(w for w in weighted if w is not None)
        self._missing = sum(w is None for w in weighted)

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
            **self._changes,  # type: ignore[arg-type]
        )

    @property
    def trials(self) -> int:
        """Trials so far."""
        return self._trials

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
        task = self._task(event.task)
        self._trials += 1
        task.trials += 1
        if task.state == "waiting":
            task.state = "tuning"
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
            return
        if task.best_latency_s is None or event.latency_s < task.best_latency_s:
            weight = task.info.weight
            if task.best_latency_s is None:
                self._missing -= 1
                self._total += event.latency_s * weight
            else:
                self._total += (event.latency_s - task.best_latency_s) * weight
            task.best_latency_s = event.latency_s
            task.best_trial = event.trial
            task.best_record = event.record
            self._curve.append(
                CurvePoint(
                    trial=event.trial,
                    used_s=self._used_s,
                    task=event.task,
                    latency_s=event.latency_s,
                    estimated_total_latency_s=self._total,
                    partial=self._missing > 0,
                )
            )

    def _on_round_started(self, event: ev.RoundStarted) -> None:
        self._task(event.task)
        self._rounds = max(self._rounds, event.round)
        self._changes["next_task"] = event.task

    def _on_round_searched(self, event: ev.RoundSearched) -> None:
        self._task(event.task)
        self._costs[0] += event.search_s

    def _on_round_finished(self, event: ev.RoundFinished) -> None:
        task = self._task(event.task)
        task.rounds.append((task.trials, task.best_latency_s))
        self._recent.append((self._used_s, self._trials))
        # the first mark of a session stands for its start, so that start-up does not slow the rate
        while len(self._recent) > 2 and self._trials - self._recent[1][1] >= _RATE_WINDOW:
            self._recent.pop(0)

    def _on_task_set_aside(self, event: ev.TaskSetAside) -> None:
        task = self._task(event.task)
        task.state, task.note = event.state, event.reason

    def _on_tuner_started(self, event: ev.TunerStarted) -> None:
        self._recent.clear()
        self._changes.update(
            phase="starting",
            message="",
            pid=event.pid,
            started=event.time,
            versions=event.versions,
            next_task=None,
        )

    def _on_phase(self, event: ev.PhaseChanged) -> None:
        self._changes["phase"] = event.phase
        self._recent = [(self._used_s, self._trials)]

    def _on_budget(self, event: ev.BudgetSet) -> None:
        self._changes["budget"] = Budget(trials=event.trials, seconds=event.seconds)

    def _on_focus(self, event: ev.FocusSet) -> None:
        self._changes["focus"] = event.tasks

    def _on_request_taken(self, event: ev.RequestTaken) -> None:
        self._requests[event.request] = RequestState(
            id=event.request, wish=event.wish, taken=event.time
        )

    def _on_request_done(self, event: ev.RequestDone) -> None:
        taken = self._requests.get(event.request)
        if taken is None:
            raise RunError(f"the journal ends request {event.request}, which was never taken")
        self._requests[event.request] = dataclasses.replace(
            taken, done=event.time, refused=event.refused
        )

    def _on_recovered(self, event: ev.Recovered) -> None:
        self._recovered.append(event.what)

    def _on_record_lost(self, event: ev.RecordLost) -> None:
        task = self._task(event.task)
        if task.best_latency_s is not None:
            self._total -= task.best_latency_s * task.info.weight
            self._missing += 1
        task.best_latency_s, task.best_trial = event.best_latency_s, event.best_trial
        task.best_record = event.best_record
        if task.best_latency_s is not None:
            self._total += task.best_latency_s * task.info.weight
            self._missing -= 1

    def _on_tuner_stopped(self, event: ev.TunerStopped) -> None:
        self._changes.update(phase=event.outcome, message=event.reason, next_task=None, pid=None)
