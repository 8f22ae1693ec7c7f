"""Sizes of the buffers that tasks take, from the text in which a run keeps them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

from autotune_nb.run.records import TaskInfo

_SHAPE = re.compile(r"(?P<dtype>[a-z]+(?P<bits>\d+)?\w*)\[(?P<dims>[\d, ]*)\]")


def buffer_bytes(shape: str) -> float:
    """Return the size of a buffer given as ``float32[1, 56, 56, 64]``; NaN if it is not known."""
    found = _SHAPE.fullmatch(shape)
    if found is None:
        return math.nan
    bits = 8 if found["dtype"] == "bool" else int(found["bits"] or 0)
    dims = [int(part) for part in found["dims"].split(",") if part.strip()]
    return math.prod(dims) * bits / 8 if bits else math.nan


def network_bytes(tasks: Iterable[TaskInfo]) -> int:
    """Return about how many bytes one execution of a network touches: all buffers of all calls."""
    sizes = ((task.weight, buffer_bytes(shape)) for task in tasks for shape in task.shapes)
    return int(math.fsum(weight * size for weight, size in sizes if not math.isnan(size)))
