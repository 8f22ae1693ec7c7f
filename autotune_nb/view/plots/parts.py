"""What several plots need: labels of tasks, thinned lines, the choice of tasks."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pandas as pd

from autotune_nb.errors import InputError
from autotune_nb.run.state import State
from autotune_nb.view.downsample import Floats, m4
from autotune_nb.view.sanitise import clean, escape, shorten

XAxis = Literal["trials", "time"]
X_TITLE = {"trials": "trials", "time": "tuning time (s)"}
_COLUMN = {"trials": "trial", "time": "used time (s)"}


def x_column(x: str) -> str:
    """Return the column that holds the values of an x axis."""
    if x not in _COLUMN:
        raise InputError(f"x={x!r}: no such axis; choose 'trials' or 'time'")
    return _COLUMN[x]


def label(number: int, name: str, columns: int = 36) -> str:
    """Return how a task is called in a plot: its ID and its name, safe and not too long."""
    return escape(f"{number} {shorten(clean(name), columns)}")


def thin(x: pd.Series, y: pd.Series, limit: int = 2000) -> tuple[Floats, Floats]:
    """Return two columns as arrays that plotly sends in binary, with at most `limit` points."""
    xs, ys = x.to_numpy(dtype=np.float64), y.to_numpy(dtype=np.float64)
    kept = m4(xs, ys, limit)
    return xs[kept], ys[kept]


def largest(state: State, count: int) -> list[int]:
    """Return the IDs of the tasks with the largest share of the total, largest first."""
    known = [t for t in state.tasks if t.weighted_latency_s is not None]
    known.sort(key=lambda t: (-(t.weighted_latency_s or 0.0), t.info.id))
    return [t.info.id for t in known[:count]]
