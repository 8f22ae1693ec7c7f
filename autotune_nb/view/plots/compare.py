"""Runs side by side: their curves, and task by task."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from autotune_nb.errors import InputError
from autotune_nb.view.matching import common_latency, match, reach
from autotune_nb.view.plots.convergence import convergence
from autotune_nb.view.plots.parts import X_TITLE, XAxis, label
from autotune_nb.view.sanitise import escape
from autotune_nb.view.source import Source, names_of, state_of
from autotune_nb.view.theme import PATTERNS, Theme, colour, template

_TASKS = 25  # drawn; the data has them all


def compare_data(sources: Sequence[Source], names: Sequence[str] | None = None) -> pd.DataFrame:
    """Return the tasks of several runs beside each other.

    One row for each task that any run has, in order of the first run that has it; tasks are
    matched as `autotune_nb.view.matching.match` does. Columns: name, then for each run its latency
    (ms), and for each but the first the ratio of its latency to the first run's: ``ratio NAME``.
    NaN where a run has no such task or no result for it.
    """
    shown = _names(sources, names)
    matched = match([state_of(source) for source in sources])
    called = [next(task.info.name for task in row if task is not None) for row in matched]
    table = pd.DataFrame({"name": pd.Series(called, dtype="str")})
    latencies: list[list[float]] = []
    for number, name in enumerate(shown):
        tasks = [row[number] for row in matched]
        values = [None if task is None else task.best_latency_s for task in tasks]
        latencies.append([math.nan if v is None else v * 1e3 for v in values])
        table[f"{name} (ms)"] = pd.Series(latencies[-1], dtype="float64")
    for name, own in zip(shown[1:], latencies[1:], strict=True):
        ratio = np.array(own) / np.array(latencies[0])
        table[f"ratio {name}"] = pd.Series(ratio, dtype="float64")
    return table


def totals_data(sources: Sequence[Source], names: Sequence[str] | None = None) -> pd.DataFrame:
    """Return what each run came to, and when it had reached the worst of the final totals.

    Columns: run, total (ms), partial, trials, failures, used time (s), trials to same, time to
    same (s): how much it took until the run was as fast as the slowest of the runs is in the end.
    NaN where that cannot be told, as for a partial total.
    """
    shown = _names(sources, names)
    states = [state_of(source) for source in sources]
    goal = common_latency(states)
    points = [None if goal is None else reach(state, goal) for state in states]
    return pd.DataFrame(
        {
            "run": pd.Series(shown, dtype="str"),
            "total (ms)": pd.Series(
                [
                    math.nan
                    if s.estimated_total_latency_s is None
                    else s.estimated_total_latency_s * 1e3
                    for s in states
                ],
                dtype="float64",
            ),
            "partial": pd.Series([s.partial for s in states], dtype="bool"),
            "trials": pd.Series([s.trials for s in states], dtype="int64"),
            "failures": pd.Series([s.failed_trials for s in states], dtype="int64"),
            "used time (s)": pd.Series([s.used_s for s in states], dtype="float64"),
            "trials to same": pd.Series(
                [p.trial if p else math.nan for p in points], dtype="float64"
            ),
            "time to same (s)": pd.Series(
                [p.used_s if p else math.nan for p in points], dtype="float64"
            ),
        }
    )


def compare(
    sources: Sequence[Source],
    *,
    names: Sequence[str] | None = None,
    x: XAxis = "trials",
    theme: Theme = "light",
) -> go.Figure:
    """Plot runs beside each other: their curves above, the latency of each task below.

    Parameters
    ----------
    sources
        The runs; ratios are to the first.
    names
        What they are called; their folders' names if None.
    x
        ``trials`` or ``time``, for the curves.
    theme
        ``light``, ``dark`` or ``auto``.
    """
    shown = _names(sources, names)
    table = compare_data(sources, shown)
    columns = [f"{name} (ms)" for name in shown]
    order = table[columns].max(axis=1).sort_values(ascending=False).dropna().index[:_TASKS]
    height = 480 + (10 + 14 * len(shown)) * max(4, len(order))
    upper = 330 / height
    fig = make_subplots(
        rows=2, cols=1, vertical_spacing=80 / height, row_heights=[upper, 1 - upper]
    )
    for trace in convergence(*sources, names=shown, x=x, theme=theme).data:
        fig.add_trace(trace, row=1, col=1)
    labels = [label(int(i), table["name"][i]) for i in order]
    for index, (name, column) in enumerate(zip(shown, columns, strict=True)):
        fig.add_bar(
            x=table.loc[order, column].to_numpy(dtype=np.float64),
            y=labels,
            orientation="h",
            name=f"{escape(name)}, tasks",
            marker={"color": colour(index), "pattern": PATTERNS[index % 4]},
            hovertemplate="%{y}: %{x:.4g} ms<extra>%{fullData.name}</extra>",
            row=2,
            col=1,
        )
    fig.update_layout(
        template=template(theme),
        title_text="Runs compared",
        barmode="group",
        height=height,
        legend={"y": -0.06},
    )
    fig.update_xaxes(title_text=X_TITLE[x], row=1, col=1)
    fig.update_yaxes(title_text="estimated total latency (ms)", rangemode="tozero", row=1, col=1)
    fig.update_xaxes(title_text="latency (ms)", row=2, col=1)
    fig.update_yaxes(
        title_text="task", autorange="reversed", type="category", dtick=1, row=2, col=1
    )
    return fig


def _names(sources: Sequence[Source], names: Sequence[str] | None) -> list[str]:
    if not sources:
        raise InputError("no runs to compare; pass at least one")
    shown = names_of(sources) if names is None else list(names)
    if len(shown) != len(sources) or len(set(shown)) != len(shown):
        raise InputError(
            f"{len(sources)} runs and the names {', '.join(shown)}: pass a different one for each"
        )
    return shown
