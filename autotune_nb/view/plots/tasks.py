"""Where the time of the network is, and where the trials went."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from autotune_nb.errors import InputError
from autotune_nb.view import tables
from autotune_nb.view.plots.parts import label
from autotune_nb.view.sanitise import escape
from autotune_nb.view.source import Source, state_of
from autotune_nb.view.theme import BAD, GOOD, PATTERNS, Theme, figure
from autotune_nb.view.units import significant


def latency_share_data(source: Source, limit: int = 30) -> pd.DataFrame:
    """Return where the time of the tuned network is spent, largest part first.

    Columns: ID, name, weighted latency (ms), share (%), latency (ms), weight, speed (GFLOPS) and
    trials. Tasks beyond `limit` are summed up in one last row with the ID -1. Tasks without a
    result are not in it.
    """
    columns = [
        "ID",
        "name",
        "weighted latency (ms)",
        "share (%)",
        "latency (ms)",
        "weight",
        "speed (GFLOPS)",
        "trials",
    ]
    table = tables.task_table(state_of(source))[columns]
    table = table.dropna(subset=["weighted latency (ms)"])
    table = table.sort_values(["weighted latency (ms)", "ID"], ascending=[False, True])
    table = table.reset_index(drop=True)
    if len(table) <= limit:
        return table
    rest = table.iloc[limit:]
    others = pd.DataFrame(
        {
            "ID": [-1],
            "name": [f"{len(rest)} other tasks"],
            "weighted latency (ms)": [rest["weighted latency (ms)"].sum()],
            "share (%)": [rest["share (%)"].sum()],
            "latency (ms)": [math.nan],
            "weight": [rest["weight"].sum()],
            "speed (GFLOPS)": [math.nan],
            "trials": [rest["trials"].sum()],
        }
    )
    return pd.concat([table.iloc[:limit], others], ignore_index=True)


def latency_share(
    source: Source, *, kind: Literal["bar", "treemap"] = "bar", theme: Theme = "light"
) -> go.Figure:
    """Plot how the estimated total is made up of the tasks: where the time is.

    Parameters
    ----------
    source
        The run.
    kind
        ``bar`` or ``treemap``.
    theme
        ``light``, ``dark`` or ``auto``.
    """
    table = latency_share_data(source)
    labels = [
        label(number, name) if number >= 0 else escape(name)
        for number, name in zip(table["ID"], table["name"], strict=True)
    ]
    hover = [
        f"{shown}<br>{significant(row.total)} ms, {row.share:.1f} % of the total<br>"
        f"{significant(row.latency)} ms × {row.weight}, {significant(row.speed)} GFLOPS, "
        f"{row.trials} trials"
        for shown, row in zip(
            labels,
            table.set_axis(
                ["id", "name", "total", "share", "latency", "weight", "speed", "trials"], axis=1
            ).itertuples(),
            strict=True,
        )
    ]
    title = "Share of the estimated total latency"
    total = table["weighted latency (ms)"].to_numpy(dtype=np.float64)
    if kind == "treemap":
        fig = figure(title, "", "", theme, height=460)
        fig.add_treemap(
            labels=labels,
            parents=[""] * len(labels),
            values=total,
            hovertext=hover,
            hoverinfo="text",
            texttemplate="%{label}<br>%{value:.4g} ms",
        )
        return fig
    if kind != "bar":
        raise InputError(f"kind={kind!r}: no such plot; choose 'bar' or 'treemap'")
    fig = figure(
        title, "latency × weight (ms)", "task", theme, height=max(260, 110 + 22 * len(labels))
    )
    fig.add_bar(
        x=total,
        y=labels,
        orientation="h",
        marker_color=GOOD,
        hovertext=hover,
        hoverinfo="text",
        text=[f"{value:.1f} %" for value in table["share (%)"]],
        textposition="auto",
    )
    fig.update_yaxes(autorange="reversed", type="category", dtick=1)
    return fig


def trials_per_task_data(source: Source) -> pd.DataFrame:
    """Return where the trials went. Columns: ID, name, good, failed and state."""
    table = tables.task_table(state_of(source))
    return pd.DataFrame(
        {
            "ID": table["ID"],
            "name": table["name"],
            "good": table["trials"] - table["failures"],
            "failed": table["failures"],
            "state": table["state"],
        }
    )


def trials_per_task(source: Source, *, theme: Theme = "light") -> go.Figure:
    """Plot how many trials each task has had, and how many of them failed."""
    table = trials_per_task_data(source)
    labels = [label(i, n) for i, n in zip(table["ID"], table["name"], strict=True)]
    height = max(260, 140 + 22 * len(labels))
    fig = figure("Trials of each task", "trials", "task", theme, height=height)
    for column, paint, pattern in (("good", GOOD, PATTERNS[0]), ("failed", BAD, PATTERNS[1])):
        fig.add_bar(
            x=table[column].to_numpy(dtype=np.int32),
            y=labels,
            orientation="h",
            name=column,
            marker={"color": paint, "pattern": pattern},
            hovertemplate="%{y}: %{x} " + column + "<extra></extra>",
        )
    fig.update_layout(barmode="stack", showlegend=True)
    fig.update_yaxes(autorange="reversed", type="category", dtick=1)
    return fig
