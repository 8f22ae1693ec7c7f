"""The journal: a run's events on disk, appended by one tuner and followed by any reader."""

from __future__ import annotations

import dataclasses
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from autotune_nb.errors import RunError
from autotune_nb.run import checkpoint, lines
from autotune_nb.run.events import Event, decode, encode
from autotune_nb.run.records import State
from autotune_nb.run.salvage import salvage
from autotune_nb.run.state import fold

FILE = "journal.jsonl"


def append(path: Path, events: Sequence[Event], *, sync: bool = False) -> int:
    """Append events to a journal and return its new size; see `lines.append` for what can fail."""
    return lines.append(path, [encode(event) for event in events], sync=sync)


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
    """A reader that keeps a run's state up to date as its journal grows; safe to share by threads.

    It changes nothing. Damaged lines are passed over as `recovery.mend` would, and the state's
    `recovered` says so, until the run is opened for tuning and mended.

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
        self._lock = threading.Lock()
        self._restart()

    def _restart(self, inode: int = 0) -> None:
        self._state = self._initial
        self._offset = 0
        self._inode = inode
        self._tail = b""

    def poll(self) -> State:
        """Read what is new and return the state after it.

        Raises
        ------
        RunError
            If the journal cannot be read at all.
        """
        with self._lock:
            try:
                with self._path.open("rb") as file:
                    self._catch_up(file)
            except FileNotFoundError:
                self._restart()
            except OSError as error:
                raise RunError(
                    f"{self._path}: cannot be read ({error.strerror}); check its permissions"
                ) from error
            return self._state

    def _catch_up(self, file: BinaryIO) -> None:
        inode = os.fstat(file.fileno()).st_ino
        # A mended journal is another file, and an append that was taken back may have been read.
        if inode != self._inode or self._read_tail(file) != self._tail:
            self._restart(inode)
            if found := checkpoint.load(file, self._path, self._initial):
                self._state, self._offset = found
        file.seek(self._offset)
        for part, end in lines.chunks(file):
            try:
                self._state = fold(self._state, map(decode, part))
            except RunError:
                self._salvage(file)
                break
            self._offset = end
        self._tail = self._read_tail(file)

    def _read_tail(self, file: BinaryIO) -> bytes:
        """Return the last bytes of what was read, which say whether it is still there."""
        start = max(0, self._offset - 64)
        file.seek(start)
        return file.read(self._offset - start)

    def _salvage(self, file: BinaryIO) -> None:
        file.seek(0)
        raw: list[bytes] = []
        for part, self._offset in lines.chunks(file):
            raw += part
        found = salvage(self._initial, raw)
        note = (
            f"{self._path.name}: {len(found.taken_out)} damaged lines passed over, {found.filled} "
            "trials counted as lost; open the run for tuning to mend it"
        )
        self._state = dataclasses.replace(found.state, recovered=(*found.state.recovered, note))
