"""What each device has measured: part of a run's state, folded from its journal."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

from autotune_nb.run import events as ev

_WINDOW = 32  # trials over which a device's speed is taken


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DeviceState:
    """One device so far.

    Attributes
    ----------
    name
        Such as ``cpu``, ``cuda:1``, or ``host:port`` of a server.
    trials, failures
        Trials it measured, and trials that failed on it.
    lost
        Measurements that were lost on it, which are no trials.
    marks
        Tuning time at which its last trials ended, in seconds; `trials_per_s` is taken from it.
    present
        False for a server that the tracker no longer knows.
    """

    name: str
    trials: int = 0
    failures: int = 0
    lost: int = 0
    marks: tuple[float, ...] = ()
    present: bool = True

    @property
    def trials_per_s(self) -> float | None:
        """Its speed over its last trials, in trials per second of tuning; None if unknown."""
        if len(self.marks) < 2 or self.marks[-1] <= self.marks[0]:
            return None
        return (len(self.marks) - 1) / (self.marks[-1] - self.marks[0])

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> DeviceState:
        """Make one of what JSON left of it."""
        return cls(**{**value, "marks": tuple(value["marks"])})


class DevicesDraft:
    """The devices while a batch of events is applied."""

    def __init__(self, devices: Iterable[DeviceState], waiting: Iterable[tuple[int, int]]) -> None:
        self._devices = {device.name: device for device in devices}
        self._waiting = dict(waiting)

    def freeze(self) -> tuple[DeviceState, ...]:
        """Return the devices as they now are, in order of their first appearance."""
        return tuple(self._devices.values())

    def waiting(self) -> tuple[tuple[int, int], ...]:
        """Return the rounds with candidates that are not measured yet, and how many."""
        return tuple(self._waiting.items())

    def trial(self, event: ev.TrialDone, used_s: float) -> None:
        """Count a trial for its device; what failed before it was measured counts for none."""
        self._less(event.round)
        if not event.device or not (event.measure_s or event.latency_s):
            return
        old = self._known(event.device)
        self._devices[event.device] = dataclasses.replace(
            old,
            trials=old.trials + 1,
            failures=old.failures + (event.latency_s is None),
            marks=(*old.marks, used_s)[-_WINDOW:],
        )

    def lost(self, event: ev.MeasurementLost) -> None:
        """Count a measurement that was lost."""
        old = self._known(event.device)
        self._devices[event.device] = dataclasses.replace(old, lost=old.lost + 1)
        if event.dropped:
            self._less(event.round)

    def searched(self, event: ev.RoundSearched) -> None:
        """Take note of the candidates of a round."""
        self._waiting[event.round] = event.candidates

    def finished(self, number: int) -> None:
        """Forget what is left of a round, which was dropped."""
        self._waiting.pop(number, None)

    def seen(self, event: ev.DevicesSeen) -> None:
        """Take note of who is there."""
        for name in dict.fromkeys([*self._devices, *event.present]):
            old = self._known(name)
            self._devices[name] = dataclasses.replace(old, present=name in event.present)

    def rest(self) -> None:
        """Forget when trials ended: a tuner starts, and what was before it makes no device slow."""
        self._waiting.clear()
        for name, old in self._devices.items():
            self._devices[name] = dataclasses.replace(old, marks=())

    def _less(self, number: int) -> None:
        if self._waiting.get(number, 0) > 0:
            self._waiting[number] -= 1

    def _known(self, name: str) -> DeviceState:
        return self._devices.get(name) or DeviceState(name=name)
