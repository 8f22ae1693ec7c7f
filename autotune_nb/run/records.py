"""What a run is made of: tasks, trials and budgets, as plain values."""

from __future__ import annotations

import dataclasses
from typing import Any


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TaskInfo:
    """A subgraph to tune, as extracted from the network.

    Attributes
    ----------
    id
        Position in the run, from 0; also the line of its workload in ``database_workload.json``.
    name
        TVM's name of the fused function, for example ``fused_conv2d_add_relu``.
    weight
        How often the subgraph occurs in the network.
    flops
        Floating-point operations of one execution, as TVM estimates them.
    workload_hash
        TVM's structural hash of the TensorIR, as decimal text.
    operators
        The operators fused into it, in order.
    shapes
        Its buffers as ``dtype[d0, d1, …]``, outputs last.
    trivial
        True where there is no arithmetic worth tuning (a reshape, a copy).
    """

    id: int
    name: str
    weight: int
    flops: float
    workload_hash: str
    operators: tuple[str, ...] = ()
    shapes: tuple[str, ...] = ()
    trivial: bool = False

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> TaskInfo:
        """Make a task from what `dataclasses.asdict` and JSON left of it."""
        fields = {f.name for f in dataclasses.fields(cls)}
        kept = {k: v for k, v in value.items() if k in fields}
        kept["operators"] = tuple(kept.get("operators", ()))
        kept["shapes"] = tuple(kept.get("shapes", ()))
        return cls(**kept)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What a run may spend in all, over every session: trials, seconds of tuning, or both.

    None means no limit of that kind. Tuning ends when the first limit is reached.
    """

    trials: int | None = None
    seconds: float | None = None

    def reached(self, trials: int, used_s: float) -> bool:
        """Tell whether `trials` and `used_s` spent exhaust this budget."""
        return (self.trials is not None and trials >= self.trials) or (
            self.seconds is not None and used_s >= self.seconds
        )

    def __str__(self) -> str:
        parts = []
        if self.trials is not None:
            parts.append(f"{self.trials} trials")
        if self.seconds is not None:
            parts.append(f"{self.seconds:g} s")
        return " or ".join(parts) or "no limit"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ErrorCount:
    """How often trials of a task failed in one way, and the first message of that kind."""

    kind: str
    count: int
    first_message: str
