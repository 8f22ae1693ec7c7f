"""What a run is made of and what has become of it, as plain values: tasks, budget, state."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from autotune_nb.errors import BudgetError
from autotune_nb.run.devices import DeviceState


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
class Formulation:
    """One way to compute what a `Choice` is about.

    Attributes
    ----------
    name
        ``direct``, or the algorithm, for example ``winograd4``.
    tasks
        IDs of the tasks that one execution runs; one that runs twice is named twice.
    """

    name: str
    tasks: tuple[int, ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A part of the network with several formulations, of which the fastest counts.

    Attributes
    ----------
    name
        TVM's name of the function that computes it directly.
    weight
        How often it occurs in the network.
    formulations
        The direct one first.
    """

    name: str
    weight: int
    formulations: tuple[Formulation, ...]

    @classmethod
    def from_json(cls, value: dict[str, Any], tasks: int) -> Choice:
        """Make a choice, between tasks of a run of `tasks`, of what JSON left of it."""
        formulations = tuple(
            Formulation(name=f["name"], tasks=tuple(f["tasks"])) for f in value["formulations"]
        )
        if not formulations or not all(f.tasks for f in formulations):
            raise TypeError(f"its choice {value['name']} has no formulation, or one of no tasks")
        if any(not 0 <= task < tasks for f in formulations for task in f.tasks):
            raise TypeError(f"its choice {value['name']} names a task that does not exist")
        return cls(name=value["name"], weight=value["weight"], formulations=formulations)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What a run may spend in all, over every session: trials, seconds of tuning, or both.

    None means no limit of that kind. Tuning ends when the first limit is reached.
    """

    trials: int | None = None
    seconds: float | None = None

    @classmethod
    def checked(cls, trials: float | None, seconds: float | None) -> Budget:
        """Make a budget of what a person passed.

        Raises
        ------
        BudgetError
            If `trials` is no whole number from 1, or `seconds` is not a positive number.
        """
        if trials is not None and (
            isinstance(trials, bool) or not 1 <= trials < math.inf or trials != int(trials)
        ):
            raise BudgetError(f"a budget of {trials} trials is not possible; pass a number from 1")
        if seconds is not None and not 0 < seconds < math.inf:
            raise BudgetError(
                f"a budget of {seconds} seconds is not possible; pass a number above 0"
            )
        return cls(
            trials=None if trials is None else int(trials),
            seconds=None if seconds is None else float(seconds),
        )

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


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TaskState:
    """One task so far.

    Attributes
    ----------
    info
        The task itself.
    trials, failures
        Trials spent on it, and how many of these failed.
    best_latency_s, best_trial, best_record
        The best result, its trial number and its record's digest; None before the first.
    rounds
        Finished rounds as (trials spent, best latency or None) after each: what the gradient
        scheduler learns from.
    state
        ``waiting`` (no trial yet), ``tuning``, ``failed`` (until a tuner starts again),
        ``exhausted`` or ``dropped`` (its formulation is too slow).
    note
        Why the task was set aside.
    errors
        Failures by kind.
    uses
        For the task of a `Choice`, how often the network runs it as things stand: 0 while another
        formulation is chosen. None for any other task, which always runs.
    """

    info: TaskInfo
    trials: int = 0
    failures: int = 0
    best_latency_s: float | None = None
    best_trial: int | None = None
    best_record: str = ""
    rounds: tuple[tuple[int, float | None], ...] = ()
    state: str = "waiting"
    note: str = ""
    errors: tuple[ErrorCount, ...] = ()
    uses: int | None = None

    @property
    def weight(self) -> int:
        """How often the network runs the task as things stand."""
        return self.info.weight if self.uses is None else self.uses

    @property
    def missing(self) -> bool:
        """True for a task that the network runs and that has no result."""
        return self.best_latency_s is None and self.uses != 0

    @property
    def gflops(self) -> float | None:
        """Speed of the best schedule in GFLOPS, or None before the first result."""
        if self.best_latency_s is None:
            return None
        return self.info.flops / self.best_latency_s / 1e9

    @property
    def weighted_latency_s(self) -> float | None:
        """Latency times weight: the task's part of the estimated total, 0 if it is not chosen."""
        if self.best_latency_s is None:
            return None
        return self.best_latency_s * self.weight


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CurvePoint:
    """A trial that improved its task, and what the whole run then stood at."""

    trial: int
    used_s: float
    task: int
    latency_s: float
    estimated_total_latency_s: float
    partial: bool


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RequestState:
    """A request the tuner has read: what it asked, when it was taken and took effect."""

    id: str
    wish: str
    taken: float
    done: float | None = None
    refused: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """Everything a run is, after some events.

    Attributes
    ----------
    phase
        ``new``, ``starting``, ``tuning``, ``paused``, ``stopped``, ``finished`` or ``failed``:
        what the journal last said. Whether the tuner lives is for the lock to say.
    open_rounds
        (round, task) of the rounds under way, oldest first.
    search_s, build_s, measure_s
        Time spent in each step; builds and searches overlap, so the sum may exceed `used_s`.
    recent
        (used_s, trials) marks from which `trials_per_s` is taken.
    devices
        Who measured, in order of their first trial.
    waiting
        (round, candidates) that were found and are not measured yet.
    choices
        Parts of the network that have several formulations.
    """

    tasks: tuple[TaskState, ...]
    phase: str = "new"
    message: str = ""
    trials: int = 0
    failed_trials: int = 0
    rounds: int = 0
    used_s: float = 0.0
    budget: Budget = Budget()
    focus: tuple[int, ...] | None = None
    open_rounds: tuple[tuple[int, int], ...] = ()
    search_s: float = 0.0
    build_s: float = 0.0
    measure_s: float = 0.0
    curve: tuple[CurvePoint, ...] = ()
    requests: tuple[RequestState, ...] = ()
    recovered: tuple[str, ...] = ()
    recent: tuple[tuple[float, int], ...] = ()
    devices: tuple[DeviceState, ...] = ()
    waiting: tuple[tuple[int, int], ...] = ()
    pid: int | None = None
    started: float | None = None
    time: float = 0.0
    versions: dict[str, str] = dataclasses.field(default_factory=dict)
    choices: tuple[Choice, ...] = ()

    @property
    def next_task(self) -> int | None:
        """The task of the newest round under way, or None."""
        return self.open_rounds[-1][1] if self.open_rounds else None

    @property
    def queue(self) -> int:
        """Candidates that were found and are not measured yet."""
        under_way = dict(self.open_rounds)
        return sum(count for number, count in self.waiting if number in under_way)

    @property
    def partial(self) -> bool:
        """True while a task the network runs has no result: the estimated total leaves it out.

        Of a choice one formulation with all its results is enough.
        """
        return any(t.missing for t in self.tasks)

    @property
    def estimated_total_latency_s(self) -> float | None:
        """Sum of latency times weight over the tasks that have a result; None before any.

        Of a choice only the tasks of the chosen formulation have a weight.
        """
        used = [t.weighted_latency_s for t in self.tasks if t.uses != 0]
        parts = [part for part in used if part is not None]
        return math.fsum(parts) if parts else None

    @property
    def trials_per_s(self) -> float | None:
        """Current speed in trials per second of tuning time, over the last rounds."""
        if not self.recent:
            return None
        used_s, trials = self.recent[0]
        if self.used_s <= used_s or self.trials <= trials:
            return None
        return (self.trials - trials) / (self.used_s - used_s)

    @property
    def time_left_s(self) -> float | None:
        """Expected tuning time to the end of the budget in seconds, or None if unknown."""
        rate, left = self.trials_per_s, []
        if self.budget.trials is not None and rate:
            left.append(max(0.0, (self.budget.trials - self.trials) / rate))
        if self.budget.seconds is not None:
            left.append(max(0.0, self.budget.seconds - self.used_s))
        return min(left) if left else None
