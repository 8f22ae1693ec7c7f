"""Journal events: what happened to a run, when, at what cost, and with what error.

Each event is one line of JSON. `time` is in seconds since the Unix epoch; `used_s` is the time
spent tuning so far, over all sessions, without pauses.
"""

from __future__ import annotations

import dataclasses
import json
import typing
from collections.abc import Iterable
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
class MeasurementLost(Event):
    """A server was gone, or hung, before it had measured a candidate; this is no trial.

    Attributes
    ----------
    candidate
        Hash of the scheduled module.
    device
        The server.
    reason
        What is known of it.
    dropped
        True if the candidate is not tried again.
    """

    kind: ClassVar[str] = "measurement_lost"
    round: int
    task: int
    candidate: str
    device: str
    reason: str = ""
    dropped: bool = False


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DevicesSeen(Event):
    """These devices are there to measure from now on."""

    kind: ClassVar[str] = "devices"
    present: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RoundFinished(Event):
    """All trials of a round are done (or were dropped by a stop)."""

    kind: ClassVar[str] = "round_finished"
    round: int
    task: int
    trials: int
    build_s: float
    measure_s: float
    learn_s: float = 0.0


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
        MeasurementLost,
        DevicesSeen,
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


@dataclasses.dataclass(frozen=True, slots=True)
class _Shape:
    """What JSON may hold for a field: plain types, or a list or dictionary of some."""

    plain: frozenset[type]
    container: type | None = None
    items: frozenset[type] = frozenset()


def _shape(hint: Any) -> _Shape:
    options = typing.get_args(hint) if type(None) in typing.get_args(hint) else (hint,)
    plain: set[type] = set()
    for option in options:
        origin, args = typing.get_origin(option), typing.get_args(option)
        if origin is not None:
            inner = _shape(args[1] if origin is dict else args[0]).plain
            container = dict if origin is dict else list
            return _Shape(frozenset({type(None)} & set(options)), container, inner)
        plain |= {int, float} if option is float else {option}
    return _Shape(frozenset(plain))


_SHAPES: dict[type[Event], dict[str, _Shape]] = {
    cls: {f.name: _shape(typing.get_type_hints(cls)[f.name]) for f in dataclasses.fields(cls)}
    for cls in EVENT_TYPES.values()
}


def _refuse(name: str) -> float:
    raise ValueError(f"{name} is no number of JSON")  # Python's json would take NaN and Infinity


_JSON = json.JSONDecoder(parse_constant=_refuse)


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
    """Return the event of one journal line; fields that this version does not know are left out.

    Raises
    ------
    RunError
        If the line is no event this version knows, or a field is missing or of another type.
    """
    try:
        value = _JSON.decode(line.decode() if isinstance(line, bytes) else line)
        cls = EVENT_TYPES[value.pop("event")]
        shapes = _SHAPES[cls]
        for name, item in tuple(value.items()):
            shape = shapes.get(name)
            if shape is None:
                del value[name]
            elif type(item) not in shape.plain:
                value[name] = _contained(item, shape)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise RunError(f"not a journal event: {_shorten(line)}") from error
    try:
        return cls(**value)
    except TypeError as error:
        raise RunError(f"incomplete journal event ({error}): {_shorten(line)}") from error


def _contained(item: list[Any] | dict[str, Any], shape: _Shape) -> Any:
    if type(item) is not shape.container:
        raise TypeError(f"a field cannot be {item!r}")
    held: Iterable[object] = item.values() if isinstance(item, dict) else item
    if not shape.items.issuperset(map(type, held)):
        raise TypeError(f"a field cannot hold all of {item!r}")
    return tuple(item) if type(item) is list else item


def _shorten(line: str | bytes) -> str:
    text = line.decode("utf-8", "replace") if isinstance(line, bytes) else line
    return repr(text if len(text) <= 80 else text[:77] + "...")
