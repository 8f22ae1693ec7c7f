"""Which formulation of a part of the network counts: the one whose tasks take the least time."""

from __future__ import annotations

import math
from collections.abc import Sequence

from autotune_nb.run.records import Choice, Formulation, State


def latency_s(formulation: Formulation, best_s: Sequence[float | None]) -> float | None:
    """Return how long one execution takes, from each task's best; None while one has no result."""
    parts = [best_s[task] for task in formulation.tasks]
    return None if None in parts else math.fsum(part for part in parts if part is not None)


def pick(choice: Choice, best_s: Sequence[float | None]) -> Formulation:
    """Return the fastest formulation; the first one, direct, until one has all its results."""
    best, best_total = choice.formulations[0], math.inf
    for formulation in choice.formulations:
        total = latency_s(formulation, best_s)
        if total is not None and total < best_total:
            best, best_total = formulation, total
    return best


def uses(choices: Sequence[Choice], best_s: Sequence[float | None]) -> dict[int, int]:
    """Return how often the network runs each task that a choice names; 0 for those not chosen."""
    out: dict[int, int] = {}
    for choice in choices:
        for formulation in choice.formulations:
            for task in formulation.tasks:
                out.setdefault(task, 0)
        for task in pick(choice, best_s).tasks:
            out[task] += choice.weight
    return out


def chosen(state: State) -> dict[str, str]:
    """Return, by the name of each choice, the name of its chosen formulation."""
    best_s = [task.best_latency_s for task in state.tasks]
    return {choice.name: pick(choice, best_s).name for choice in state.choices}
