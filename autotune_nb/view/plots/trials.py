"""What single trials gave and cost; these plots read the whole journal."""

from __future__ import annotations

import functools

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from autotune_nb.errors import InputError
from autotune_nb.view import tables
from autotune_nb.view.downsample import m4
from autotune_nb.view.plots.parts import X_TITLE, XAxis, label, largest, x_column
from autotune_nb.view.sanitise import escape
from autotune_nb.view.source import Source, directory_of, events_of, state_of
from autotune_nb.view.theme import PATTERNS, Theme, colour, dash, figure

_DOTS = 2000  # of one plot


class Loaded:
    """A run whose trials are read once for several plots; pass it as their source.

    Parameters
    ----------
    source
        A session, a run directory or its path.

    Raises
    ------
    InputError
        If `source` is a bare state, which holds no single trials.
    """

    def __init__(self, source: Source) -> None:
        directory = directory_of(source)
        if directory is None:
            raise InputError(
                "a state holds no single trials; pass the session or its run directory"
            )
        self.directory = directory

    @functools.cached_property
    def trials(self) -> pd.DataFrame:
        """The run's trials as `tables.trial_table` gives them."""
        return tables.trial_table(events_of(self.directory), self.directory.manifest.tasks)


def _trials(source: Source) -> pd.DataFrame:
    return (source if isinstance(source, Loaded) else Loaded(source)).trials


def trial_results_data(source: Source, tasks: int = 20) -> pd.DataFrame:
    """Return the good trials of the tasks with the largest share, against each task's best.

    Columns: ID, name, trial, latency (ms) and slowdown (latency over the task's best).
    """
    table = _trials(source)
    table = table[table["result"] == "ok"]
    chosen = largest(state_of(source), tasks)
    table = table[table["task"].isin(chosen)]
    best = table.groupby("task")["latency (ms)"].transform("min")
    return pd.DataFrame(
        {
            "ID": table["task"],
            "name": table["name"],
            "trial": table["trial"],
            "latency (ms)": table["latency (ms)"],
            "slowdown": table["latency (ms)"] / best,
        }
    ).reset_index(drop=True)


def trial_results(source: Source, *, theme: Theme = "light") -> go.Figure:
    """Plot how the good trials of each task compare to its best one.

    A box spans the middle half of a task's trials; whiskers reach its best and its slowest.
    """
    table = trial_results_data(source)
    chosen = [i for i in largest(state_of(source), 20) if (table["ID"] == i).any()]
    height = max(260, 140 + 26 * len(chosen))
    fig = figure("Trials against the best of their task", "times as slow", "task", theme)
    fig.update_layout(height=height, showlegend=False)
    for task in chosen:
        rows = table[table["ID"] == task]
        # quantiles, not trials: a box of a million trials is as small as one of ten
        low, q1, median, q3, high = np.quantile(rows["slowdown"], [0, 0.25, 0.5, 0.75, 1])
        shown = label(task, rows["name"].iloc[0])
        fig.add_box(
            y=[shown],
            q1=[q1],
            median=[median],
            q3=[q3],
            lowerfence=[low],
            upperfence=[high],
            orientation="h",
            marker_color=colour(0),
            name=shown,
        )
    fig.update_xaxes(type="log")
    fig.update_yaxes(autorange="reversed", type="category", dtick=1)
    return fig


def failures_data(source: Source) -> pd.DataFrame:
    """Return the failures by task and kind. Columns: ID, name, kind, count, first message."""
    return tables.error_table(state_of(source))


def failures(source: Source, *, theme: Theme = "light") -> go.Figure:
    """Plot how many trials of each task failed, by kind."""
    table = failures_data(source)
    tasks = table.groupby("ID")["count"].sum().sort_values(ascending=False).index[:30]
    names = dict(zip(table["ID"], table["name"], strict=True))
    fig = figure("Failed trials", "failed trials", "task", theme)
    fig.update_layout(height=max(260, 140 + 22 * len(tasks)), barmode="stack", showlegend=True)
    for index, kind in enumerate(sorted(table["kind"].unique())):
        rows = table[table["kind"] == kind].set_index("ID")["count"]
        fig.add_bar(
            x=np.array([rows.get(task, 0) for task in tasks], dtype=np.int32),
            y=[label(task, names[task]) for task in tasks],
            orientation="h",
            name=escape(kind),
            marker={"color": colour(index), "pattern": PATTERNS[index % 4]},
            hovertemplate="%{y}: %{x}<extra>%{fullData.name}</extra>",
        )
    fig.update_yaxes(autorange="reversed", type="category", dtick=1)
    return fig


def trial_costs_data(source: Source) -> pd.DataFrame:
    """Return what each trial cost. Columns: trial, used time (s), build (s), measure (s)."""
    table = _trials(source)
    return table[["trial", "used time (s)", "build (s)", "measure (s)"]].copy()


def trial_costs(source: Source, *, x: XAxis = "trials", theme: Theme = "light") -> go.Figure:
    """Plot how long each trial took to build and to measure."""
    column = x_column(x)
    table = trial_costs_data(source)
    fig = figure("Cost of a trial", X_TITLE[x], "time (s)", theme)
    along = table[column].to_numpy(dtype=np.float64)
    for index, part in enumerate(("build (s)", "measure (s)")):
        cost = table[part].to_numpy(dtype=np.float64)
        kept = m4(along, cost, _DOTS)
        fig.add_scatter(
            x=along[kept],
            y=cost[kept],
            mode="markers",
            name=part.removesuffix(" (s)"),
            marker={"size": 4, "color": colour(index), "symbol": ["circle", "x"][index]},
            hovertemplate="%{x:.0f}: %{y:.3g} s<extra>%{fullData.name}</extra>",
        )
    fig.update_layout(showlegend=True)
    fig.update_yaxes(rangemode="tozero")
    return fig


def allocation_data(source: Source, tasks: int = 8) -> pd.DataFrame:
    """Return how many trials each task had had after each round.

    Columns: ID (-1 for all others), name, trial (of the run), used time (s) and trials (of the
    task). The tasks are those that got the most trials.
    """
    state = state_of(source)
    table = _trials(source)
    most = sorted(state.tasks, key=lambda t: (-t.trials, t.info.id))[:tasks]
    names = {t.info.id: t.info.name for t in most}
    group = table["task"].where(table["task"].isin(list(names)), -1)
    ends = table["round"].ne(table["round"].shift(-1))
    rows = []
    for task in [*names, -1]:
        count = (group == task).cumsum()
        if not count.empty and count.iloc[-1]:
            part = table.loc[ends, ["trial", "used time (s)"]].copy()
            part.insert(0, "name", names.get(task, "all others"))
            part.insert(0, "ID", task)
            part["trials"] = count[ends]
            rows.append(part)
    columns = ["ID", "name", "trial", "used time (s)", "trials"]
    return pd.concat(rows, ignore_index=True) if rows else pd.DataFrame(columns=columns)


def allocation(source: Source, *, x: XAxis = "trials", theme: Theme = "light") -> go.Figure:
    """Plot which tasks got the trials as the run went on."""
    column = x_column(x)
    table = allocation_data(source)
    fig = figure("Trials of each task over the run", X_TITLE[x], "trials of the task", theme)
    for index, task in enumerate(table["ID"].unique()):
        rows = table[table["ID"] == task]
        along = rows[column].to_numpy(dtype=np.float64)
        spent = rows["trials"].to_numpy(dtype=np.float64)
        kept = m4(along, spent, 400)
        name = rows["name"].iloc[0]
        fig.add_scatter(
            x=along[kept],
            y=spent[kept],
            mode="lines",
            name=escape(name) if task < 0 else label(task, name),
            line={"color": colour(index), "dash": dash(index), "shape": "hv"},
        )
    fig.update_layout(showlegend=True)
    return fig
