"""Requests: what any view, notebook or command line asks of the tuner, one line each."""

from __future__ import annotations

import dataclasses
import json
import time
import uuid
from pathlib import Path
from typing import Any

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
    """Write a request and return it; `details` are the fields of `Request` that the wish needs."""
    request = Request(id=uuid.uuid4().hex, wish=wish, time=time.time(), **details)
    value = {k: v for k, v in dataclasses.asdict(request).items() if v is not None}
    line = json.dumps(value, separators=(",", ":"))
    # A writer that was killed may have left half a line: end it, so that only that one is lost.
    torn = _ends_torn(path)
    lines.append(path, ["", line] if torn else [line], sync=True)
    return request


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
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    return request if request.wish in WISHES else None


def _ends_torn(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            file.seek(-1, 2)
            return file.read(1) != b"\n"
    except (FileNotFoundError, OSError):
        return False
