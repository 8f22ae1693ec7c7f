"""Requests: what any view, notebook or command line asks of the tuner, one line each."""

from __future__ import annotations

import dataclasses
import errno
import json
import math
import os
import time
import uuid
from pathlib import Path
from typing import Any

from autotune_nb.errors import InputError, RunError
from autotune_nb.run import lines

WISHES = ("budget", "pause", "resume", "stop", "focus")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One wish.

    Attributes
    ----------
    id
        Unique; the journal refers to it when the request is taken and when it took effect.
    wish
        ``budget`` (with `trials` and `seconds`, None for no limit), ``pause``, ``resume``,
        ``stop``, or ``focus`` (with `tasks`, None for all).
    time
        When it was made, in seconds since the Unix epoch.
    """

    id: str
    wish: str
    time: float
    trials: int | None = None
    seconds: float | None = None
    tasks: tuple[int, ...] | None = None


def append(path: Path, wish: str, **details: Any) -> Request:
    """Write a request and return it; `details` are the fields of `Request` that the wish needs.

    Raises
    ------
    InputError
        If there is no such wish.
    RunError
        If the file cannot be written to.
    """
    if wish not in WISHES:
        raise InputError(f"no request is called {wish!r}; there are {', '.join(WISHES)}")
    request = Request(id=uuid.uuid4().hex, wish=wish, time=time.time(), **details)
    value = {k: v for k, v in dataclasses.asdict(request).items() if v is not None}
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    try:
        _write(path, f"\n{text}\n".encode())
    except OSError as error:
        raise RunError(
            f"{path}: the {wish} cannot be asked for ({error.strerror}); free some space or make "
            "the directory writable"
        ) from error
    return request


def _write(path: Path, data: bytes) -> None:
    """Append in one write, beside other processes that do the same.

    The newline in front ends what a writer before may have left torn, so that only that one is
    lost. Nothing is taken back on failure: that would take another's request along.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    try:
        if os.write(descriptor, data) < len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read(path: Path, offset: int = 0) -> tuple[list[Request], int]:
    """Return the requests from byte `offset` on, and the offset after them.

    Lines that are no request are passed over: anybody may write to this file, and one writer's
    damage must not stop the tuner.
    """
    raw, end = lines.read(path, offset)
    requests = [request for line in raw if (request := _decode(line)) is not None]
    return requests, end


def _decode(line: bytes) -> Request | None:
    try:
        value = json.loads(line)
        request = Request(
            id=str(value["id"]),
            wish=str(value["wish"]),
            time=float(value["time"]),
            trials=None if value.get("trials") is None else int(value["trials"]),
            seconds=None if value.get("seconds") is None else float(value["seconds"]),
            tasks=None if value.get("tasks") is None else tuple(int(t) for t in value["tasks"]),
        )
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return None
    seconds = request.seconds
    good = request.wish in WISHES and (seconds is None or math.isfinite(seconds))
    return request if good else None
