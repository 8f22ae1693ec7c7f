"""Plots of a run, each a plain function from a run to a plotly Figure; nothing is shown here.

A run is given as a session, a run directory, its path or a state. The data behind a plot is a tidy
DataFrame from the function of the same name with ``_data``.
"""

from __future__ import annotations

from autotune_nb.view.plots.convergence import (
    convergence,
    convergence_data,
    task_convergence,
    task_convergence_data,
)
from autotune_nb.view.plots.tasks import (
    latency_share,
    latency_share_data,
    trials_per_task,
    trials_per_task_data,
)

__all__ = [
    "convergence",
    "convergence_data",
    "latency_share",
    "latency_share_data",
    "task_convergence",
    "task_convergence_data",
    "trials_per_task",
    "trials_per_task_data",
]
