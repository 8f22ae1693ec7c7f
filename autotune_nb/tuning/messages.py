"""What the tuner and its workers tell each other; free of TVM, which the tuner never loads."""

from __future__ import annotations

import dataclasses
from typing import Any

# Environment variable with the target that the fork server prepares TVM for.
TARGET_VARIABLE = "AUTOTUNE_NB_TARGET"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SearchOptions:
    """Settings of the evolutionary search of one run; see `run.manifest.Options`.

    `fresh` is the least number of new random schedules in the population of a round.
    """

    population: int
    fresh: int
    generations: int
    batch_size: int
    seed: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A schedule to build and measure, as text, so that any process can take it.

    Attributes
    ----------
    key
        Structural hash of the scheduled module in hex; a run measures no key twice.
    module
        The scheduled module, as ``tvm.ir.save_json`` gives it.
    trace, target, args_info
        What TVM's tuning record holds beside the times, as JSON values.
    """

    key: str
    module: str
    trace: Any
    target: Any
    args_info: Any


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MeasureOptions:
    """How a candidate is timed.

    Attributes
    ----------
    repeats, min_repeat_ms
        It is timed `repeats` times, each over at least `min_repeat_ms` milliseconds.
    best_s
        The task's best latency in seconds, or None.
    give_up
        A candidate whose first run takes more than `give_up` times `best_s` is not timed further.
    cool_down_ms
        Pause before the first run, in milliseconds.
    between_bytes
        What the network touches between two executions of the candidate; 0 for nothing. On CPUs
        the candidate is timed on weights as cold as that makes them; see `cold`.
    """

    repeats: int
    min_repeat_ms: int
    best_s: float | None
    give_up: float = 3.0
    cool_down_ms: int = 0
    between_bytes: int = 0
