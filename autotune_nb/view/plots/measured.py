"""What was measured of the whole network, against what its tasks promised."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from autotune_nb.errors import InputError
from autotune_nb.view.plots.parts import label
from autotune_nb.view.sanitise import escape
from autotune_nb.view.source import Source, directory_of, names_of, state_of
from autotune_nb.view.theme import BAD, GOOD, MUTED, PATTERNS, Theme, figure
from autotune_nb.view.units import significant

_EVALUATION = "evaluation.json"
Profile: TypeAlias = pd.DataFrame | Sequence[Mapping[str, Any]]


def estimated_against_measured_data(
    sources: Sequence[Source],
    evaluations: Sequence[Mapping[str, Any] | None] | None = None,
    names: Sequence[str] | None = None,
) -> pd.DataFrame:
    """Return the estimated total of runs beside the latency that was measured.

    Columns: run, estimated (ms), partial, measured (ms), deviation (ms): the standard deviation of
    the repeats, and ratio (measured over estimated). NaN where a run was not evaluated, or its
    result was not correct.

    Parameters
    ----------
    sources
        The runs.
    evaluations
        What ``Evaluation.to_json`` gave for each; if None, what was last stored among the runs'
        artifacts. The estimate is that of the evaluation, which is of the same moment.
    names
        What the runs are called; their folders' names if None.
    """
    shown = list(names_of(sources) if names is None else names)
    found = [_stored(source) for source in sources] if evaluations is None else list(evaluations)
    if not len(shown) == len(found) == len(sources):
        raise InputError(
            f"{len(sources)} runs, {len(found)} evaluations and {len(shown)} names; pass one of "
            "each for every run"
        )
    rows = []
    for name, source, evaluation in zip(shown, sources, found, strict=True):
        state = state_of(source)
        value = evaluation or {}
        estimated = _number(value.get("estimated_total_latency_s"))
        if math.isnan(estimated):
            estimated = _number(state.estimated_total_latency_s)
        latency = value.get("latency_s") if value.get("correct") else None
        mean, std = (_number((latency or {}).get(key)) for key in ("mean", "std"))
        rows.append((name, estimated * 1e3, state.partial, mean * 1e3, std * 1e3, mean / estimated))
    columns = {
        "run": "str",
        "estimated (ms)": "float64",
        "partial": "bool",
        "measured (ms)": "float64",
        "deviation (ms)": "float64",
        "ratio": "float64",
    }
    return pd.DataFrame(rows, columns=list(columns)).astype(columns)


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else math.nan


def _stored(source: Source) -> Mapping[str, Any] | None:
    directory = directory_of(source)
    if directory is None:
        return None
    try:
        value = json.loads((directory.path / "artifacts" / _EVALUATION).read_bytes())
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def estimated_against_measured(
    *sources: Source,
    evaluations: Sequence[Mapping[str, Any] | None] | None = None,
    names: Sequence[str] | None = None,
    theme: Theme = "light",
) -> go.Figure:
    """Plot the estimated total latency of runs beside the measured latency of their networks.

    They differ by what no task accounts for: untuned functions, calls, and caches that a task had
    to itself while it was measured.

    Parameters
    ----------
    sources
        The runs.
    evaluations, names
        See `estimated_against_measured_data`.
    theme
        ``light``, ``dark`` or ``auto``.
    """
    table = estimated_against_measured_data(sources, evaluations, names)
    fig = figure(
        "Estimated total latency against the measured one",
        "latency (ms)",
        "run",
        theme,
        height=max(280, 150 + 60 * len(table)),
    )
    labels = [escape(name) for name in table["run"]]
    series = (("estimated", GOOD, 0, None), ("measured", BAD, 1, "deviation (ms)"))
    for name, paint, pattern, error in series:
        values = table[f"{name} (ms)"].to_numpy(dtype=np.float64)
        notes = [
            "" if math.isnan(ratio) else f"{significant(ratio, 3)} × the estimate"
            for ratio in table["ratio"]
        ]
        partial = ["partial" if part else "" for part in table["partial"]]
        fig.add_bar(
            x=values,
            y=labels,
            orientation="h",
            name=name,
            marker={"color": paint, "pattern": PATTERNS[pattern]},
            error_x=None if error is None else {"array": table[error], "color": MUTED},
            text=notes if error else partial,
            # at the foot of the bar, away from what tells the deviation
            textposition="inside",
            insidetextanchor="start",
            hovertemplate="%{y}: %{x:.4g} ms<extra>" + name + "</extra>",
        )
    fig.update_layout(barmode="group", showlegend=True)
    fig.update_xaxes(rangemode="tozero")
    fig.update_yaxes(autorange="reversed", type="category", dtick=1)
    return fig


def operator_profile_data(profile: Profile, limit: int = 30) -> pd.DataFrame:
    """Return where the time of one execution goes, the largest part first.

    Parameters
    ----------
    profile
        A row for each function: ``name``, ``duration_s`` (of all its calls), and, where known,
        ``calls`` and ``estimated_s`` (what its task promises for all its calls). Rows of one name
        are summed up.
    limit
        Functions beyond it are summed up in one last row.

    Returns
    -------
    pandas.DataFrame
        Columns: name, calls, time (ms), share (%) and estimated (ms), NaN where unknown.

    Raises
    ------
    InputError
        If a row lacks its name or duration, or a duration is negative.
    """
    given = pd.DataFrame(profile if isinstance(profile, pd.DataFrame) else list(profile))
    if given.empty:
        given = pd.DataFrame(columns=["name", "duration_s"])
    missing = {"name", "duration_s"} - set(given.columns)
    if missing:
        raise InputError(f"the profile has no {', '.join(sorted(missing))}; pass it for each row")
    table = pd.DataFrame(
        {
            "name": given["name"].astype("str"),
            "calls": given.get("calls", pd.Series(1, index=given.index)).astype("int64"),
            "time (ms)": given["duration_s"].astype("float64") * 1e3,
            "estimated (ms)": given.get(
                "estimated_s", pd.Series(math.nan, index=given.index)
            ).astype("float64")
            * 1e3,
        }
    )
    if not (table["time (ms)"] >= 0).all():
        raise InputError("the profile has a duration that is negative or none; pass seconds")
    sums = {"calls": "sum", "time (ms)": "sum", "estimated (ms)": lambda x: x.sum(min_count=len(x))}
    table = table.groupby("name", as_index=False, sort=False).agg(sums)
    table = table.sort_values(["time (ms)", "name"], ascending=[False, True], ignore_index=True)
    if len(table) > limit:
        rest = table.iloc[limit:]
        others = {
            "name": f"{len(rest)} other functions",
            "calls": rest["calls"].sum(),
            "time (ms)": rest["time (ms)"].sum(),
            "estimated (ms)": rest["estimated (ms)"].sum(min_count=len(rest)),
        }
        table = pd.concat([table.iloc[:limit], pd.DataFrame([others])], ignore_index=True)
    whole = table["time (ms)"].sum()
    table.insert(3, "share (%)", 100 * table["time (ms)"] / (whole or math.nan))
    return table.astype({"calls": "int64", "time (ms)": "float64", "estimated (ms)": "float64"})


def operator_profile(profile: Profile, limit: int = 30, *, theme: Theme = "light") -> go.Figure:
    """Plot where the time of one execution of the network goes.

    Parameters
    ----------
    profile, limit
        See `operator_profile_data`.
    theme
        ``light``, ``dark`` or ``auto``.
    """
    table = operator_profile_data(profile, limit)
    labels = [label(number, name) for number, name in enumerate(table["name"], 1)]
    height = max(260, 130 + 22 * len(labels))
    fig = figure("Time of each function in one execution", "time (ms)", "function", theme,
                 height=height)  # fmt: skip
    fig.add_bar(
        x=table["time (ms)"].to_numpy(dtype=np.float64),
        y=labels,
        orientation="h",
        name="measured",
        marker_color=GOOD,
        text=[f"{share:.1f} %" for share in table["share (%)"].fillna(0.0)],
        textposition="auto",
        hovertext=[
            f"{escape(name)}<br>{significant(time)} ms in {calls} calls"
            for name, calls, time in zip(
                table["name"], table["calls"], table["time (ms)"], strict=True
            )
        ],
        hoverinfo="text",
    )
    if table["estimated (ms)"].notna().any():
        fig.add_scatter(
            x=table["estimated (ms)"].to_numpy(dtype=np.float64),
            y=labels,
            mode="markers",
            name="promised by its task",
            marker={"color": BAD, "symbol": "line-ns-open", "size": 14, "line": {"width": 3}},
            hovertemplate="%{x:.4g} ms<extra>promised by its task</extra>",
        )
    fig.update_layout(showlegend=len(fig.data) > 1)
    fig.update_yaxes(autorange="reversed", type="category", dtick=1)
    return fig
