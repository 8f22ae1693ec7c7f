"""Rounds and candidates while they are under way, and what happens to them."""

from __future__ import annotations

import dataclasses

from autotune_nb.tuning.messages import Candidate
from autotune_nb.tuning.process import Worker


@dataclasses.dataclass(slots=True, kw_only=True)
class Item:
    """A candidate on its way."""

    round: Round
    source: Candidate
    status: str = "queued"  # then building, built, measuring, done
    holder: Worker | None = None
    generation: int = 0
    losses: int = 0  # how often its holder, or what measured it, was gone through no fault of it
    device: str = ""  # what measures it
    lost_on: set[str] = dataclasses.field(default_factory=set)
    build_s: float = 0.0

    @property
    def key(self) -> str:
        """The candidate's hash."""
        return self.source.key


@dataclasses.dataclass(slots=True, kw_only=True)
class Round:
    """One task's batch: `count` candidates asked for, and those the search found."""

    number: int
    task: int
    count: int
    items: list[Item] = dataclasses.field(default_factory=list)
    searched: bool = False
    results: list[tuple[str, list[float]]] = dataclasses.field(default_factory=list)
    search_s: float = 0.0
    build_s: float = 0.0
    measure_s: float = 0.0

    @property
    def finished(self) -> bool:
        """True once every candidate is done."""
        return self.searched and all(item.status == "done" for item in self.items)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Searched:
    """A round's search has ended; `error` is empty unless the search itself failed."""

    round: Round
    error: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A candidate is done: `latencies_s`, or the kind of its error and the message."""

    item: Item
    latencies_s: list[float]
    error_kind: str = ""
    error: str = ""
    measure_s: float = 0.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """All candidates of a round are done, and what they taught is on its way to the searcher."""

    round: Round


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Gone:
    """A measurement that says nothing of its candidate; `dropped` if it is not tried again."""

    item: Item
    device: str
    reason: str
    dropped: bool


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Devices:
    """Other devices measure from now on than before."""

    present: tuple[str, ...]


Outcome = Searched | Measured | Finished | Gone | Devices
