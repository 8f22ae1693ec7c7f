"""Plots of a run, each a plain function from a run to a plotly Figure; nothing is shown here.

A run is given as a session, a run directory, its path or a state. The data behind a plot is a tidy
DataFrame from the function of the same name with ``_data``.
"""

from __future__ import annotations

from autotune_nb.view.plots.compare import compare, compare_data, totals_data
from autotune_nb.view.plots.convergence import (
    convergence,
    convergence_data,
    task_convergence,
    task_convergence_data,
)
from autotune_nb.view.plots.future import forecast, forecast_data
from autotune_nb.view.plots.measured import (
    estimated_against_measured,
    estimated_against_measured_data,
    operator_profile,
    operator_profile_data,
)
from autotune_nb.view.plots.roofline import roofline, roofline_data
from autotune_nb.view.plots.tasks import (
    latency_share,
    latency_share_data,
    trials_per_task,
    trials_per_task_data,
)
from autotune_nb.view.plots.timeline import timeline, timeline_data
from autotune_nb.view.plots.trials import (
    allocation,
    allocation_data,
    failures,
    failures_data,
    trial_costs,
    trial_costs_data,
    trial_results,
    trial_results_data,
)

__all__ = [
    "allocation",
    "allocation_data",
    "compare",
    "compare_data",
    "convergence",
    "convergence_data",
    "estimated_against_measured",
    "estimated_against_measured_data",
    "failures",
    "failures_data",
    "forecast",
    "forecast_data",
    "latency_share",
    "latency_share_data",
    "operator_profile",
    "operator_profile_data",
    "roofline",
    "roofline_data",
    "task_convergence",
    "task_convergence_data",
    "timeline",
    "timeline_data",
    "totals_data",
    "trial_costs",
    "trial_costs_data",
    "trial_results",
    "trial_results_data",
    "trials_per_task",
    "trials_per_task_data",
]
