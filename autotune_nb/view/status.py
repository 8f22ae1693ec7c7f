"""Where a run stands, from its state and its lock: what a view, the command line and JSON show."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

from autotune_nb.run.lock import Holder
from autotune_nb.run.state import State, TaskState
from autotune_nb.view import devices

_AT_WORK = frozenset({"starting", "tuning", "paused"})
SILENT_AFTER_S = 60.0  # a heartbeat older than this is worth telling


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """Where a run stands.

    Attributes
    ----------
    state
        The journal's phase (see `State`), or ``lost`` if the journal says that a tuner is at work
        and the lock says that none lives.
    heartbeat_age_s
        Seconds since the tuner's last sign of life; None while no tuner lives.
    text
        The same in words.
    """

    state: str
    heartbeat_age_s: float | None
    text: str

    @property
    def alive(self) -> bool:
        """True while a tuner is at work or paused."""
        return self.state in _AT_WORK


def status(state: State, holder: Holder | None = None, now: float | None = None) -> Status:
    """Tell where a run stands.

    Parameters
    ----------
    state
        What the journal says.
    holder
        What the lock says; None if nobody was asked, as for an imported run.
    now
        Seconds since the Unix epoch; the clock if None.
    """
    if holder is None:
        return Status(state=state.phase, heartbeat_age_s=None, text=_words(state))
    if not holder.alive:
        if state.phase in _AT_WORK:
            text = "lost: the tuner died without a word; resume to go on"
            return Status(state="lost", heartbeat_age_s=None, text=text)
        return Status(state=state.phase, heartbeat_age_s=None, text=_words(state))
    now = time.time() if now is None else now
    age = None if holder.heartbeat is None else max(0.0, now - holder.heartbeat)
    # the lock is taken before the first event is written, and given back after the last
    phase = state.phase if state.phase in _AT_WORK else "starting"
    text = phase
    if age is not None:
        text += f", last sign of life {age:.0f} s ago"
        if age > SILENT_AFTER_S:
            text += " (long: a search or build may be stuck)"
    return Status(state=phase, heartbeat_age_s=age, text=text)


def _words(state: State) -> str:
    return f"{state.phase}: {state.message}" if state.message else state.phase


def missing_results(state: State) -> int:
    """Return how many tasks have no result yet."""
    return sum(task.best_latency_s is None for task in state.tasks)


def progress(state: State) -> float | None:
    """Return the spent part of the budget, from 0 to 1; None without a budget.

    With a budget of trials and of seconds it is the one nearer to its end.
    """
    parts = []
    if state.budget.trials:
        parts.append(state.trials / state.budget.trials)
    if state.budget.seconds:
        parts.append(state.used_s / state.budget.seconds)
    return min(1.0, max(parts)) if parts else None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ErrorTotal:
    """How often trials of the whole run failed in one way."""

    kind: str
    count: int
    tasks: int
    first_message: str


def error_totals(state: State) -> list[ErrorTotal]:
    """Return the failures by kind over all tasks, most frequent first."""
    counts: dict[str, int] = {}
    tasks: dict[str, int] = {}
    messages: dict[str, str] = {}
    for task in state.tasks:
        for error in task.errors:
            counts[error.kind] = counts.get(error.kind, 0) + error.count
            tasks[error.kind] = tasks.get(error.kind, 0) + 1
            messages.setdefault(error.kind, error.first_message)
    return [
        ErrorTotal(kind=kind, count=counts[kind], tasks=tasks[kind], first_message=messages[kind])
        for kind in sorted(counts, key=lambda kind: (-counts[kind], kind))
    ]


def share(task: TaskState, total_s: float | None) -> float | None:
    """Return the task's part of the estimated total, from 0 to 1; None while unknown."""
    if not total_s or task.weighted_latency_s is None:
        return None
    return task.weighted_latency_s / total_s


def to_json(state: State, where: Status) -> dict[str, Any]:
    """Return what ``autotune-nb status --json`` prints; its keys are relied on by others."""
    return {
        "state": where.state,
        "message": state.message,
        "trials": state.trials,
        "failed_trials": state.failed_trials,
        "used_s": state.used_s,
        "trials_per_s": state.trials_per_s,
        "time_left_s": state.time_left_s,
        "estimated_total_latency_s": state.estimated_total_latency_s,
        "partial": state.partial,
        "next_task": state.next_task,
        "budget": {"trials": state.budget.trials, "seconds": state.budget.seconds},
        "heartbeat_age_s": where.heartbeat_age_s,
        **devices.to_json(state),
        "tasks": [
            {
                "id": task.info.id,
                "name": task.info.name,
                "weight": task.info.weight,
                "flops": task.info.flops,
                "latency_s": task.best_latency_s,
                "gflops": task.gflops,
                "trials": task.trials,
                "failures": task.failures,
                "state": task.state,
            }
            for task in state.tasks
        ],
    }
