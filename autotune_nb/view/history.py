"""A run at an earlier moment: its state after any number of trials."""

from __future__ import annotations

import bisect
from pathlib import Path

from autotune_nb.errors import RunError
from autotune_nb.run import lines
from autotune_nb.run.events import decode
from autotune_nb.run.salvage import salvage
from autotune_nb.run.state import State, fold

_STEP_BYTES = 1 << 20  # of journal between two states that are kept
_TRIAL = b'{"event":"trial",'  # how `events.encode` begins a trial's line


class History:
    """States of a run after each of its trials, made on demand from its journal.

    Parameters
    ----------
    path
        The journal.
    initial
        The state before its first event.
    """

    def __init__(self, path: Path, initial: State) -> None:
        self._path = path
        self._initial = initial
        self._restart()

    def _restart(self) -> None:
        self._offset = 0
        self._ends: list[int] = []  # of the nth trial's line, in bytes
        self._kept: list[tuple[int, State]] = [(0, self._initial)]

    @property
    def trials(self) -> int:
        """How many trials were read so far."""
        return len(self._ends)

    def read(self) -> None:
        """Read what is new in the journal."""
        size = self._path.stat().st_size if self._path.exists() else 0
        if size < self._offset:  # it was mended: begin again
            self._restart()
        raw, _ = lines.read(self._path, self._offset)
        for line in raw:
            self._offset += len(line) + 1
            if line.startswith(_TRIAL):
                self._ends.append(self._offset)

    def at(self, trials: int) -> State:
        """Return the state right after so many trials; beyond the last it is the newest."""
        self.read()
        if trials <= 0:
            return self._initial
        end = self._ends[trials - 1] if trials <= len(self._ends) else self._offset
        index = bisect.bisect_right([offset for offset, _ in self._kept], end) - 1
        done, state = self._kept[index]
        try:
            part: list[bytes] = []
            size = 0
            for line in self._between(done, end):
                part.append(line)
                size += len(line) + 1
                if size >= _STEP_BYTES:
                    state, done = fold(state, map(decode, part)), done + size
                    part, size = [], 0
                    if done > self._kept[-1][0]:
                        self._kept.append((done, state))
            return fold(state, map(decode, part))
        except RunError:  # a damaged line: passed over as the newest state does
            return salvage(self._initial, self._between(0, end)).state

    def _between(self, start: int, end: int) -> list[bytes]:
        with self._path.open("rb") as file:
            file.seek(start)
            return file.read(end - start).split(b"\n")[:-1]
