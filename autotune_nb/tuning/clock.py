"""The tuner's clock: time spent tuning, over all sessions, without pauses."""

from __future__ import annotations

import time


class Clock:
    """Counts on from `used_s` seconds while it is not paused."""

    def __init__(self, used_s: float) -> None:
        self._before = used_s
        self._since: float | None = time.monotonic()

    @property
    def used_s(self) -> float:
        """Seconds spent so far."""
        if self._since is None:
            return self._before
        return self._before + time.monotonic() - self._since

    def pause(self) -> None:
        """Stop counting."""
        self._before, self._since = self.used_s, None

    def resume(self) -> None:
        """Count on; does nothing while it counts."""
        if self._since is None:
            self._since = time.monotonic()
