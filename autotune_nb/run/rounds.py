"""The rounds of an imported run, guessed from the order of its trials; pure."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Sequence

from autotune_nb.run.manifest import Options


def usual_size(tasks: Sequence[int]) -> int:
    """Return how many trials a round had at most, given the task of each trial in order."""
    lengths = [len(list(group)) for _, group in itertools.groupby(tasks)]
    if not lengths:
        return Options().batch_size
    # Two rounds of one task in a row look like one; the most frequent length is that of one, and
    # those a little longer (a round may lose candidates) are too.
    usual = Counter(lengths).most_common(1)[0][0]
    return max(length for length in lengths if length < 1.5 * usual)


def whole_rounds(tasks: Sequence[int], size: int) -> Iterator[tuple[int, int]]:
    """Yield where each round begins and ends: trials of one task, at most `size`."""
    start = 0
    for _, group in itertools.groupby(tasks):
        count = len(list(group))
        parts = max(1, math.ceil(count / size))
        step = math.ceil(count / parts)
        for offset in range(0, count, step):
            yield start + offset, start + min(offset + step, count)
        start += count
