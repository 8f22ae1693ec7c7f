"""Checkpoint: the folded state of a long journal's beginning, so that opening it need not fold it.

It is a cache and nothing else: it may be deleted at any time, and one that does not fit the
journal, the tasks or this very code is not used. The journal remains the account of every trial.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any, BinaryIO

from autotune_nb.run import choices, devices, events, lines, records, state
from autotune_nb.run.records import (
    Budget,
    CurvePoint,
    ErrorCount,
    RequestState,
    State,
    TaskInfo,
    TaskState,
)

FILE = "journal.checkpoint"
_MIN_BYTES = 2 << 20  # below this, folding takes a tenth of a second
_GROWTH = 16  # a checkpoint is due when the journal has grown by this part of itself


def due(journal_bytes: int, checkpoint_bytes: int) -> bool:
    """Tell whether a journal is so much longer than what its checkpoint covers."""
    return journal_bytes - checkpoint_bytes >= max(_MIN_BYTES, journal_bytes // _GROWTH)


def write(journal: Path, current: State) -> None:
    """Keep `current`, the state after the whole of `journal`; nothing happens if it cannot be.

    Call it only while holding the run's lock.
    """
    try:
        size = journal.stat().st_size
        with journal.open("rb") as file:
            digest = _digest(file, size)
        body = json.dumps(current, default=_pack, separators=(",", ":"), allow_nan=False)
        head = {
            "journal_bytes": size,
            "journal": digest,
            "code": _code(),
            "tasks": _tasks(current),
            "state": hashlib.sha256(body.encode()).hexdigest(),
        }
        data = f"{json.dumps(head)}\n{body}\n".encode()
        lines.replace(journal.with_name(FILE), data, sync=False)
    except (OSError, ValueError):  # a full disk must not end the tuning for a cache
        return


def load(journal: BinaryIO, path: Path, initial: State) -> tuple[State, int] | None:
    """Return the state that fits the beginning of an open journal, and how many bytes that is.

    Parameters
    ----------
    journal
        The open journal.
    path
        Its path; the checkpoint lies beside it.
    initial
        The state before the journal's first event.
    """
    try:
        head_line, body = path.with_name(FILE).read_bytes().splitlines()
        head = json.loads(head_line)
        size = int(head["journal_bytes"])
        if (
            head["code"] == _code()
            and head["tasks"] == _tasks(initial)
            and head["state"] == hashlib.sha256(body).hexdigest()
            and head["journal"] == _digest(journal, size)
        ):
            return _unpack(json.loads(body), initial), size
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        pass
    return None


def _digest(file: BinaryIO, size: int) -> str:
    """Return the digest of the first `size` bytes, or of all there are."""
    file.seek(0)
    digest = hashlib.sha256()
    while size > 0 and (data := file.read(min(size, 1 << 20))):
        digest.update(data)
        size -= len(data)
    return digest.hexdigest()


def _code() -> str:
    """Return the digest of the code that makes a state, so that no older fold is trusted."""
    digest = hashlib.sha256()
    for module in (choices, devices, events, records, state):
        digest.update(Path(module.__file__ or "").read_bytes())
    digest.update(Path(__file__).read_bytes())
    return digest.hexdigest()


def _tasks(run: State) -> str:
    told = repr([task.info for task in run.tasks]) + repr(run.choices)
    return hashlib.sha256(told.encode()).hexdigest()


def _pack(value: Any) -> Any:
    if isinstance(value, TaskInfo):
        return value.id
    return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}


def _unpack(value: dict[str, Any], initial: State) -> State:
    tasks = [
        TaskState(
            **{
                **task,
                "info": first.info,
                "rounds": tuple((trials, best) for trials, best in task["rounds"]),
                "errors": tuple(ErrorCount(**error) for error in task["errors"]),
            }
        )
        for task, first in zip(value["tasks"], initial.tasks, strict=True)
    ]
    value["tasks"] = tuple(tasks)
    value["budget"] = Budget(**value["budget"])
    value["focus"] = None if value["focus"] is None else tuple(value["focus"])
    value["curve"] = tuple(CurvePoint(**point) for point in value["curve"])
    value["requests"] = tuple(RequestState(**request) for request in value["requests"])
    value["devices"] = tuple(devices.DeviceState.from_json(device) for device in value["devices"])
    value["recovered"] = tuple(value["recovered"])
    value["choices"] = initial.choices
    for pairs in ("recent", "open_rounds", "waiting"):
        value[pairs] = tuple((first, second) for first, second in value[pairs])
    return State(**value)
