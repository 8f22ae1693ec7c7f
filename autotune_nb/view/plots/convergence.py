"""How fast the latencies fell: of the whole network and of single tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd
import plotly.graph_objects as go

from autotune_nb.errors import InputError
from autotune_nb.view.plots.parts import X_TITLE, XAxis, label, largest, thin, x_column
from autotune_nb.view.sanitise import escape
from autotune_nb.view.source import Source, names_of, state_of
from autotune_nb.view.theme import MUTED, Theme, colour, dash, figure
from autotune_nb.view.units import milliseconds


def convergence_data(source: Source) -> pd.DataFrame:
    """Return the estimated total after each trial that improved it, and where it stands now.

    Columns: trial, used time (s), total (ms), partial (True while tasks had no result, so that
    the total left them out).
    """
    state = state_of(source)
    curve = state.curve
    rows = [(p.trial, p.used_s, p.estimated_total_latency_s * 1e3, p.partial) for p in curve]
    total = state.estimated_total_latency_s
    if curve and total is not None and state.trials > curve[-1].trial:
        rows.append((state.trials, state.used_s, total * 1e3, state.partial))
    table = pd.DataFrame(rows, columns=["trial", "used time (s)", "total (ms)", "partial"])
    return table.astype(
        {"trial": "int64", "used time (s)": "float64", "total (ms)": "float64", "partial": "bool"}
    )


def convergence(
    *sources: Source,
    x: XAxis = "trials",
    names: Sequence[str] | None = None,
    references: Mapping[str, float] | None = None,
    log: bool = False,
    theme: Theme = "light",
) -> go.Figure:
    """Plot the estimated total latency against trials or time.

    Parameters
    ----------
    sources
        One run or several to compare.
    x
        ``trials`` or ``time``.
    names
        What the runs are called; their folders' names if None.
    references
        Latencies in seconds to draw as lines across, by name.
    log
        Use a logarithmic axis for the latency.
    theme
        ``light``, ``dark`` or ``auto``.
    """
    column = x_column(x)
    fig = figure("Estimated total latency", X_TITLE[x], "estimated total latency (ms)", theme)
    for index, (source, name) in enumerate(zip(sources, names or names_of(sources), strict=True)):
        table = convergence_data(source)
        whole = table[~table["partial"]]
        part = table[table["partial"]]
        if not whole.empty and not part.empty:
            # the partial line ends where the whole one begins, so that no gap is left between
            part = pd.concat([part, whole.iloc[:1].assign(**{"total (ms)": part.iloc[-1, 2]})])
        shown = escape(name)
        style = {"color": colour(index), "dash": dash(index), "shape": "hv"}
        faint = {**style, "dash": "dot", "width": 1}
        hover = "%{x}: %{y:.4g} ms<extra>" + shown + "</extra>"
        for rows, line, suffix in ((part, faint, ", partial"), (whole, style, "")):
            if not rows.empty:
                xs, ys = thin(rows[column], rows["total (ms)"])
                fig.add_scatter(
                    x=xs, y=ys, mode="lines", name=shown + suffix, line=line, hovertemplate=hover
                )
    for index, (name, latency_s) in enumerate((references or {}).items()):
        fig.add_hline(
            y=latency_s * 1e3,
            line={"color": MUTED, "dash": "dash", "width": 1},
            annotation_text=f"{escape(name)} {milliseconds(latency_s)} ms",
            annotation_position="top right" if index % 2 == 0 else "bottom right",
        )
    fig.update_layout(showlegend=len(fig.data) > 1)
    fig.update_yaxes(type="log" if log else "linear", rangemode="normal" if log else "tozero")
    return fig


def task_convergence_data(source: Source, tasks: Sequence[int] | None = None) -> pd.DataFrame:
    """Return each task's best latency after each trial that improved it, and where it stands now.

    Columns: ID, name, trial, used time (s), latency (ms), speed (GFLOPS).
    """
    state = state_of(source)
    wanted = set(range(len(state.tasks)) if tasks is None else tasks)
    unknown = wanted - set(range(len(state.tasks)))
    if unknown:
        raise InputError(
            f"task {min(unknown)}: no such task; the run has tasks 0 to {len(state.tasks) - 1}"
        )
    points = [(p.task, p.trial, p.used_s, p.latency_s) for p in state.curve if p.task in wanted]
    points += [
        (t.info.id, state.trials, state.used_s, t.best_latency_s)
        for t in state.tasks
        if t.info.id in wanted and t.best_latency_s is not None and t.best_trial != state.trials
    ]
    points.sort(key=lambda p: (p[0], p[1]))
    infos = [state.tasks[p[0]].info for p in points]
    return pd.DataFrame(
        {
            "ID": pd.Series([p[0] for p in points], dtype="int64"),
            "name": pd.Series([i.name for i in infos], dtype="str"),
            "trial": pd.Series([p[1] for p in points], dtype="int64"),
            "used time (s)": pd.Series([p[2] for p in points], dtype="float64"),
            "latency (ms)": pd.Series([p[3] * 1e3 for p in points], dtype="float64"),
            "speed (GFLOPS)": pd.Series(
                [i.flops / p[3] / 1e9 for i, p in zip(infos, points, strict=True)],
                dtype="float64",
            ),
        }
    )


def task_convergence(
    source: Source,
    tasks: Sequence[int] | None = None,
    *,
    x: XAxis = "trials",
    theme: Theme = "light",
) -> go.Figure:
    """Plot the best latency of each task against the run's trials or time.

    Parameters
    ----------
    source
        The run.
    tasks
        IDs of the tasks to draw; None draws the eight with the largest share of the total.
    x
        ``trials`` or ``time``.
    theme
        ``light``, ``dark`` or ``auto``.
    """
    column = x_column(x)
    state = state_of(source)
    chosen = largest(state, 8) if tasks is None else list(tasks)
    table = task_convergence_data(state, chosen)
    fig = figure("Best latency of each task", X_TITLE[x], "latency (ms)", theme)
    for index, task in enumerate(chosen):
        rows = table[table["ID"] == task]
        if rows.empty:
            continue
        xs, ys = thin(rows[column], rows["latency (ms)"])
        shown = label(task, state.tasks[task].info.name)
        fig.add_scatter(
            x=xs,
            y=ys,
            mode="lines",
            name=shown,
            line={"color": colour(index), "dash": dash(index), "shape": "hv"},
            hovertemplate="%{x}: %{y:.4g} ms<extra>" + shown + "</extra>",
        )
    fig.update_yaxes(type="log")
    fig.update_layout(showlegend=True)
    return fig
