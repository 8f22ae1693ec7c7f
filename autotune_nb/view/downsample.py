"""Long lines made short without looking different."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Floats: TypeAlias = npt.NDArray[np.float64]


def m4(x: Floats, y: Floats, limit: int = 2000) -> npt.NDArray[np.int64]:
    """Return the indices of at most `limit` points that draw the same line.

    Parameters
    ----------
    x, y
        Points in order of x, without NaN.
    limit
        Most points to keep, at least 4.

    Notes
    -----
    x is cut into stripes, and of each the first, last, lowest and highest point stay: with a
    stripe per pixel the line is the same to the pixel. Jugel et al., "M4: A Visualization-Oriented
    Time Series Data Aggregation" (VLDB 2014).
    """
    count = len(x)
    if count <= limit:
        return np.arange(count)
    stripes = max(1, limit // 4)
    span = float(x[-1] - x[0]) or 1.0
    stripe = np.minimum(((x - x[0]) / span * stripes).astype(np.int64), stripes - 1)
    starts = np.flatnonzero(np.r_[True, stripe[1:] != stripe[:-1]])
    ends = np.r_[starts[1:], count]
    # the order by y within each stripe, in one sort for all of them
    order = np.lexsort((y, stripe))
    return np.unique(np.concatenate([starts, ends - 1, order[starts], order[ends - 1]]))
