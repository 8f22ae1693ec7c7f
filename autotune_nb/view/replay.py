"""Replay: a recorded run played back through the same view, without TVM and without hardware."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from autotune_nb.errors import InputError
from autotune_nb.run import events as ev
from autotune_nb.run.manifest import Manifest
from autotune_nb.run.state import Draft, State, initial
from autotune_nb.view.source import Source, directory_of, events_of
from autotune_nb.view.widgets import View

_UNTIMED_RATE = 4.0  # trials a second of a recording that holds no times


class Replay:
    """A recorded run whose events happen again, `speed` times as fast.

    It stands where a `RunDirectory` stands in a view. Pauses of the recorded run are left out.

    Parameters
    ----------
    source
        The recorded run: a session, a run directory or its path.
    speed
        How many recorded seconds go by in one second.
    clock
        What tells the time, in seconds; tests pass their own.

    Raises
    ------
    InputError
        If `source` has no journal, or the speed is not positive.
    """

    def __init__(
        self,
        source: Source,
        speed: float = 20.0,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        directory = directory_of(source)
        if directory is None:
            raise InputError("a state cannot be replayed; pass the session or its run directory")
        self._directory = directory
        self._clock = clock
        self._lock = threading.Lock()
        self._events = events_of(directory)
        self._dues = list(_dues(self._events))
        self._speed = 0.0
        self._played = 0.0  # recorded seconds
        self._since = clock()
        self._rewind()
        self.speed = speed

    def _rewind(self) -> None:
        self._next = 0
        manifest = self._directory.manifest
        self._state = initial(manifest.tasks, manifest.choices)

    @property
    def path(self) -> Path:
        """The recorded run's directory."""
        return self._directory.path

    @property
    def manifest(self) -> Manifest:
        """What the recorded run tuned."""
        return self._directory.manifest

    @property
    def journal(self) -> Path:
        """The recorded events, all of them."""
        return self._directory.journal

    @property
    def requests(self) -> Path:
        """Where wishes would go; nobody reads them."""
        return self._directory.requests

    def holder(self) -> None:
        """Tell who tunes the run: nobody."""
        return

    @property
    def length_s(self) -> float:
        """How many recorded seconds there are."""
        return self._dues[-1] if self._dues else 0.0

    @property
    def position_s(self) -> float:
        """How many recorded seconds were played."""
        return min(self.length_s, self._played + (self._clock() - self._since) * self._speed)

    @property
    def done(self) -> bool:
        """True once everything was played."""
        return self.position_s >= self.length_s

    @property
    def speed(self) -> float:
        """How many recorded seconds go by in one second; 0 stands still."""
        return self._speed

    @speed.setter
    def speed(self, value: float) -> None:
        if not (math.isfinite(value) and value >= 0):
            raise InputError(f"speed={value}: not a speed; pass 0 to stand still, 20 for 20 times")
        with self._lock:
            self._played, self._since = self.position_s, self._clock()
            self._speed = float(value)

    def seek(self, seconds: float) -> None:
        """Go on from so many recorded seconds."""
        with self._lock:
            self._played = min(max(0.0, seconds), self.length_s)
            self._since = self._clock()
            if self._next and self._dues[self._next - 1] > self._played:
                self._rewind()

    def poll(self) -> State:
        """Let happen what is due, and return the state."""
        with self._lock:
            now = self.position_s
            draft = None
            while self._next < len(self._events) and self._dues[self._next] <= now:
                draft = draft or Draft(self._state)
                draft.apply(self._events[self._next])
                self._next += 1
            if draft is not None:
                self._state = draft.freeze()
            return self._state


def _dues(events: list[ev.Event]) -> Iterator[float]:
    """Return at which recorded second each event happens."""
    timed = any(event.used_s for event in events)
    now = 0.0
    for event in events:
        if timed:
            now = max(now, event.used_s)
        elif isinstance(event, ev.TrialDone):
            now += 1 / _UNTIMED_RATE
        yield now


def replay(source: Source, speed: float = 20.0) -> View:
    """Return a live view in which a recorded run happens again.

    Parameters
    ----------
    source
        The recorded run: a session, a run directory or its path.
    speed
        How many recorded seconds go by in one second. A recording without times, such as an
        imported one, plays four trials a second at speed 1.
    """
    return View(Replay(source, speed))
