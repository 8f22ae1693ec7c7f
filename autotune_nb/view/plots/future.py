"""What more trials are expected to bring."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go

from autotune_nb.errors import InputError
from autotune_nb.view.forecast import forecast as make_forecast
from autotune_nb.view.plots.convergence import convergence
from autotune_nb.view.plots.parts import XAxis, x_column
from autotune_nb.view.source import Source, state_of
from autotune_nb.view.theme import COLOURS, Theme


def forecast_data(source: Source, trials: int | None = None) -> pd.DataFrame:
    """Return the expected course of a run up to so many trials; twice those spent if None.

    Columns: trial, used time (s), low (ms), median (ms), high (ms).

    Raises
    ------
    InputError
        If the run has no result yet.
    """
    state = state_of(source)
    made = make_forecast(state, trials or 2 * state.trials)
    if made is None:
        raise InputError("the run has no result yet; a forecast needs one")
    return pd.DataFrame(
        {
            "trial": made.trials.astype("int64"),
            "used time (s)": made.used_s,
            "low (ms)": made.low_s * 1e3,
            "median (ms)": made.median_s * 1e3,
            "high (ms)": made.high_s * 1e3,
        }
    )


def forecast(
    source: Source, trials: int | None = None, *, x: XAxis = "trials", theme: Theme = "light"
) -> go.Figure:
    """Plot the estimated total so far, and what more trials are expected to bring.

    Parameters
    ----------
    source
        The run.
    trials
        Up to which budget; twice the trials spent if None.
    x
        ``trials`` or ``time``.
    theme
        ``light``, ``dark`` or ``auto``.
    """
    column = x_column(x)
    table = forecast_data(source, trials)
    fig = convergence(state_of(source), x=x, names=["so far"], theme=theme)
    along = table[column]
    edge = {"mode": "lines", "line": {"width": 0}, "hoverinfo": "skip"}
    fig.add_scatter(x=along, y=table["low (ms)"], showlegend=False, **edge)
    fig.add_scatter(
        x=along,
        y=table["high (ms)"],
        name="80 % of outcomes",
        fill="tonexty",
        fillcolor="rgba(86,180,233,0.3)",
        **edge,
    )
    fig.add_scatter(
        x=along,
        y=table["median (ms)"],
        name="forecast",
        mode="lines",
        line={"color": COLOURS[4], "dash": "dash"},
        hovertemplate="%{x:.0f}: %{y:.4g} ms<extra>forecast</extra>",
    )
    fig.update_layout(showlegend=True, title_text="Forecast of the estimated total latency")
    return fig
