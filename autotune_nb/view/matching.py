"""Which tasks of several runs are the same, and when each run was as fast as another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from autotune_nb.run.records import CurvePoint, TaskInfo, TaskState
from autotune_nb.run.state import State

_Key = tuple[str, ...]
Row = tuple[TaskState | None, ...]


def match(states: Sequence[State]) -> list[Row]:
    """Return, for each task that any run has, its state in every run: None where it has none.

    Tasks are the same if their workloads have the same hash. Versions of TVM hash the same
    workload differently, so that two tasks without an equal hash are also the same if they are
    the only ones in their runs with their buffers and their work. Tasks come in the order in which
    the runs, the first one first, name them.
    """
    rows: dict[_Key, list[TaskState | None]] = {}
    for number, state in enumerate(states):
        likes = _unique({key: _like(row) for key, row in rows.items()})
        mine = _unique({(t.info.workload_hash,): _shape(t.info) for t in state.tasks})
        for task in state.tasks:
            key: _Key = (task.info.workload_hash,)
            if key not in rows:
                shape = _shape(task.info)
                other = likes.get(shape) if shape in mine and task.info.shapes else None
                key = other if other is not None and rows[other][number] is None else key
            rows.setdefault(key, [None] * len(states))[number] = task
    return [tuple(row) for row in rows.values()]


def reach(state: State, latency_s: float) -> CurvePoint | None:
    """Return the trial after which the whole estimated total was `latency_s` or less, or None."""
    for point in state.curve:
        # a sum of many parts may end a hair above where it stood
        if not point.partial and point.estimated_total_latency_s <= latency_s * (1 + 1e-9):
            return point
    return None


def common_latency(states: Sequence[State]) -> float | None:
    """Return the lowest total, in seconds, that every run without missing results has reached."""
    totals = [s.estimated_total_latency_s for s in states if not s.partial]
    return max((total for total in totals if total is not None), default=None)


def _unique(shapes: Mapping[_Key, _Key]) -> dict[_Key, _Key]:
    """Return the keys of those shapes that only one has."""
    found: dict[_Key, list[_Key]] = {}
    for key, shape in shapes.items():
        found.setdefault(shape, []).append(key)
    return {shape: keys[0] for shape, keys in found.items() if len(keys) == 1}


def _like(row: Sequence[TaskState | None]) -> _Key:
    return _shape(next(task.info for task in row if task is not None))


def _shape(info: TaskInfo) -> _Key:
    return (*info.shapes, f"{info.flops:.0f}")
