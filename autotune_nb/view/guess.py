"""Latencies of tasks that have no result yet, guessed from those that have."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from autotune_nb.run.state import TaskState
from autotune_nb.view.downsample import Floats

_UNKNOWN = 0.5  # standard deviation of log latency of a task without a result, guessed by others
_UNKNOWN_SHARED = 0.3  # the part of it that is the same for all tasks of a run
_LIGHT_INTENSITY = 4.0  # operations a byte below which a task mostly moves data


def moved_bytes(shapes: Sequence[str]) -> float:
    """Return how many bytes buffers hold that are written as ``dtype[d0, d1, …]``."""
    total = 0.0
    for shape in shapes:
        dtype, _, dims = shape.rstrip("]").partition("[")
        bits = "".join(c for c in dtype if c.isdigit())
        size = (int(bits) if bits else 8) / 8
        for dim in dims.split(","):
            size *= int(dim) if dim.strip().isdigit() else 1
        total += size
    return total


def is_light(task: TaskState) -> bool:
    """Tell whether a task mostly moves data, so that there is little to gain."""
    moved = moved_bytes(task.info.shapes)
    return task.info.flops < _LIGHT_INTENSITY * moved if moved else task.info.flops == 0


def guess(tasks: Sequence[TaskState], samples: int, rng: np.random.Generator) -> Floats:
    """Return the latency of each task, drawn around a guess where there is no result yet.

    The guess is the cost of the task at the median speed that others had after their first round.
    What is wrong with it is partly the same for all tasks of a run.
    """
    known = [t for t in tasks if t.best_latency_s is not None]
    first = {t.info.id: next((s for _, s in t.rounds if s), t.best_latency_s or 0.0) for t in known}
    shared = rng.normal(0.0, _UNKNOWN_SHARED, size=samples)
    out = np.empty((samples, len(tasks)))
    for index, task in enumerate(tasks):
        if task.best_latency_s is not None:
            out[:, index] = task.best_latency_s
            continue
        like = [t for t in known if is_light(t) == is_light(task)]
        same = [t for t in like if t.info.operators == task.info.operators]
        like = same or like or known
        rate = float(np.median([first[t.info.id] / _cost(t) for t in like]))
        own = rng.normal(0.0, _UNKNOWN, size=samples)
        out[:, index] = _cost(task) * rate * np.exp(shared + own)
    return out


def _cost(task: TaskState) -> float:
    """Return what a task's latency is taken to be proportional to: operations, or moved data."""
    if is_light(task):
        return moved_bytes(task.info.shapes) or task.info.flops or 1.0
    return task.info.flops
