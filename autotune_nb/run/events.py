"""Journal events: what happened to a run, when, at what cost, and with what error.

Each event is one line of JSON. `time` is in seconds since the Unix epoch; `used_s` is the time
spent tuning so far, over all sessions, without pauses.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any, ClassVar

from autotune_nb.errors import RunError


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happened to a run."""

    kind: ClassVar[str] = ""
    time: float
    used_s: float = 0.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TunerStarted(Event):
    """A tuner process took the run's lock."""

    kind: ClassVar[str] = "tuner_started"
    pid: int
    host: str
    versions: dict[str, str]
    workers: dict[str, int]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PhaseChanged(Event):
    """The tuner went over to another phase: starting, tuning or paused."""

    kind: ClassVar[str] = "phase"
    phase: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BudgetSet(Event):
    """The run has a new budget; None means no limit."""

    kind: ClassVar[str] = "budget"
    trials: int | None = None
    seconds: float | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FocusSet(Event):
    """Only these tasks get trials from now on; None means all of them."""

    kind: ClassVar[str] = "focus"
    tasks: tuple[int, ...] | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RoundStarted(Event):
    """The scheduler picked a task and its search began."""

    kind: ClassVar[str] = "round_started"
    round: int
    task: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RoundSearched(Event):
    """The search of a round ended with this many candidates."""

    kind: ClassVar[str] = "round_searched"
    round: int
    task: int
    candidates: int
    search_s: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TrialDone(Event):
    """One candidate was built and measured, or failed on the way.

    Attributes
    ----------
    trial
        Its number in the run, from 1 without gaps.
    candidate
        Hash of the scheduled module: a run measures no candidate twice.
    latency_s
        Mean latency in seconds; None for a failed trial.
    latencies_s
        What each repeat gave, in seconds.
    error_kind, error
        ``build``, ``build_timeout``, ``build_crash``, ``measure``, ``measure_timeout``,
        ``measure_crash`` or ``lost``, and the message; empty for a good trial.
    build_s, measure_s
        Wall-clock cost of the two steps.
    record
        Digest of the line in ``database_tuning_record.json`` that holds the schedule.
    device
        What measured it.
    """

    kind: ClassVar[str] = "trial"
    trial: int
    round: int
    task: int
    candidate: str
    latency_s: float | None = None
    latencies_s: tuple[float, ...] = ()
    error_kind: str = ""
    error: str = ""
    build_s: float = 0.0
    measure_s: float = 0.0
    record: str = ""
    device: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RoundFinished(Event):
    """All trials of a round are done (or were dropped by a stop)."""

    kind: ClassVar[str] = "round_finished"
    round: int
    task: int
    trials: int
    build_s: float
    measure_s: float
    update_s: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TaskSetAside(Event):
    """A task gets no more trials: ``failed`` (with its first error) or ``exhausted``."""

    kind: ClassVar[str] = "task_set_aside"
    task: int
    state: str
    reason: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RequestTaken(Event):
    """The tuner read a request and will act on it."""

    kind: ClassVar[str] = "request_taken"
    request: str
    wish: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RequestDone(Event):
    """A request took effect, or was refused with a message."""

    kind: ClassVar[str] = "request_done"
    request: str
    refused: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Recovered(Event):
    """Something was found broken when the run was opened for writing, and put right."""

    kind: ClassVar[str] = "recovered"
    what: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RecordLost(Event):
    """The schedule of a task's best trial is gone from the database.

    The trial stays spent, but is a result no more; the task's best is now `best_trial`.
    """

    kind: ClassVar[str] = "record_lost"
    trial: int
    task: int
    best_trial: int | None = None
    best_latency_s: float | None = None
    best_record: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TunerStopped(Event):
    """The tuner let go of the run: ``finished``, ``stopped`` or ``failed``, and why."""

    kind: ClassVar[str] = "tuner_stopped"
    outcome: str
    reason: str = ""


EVENT_TYPES: dict[str, type[Event]] = {
    cls.kind: cls
    for cls in (
        TunerStarted,
        PhaseChanged,
        BudgetSet,
        FocusSet,
        RoundStarted,
        RoundSearched,
        TrialDone,
        RoundFinished,
        TaskSetAside,
        RequestTaken,
        RequestDone,
        Recovered,
        RecordLost,
        TunerStopped,
    )
}
_DEFAULTS: dict[type[Event], dict[str, Any]] = {
    cls: {
        f.name: f.default
        for f in dataclasses.fields(cls)
        if f.default is not dataclasses.MISSING and f.name != "used_s"
    }
    for cls in EVENT_TYPES.values()
}
_NAMES: dict[type[Event], frozenset[str]] = {
    cls: frozenset(f.name for f in dataclasses.fields(cls)) for cls in EVENT_TYPES.values()
}


def encode(event: Event) -> str:
    """Return the event as one line of JSON, without the newline; defaults are left out."""
    cls = type(event)
    defaults = _DEFAULTS[cls]
    value: dict[str, Any] = {"event": cls.kind}
    for field in dataclasses.fields(cls):
        item = getattr(event, field.name)
        if field.name not in defaults or item != defaults[field.name]:
            value[field.name] = item
    # allow_nan=False: a NaN would make a line that other JSON readers refuse
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


def decode(line: str | bytes) -> Event:
    """Return the event of one journal line.

    Raises
    ------
    RunError
        If the line is no event this version knows.
    """
    try:
        value = json.loads(line)
        cls = EVENT_TYPES[value.pop("event")]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise RunError(f"not a journal event: {_shorten(line)}") from error
    names = _NAMES[cls]
    for name, item in value.items():
        if type(item) is list:
            value[name] = tuple(item)
    try:
        return cls(**{name: item for name, item in value.items() if name in names})
    except TypeError as error:
        raise RunError(f"incomplete journal event ({error}): {_shorten(line)}") from error


def _shorten(line: str | bytes) -> str:
    text = line.decode("utf-8", "replace") if isinstance(line, bytes) else line
    return repr(text if len(text) <= 80 else text[:77] + "...")
