"""The journal: a run's events on disk, appended by one tuner and followed by any reader."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from autotune_nb.errors import RunError
from autotune_nb.run import lines
from autotune_nb.run.events import Event, decode, encode
from autotune_nb.run.state import State, fold

FILE = "journal.jsonl"


def append(path: Path, events: Sequence[Event], *, sync: bool = False) -> None:
    """Append events to a journal; see `lines.append` for what can fail."""
    lines.append(path, [encode(event) for event in events], sync=sync)


def read(path: Path, offset: int = 0) -> tuple[list[Event], int]:
    """Return the events from byte `offset` on, and the offset after them.

    Raises
    ------
    RunError
        Naming file and line, if a whole line is no event.
    """
    raw, end = lines.read(path, offset)
    events = []
    for number, line in enumerate(raw, 1):
        try:
            events.append(decode(line))
        except RunError as error:
            where = f"line {number}" if offset == 0 else f"line {number} after byte {offset}"
            raise RunError(
                f"{path}, {where}: {error}; open the run for tuning to set the line aside"
            ) from error
    return events, end


class Follower:
    """A reader that keeps a run's state up to date as its journal grows.

    Parameters
    ----------
    path
        The journal; it may not exist yet.
    state
        The state before its first event.
    """

    def __init__(self, path: Path, state: State) -> None:
        self._path = path
        self._initial = state
        self._state = state
        self._offset = 0

    def poll(self) -> State:
        """Read what is new and return the state after it."""
        try:
            size = self._path.stat().st_size
        except FileNotFoundError:
            size = 0
        if size < self._offset:  # the tuner set a damaged line aside: read again from the start
            self._state, self._offset = self._initial, 0
        if size > self._offset:
            events, self._offset = read(self._path, self._offset)
            self._state = fold(self._state, events)
        return self._state
