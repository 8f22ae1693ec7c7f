"""Times a candidate on weights as cold as they are in its network, on a CPU.

Between two executions of a function the network touches all that its other functions take. A
function that is run over and over finds its weights in the nearest cache instead: ResNet-18's,
timed so, promised a fifth to a quarter less than they take there. So each run takes another
copy of all but the output and the data, which its predecessor has just written; the copies together
are as large as what the network touches.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from typing import Any

Arguments = tuple[Any, ...]

# Enough to be cold in any core's own caches, few enough to be made for each task in no time.
_MOST_BYTES = 64 << 20
_MOST_COPIES = 2048
_LEAST_BYTES = 16 << 10  # less finds room in the nearest cache whatever runs between


def copies_of(arguments: Sequence[Any], between_bytes: int) -> tuple[Arguments, ...]:
    """Return arguments for one run after the other: the given ones and copies of them.

    Parameters
    ----------
    arguments
        Tensors of one call: data, weights and whatever else, output.
    between_bytes
        What is touched between two executions.
    """
    cold = arguments[1:-1]
    each = sum(_size(tensor) for tensor in cold)
    count = 1
    if each >= _LEAST_BYTES:
        count = max(1, min(_MOST_COPIES, -(-min(between_bytes, _MOST_BYTES) // each)))
    made = [tuple(arguments)]
    for _ in range(count - 1):
        copied = [tensor.copyto(tensor.device) for tensor in cold]
        made.append((arguments[0], *copied, arguments[-1]))
    return tuple(made)


def _size(tensor: Any) -> int:
    size = int(tensor.dtype.bits) * int(tensor.dtype.lanes) // 8
    for extent in tensor.shape:
        size *= int(extent)
    return size


class Turns:
    """A function and arguments that take turns.

    Parameters
    ----------
    function
        What is timed.
    copies
        As `copies_of` returns them.
    """

    def __init__(self, function: Any, copies: Sequence[Arguments]) -> None:
        self._function = function
        self._copies = itertools.cycle(copies)

    def seconds(self, number: int, repeat: int) -> list[float]:
        """Return the mean time of `number` runs, `repeat` times; one run more wakes threads."""
        function = self._function
        function(*next(self._copies))
        found = []
        for _ in range(repeat):
            turns = list(itertools.islice(self._copies, number))
            start = time.perf_counter()
            for arguments in turns:
                function(*arguments)
            found.append((time.perf_counter() - start) / number)
        return found
