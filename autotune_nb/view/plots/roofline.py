"""How near each task comes to what the machine can do."""

from __future__ import annotations

import json
import math

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from autotune_nb.errors import InputError, RunError
from autotune_nb.run.buffers import buffer_bytes
from autotune_nb.run.records import TaskInfo
from autotune_nb.view.plots.parts import label
from autotune_nb.view.sanitise import escape
from autotune_nb.view.schedule import find_records, summary
from autotune_nb.view.source import Source, directory_of, state_of
from autotune_nb.view.theme import BAD, GOOD, MUTED, Theme, figure
from autotune_nb.view.trace import decisions
from autotune_nb.view.units import significant

FILE = "roofline.json"  # among a run's artifacts: the peak and bandwidth of its device
_LARGEST = 34.0  # of a task's mark, in pixels


def _traffic(task: TaskInfo) -> float:
    return math.fsum(map(buffer_bytes, task.shapes)) if task.shapes else math.nan


def roofline_data(
    source: Source, peak_gflops: float | None = None, bandwidth_gbs: float | None = None
) -> pd.DataFrame:
    """Return how fast each task is, and how fast the machine would let it be.

    Columns: ID, name, work (MFLOP), traffic (MB): each buffer read or written once, intensity
    (FLOP/byte), latency (ms), share (%), speed (GFLOPS), limit (GFLOPS), attained (%) of that, and
    bound: ``compute`` or ``memory``. Tasks without a result, without arithmetic or of unknown
    shapes are not in it.

    Parameters
    ----------
    source
        The run.
    peak_gflops, bandwidth_gbs
        What the device can do: 10⁹ operations and bytes a second. If None, what
        ``autotune_nb.deploy.roofline.of_run`` has measured for the run.

    Raises
    ------
    InputError
        If they are neither given nor measured yet, or not positive.
    """
    peak, bandwidth = _machine(source, peak_gflops, bandwidth_gbs)
    state = state_of(source)
    total = state.estimated_total_latency_s or math.nan
    rows = []
    for task in state.tasks:
        traffic, speed = _traffic(task.info), task.gflops
        if speed is None or not task.info.flops or not traffic > 0 or not task.best_latency_s:
            continue
        intensity = task.info.flops / traffic
        limit = min(peak, intensity * bandwidth)
        rows.append(
            (
                task.info.id,
                task.info.name,
                task.info.flops / 1e6,
                traffic / 1e6,
                intensity,
                task.best_latency_s * 1e3,
                100 * (task.weighted_latency_s or 0.0) / total,
                speed,
                limit,
                100 * speed / limit,
                "compute" if intensity * bandwidth >= peak else "memory",
            )
        )
    columns = {
        "ID": "int64",
        "name": "str",
        "work (MFLOP)": "float64",
        "traffic (MB)": "float64",
        "intensity (FLOP/byte)": "float64",
        "latency (ms)": "float64",
        "share (%)": "float64",
        "speed (GFLOPS)": "float64",
        "limit (GFLOPS)": "float64",
        "attained (%)": "float64",
        "bound": "str",
    }
    return pd.DataFrame(rows, columns=list(columns)).astype(columns)


def _machine(source: Source, peak: float | None, bandwidth: float | None) -> tuple[float, float]:
    if peak is None or bandwidth is None:
        known = _measured(source)
        peak = known[0] if peak is None else peak
        bandwidth = known[1] if bandwidth is None else bandwidth
    if not (0 < peak < math.inf and 0 < bandwidth < math.inf):
        raise InputError(
            f"a peak of {peak} GFLOPS and a bandwidth of {bandwidth} GB/s are not possible; pass "
            "numbers above 0"
        )
    return peak, bandwidth


def _measured(source: Source) -> tuple[float, float]:
    directory = directory_of(source)
    path = None if directory is None else directory.path / "artifacts" / FILE
    try:
        value = json.loads(path.read_bytes()) if path is not None else {}
        return float(value["peak_gflops"]), float(value["bandwidth_gbs"])
    except (OSError, ValueError, TypeError, KeyError):
        raise InputError(
            "the machine's peak and bandwidth are not known; pass peak_gflops= and bandwidth_gbs=, "
            "or measure them once with autotune_nb.deploy.roofline.of_run(session.directory)"
        ) from None


def roofline(
    source: Source,
    peak_gflops: float | None = None,
    bandwidth_gbs: float | None = None,
    *,
    theme: Theme = "light",
) -> go.Figure:
    """Plot the speed of each task against the roofline of the machine.

    A task whose data stay in a cache may come to lie above the slope, which is that of the memory.
    Williams et al., "Roofline: An Insightful Visual Performance Model" (CACM 2009).

    Parameters
    ----------
    source
        The run.
    peak_gflops, bandwidth_gbs
        See `roofline_data`.
    theme
        ``light``, ``dark`` or ``auto``.
    """
    peak, bandwidth = _machine(source, peak_gflops, bandwidth_gbs)
    table = roofline_data(source, peak, bandwidth)
    fig = figure(
        "Speed of each task against the roofline",
        "arithmetic intensity (FLOP/byte)",
        "speed (GFLOPS)",
        theme,
        height=480,
    )
    ridge = peak / bandwidth
    along = table["intensity (FLOP/byte)"]
    low = min(ridge, along.min() if len(table) else ridge) / 2
    high = max(ridge, along.max() if len(table) else ridge) * 2
    fig.add_scatter(
        x=np.array([low, ridge, high]),
        y=np.array([low * bandwidth, peak, peak]),
        mode="lines",
        name=f"roofline: {significant(peak)} GFLOPS, {significant(bandwidth)} GB/s",
        line={"color": MUTED, "width": 2},
        hoverinfo="skip",
    )
    plans = _plans(source)
    for bound, paint, symbol in (("compute", GOOD, "circle"), ("memory", BAD, "diamond")):
        rows = table[table["bound"] == bound]
        if rows.empty:
            continue
        fig.add_scatter(
            x=rows["intensity (FLOP/byte)"].to_numpy(dtype=np.float64),
            y=rows["speed (GFLOPS)"].to_numpy(dtype=np.float64),
            mode="markers",
            name=f"bound by {bound}",
            marker={
                "color": paint,
                "symbol": symbol,
                "opacity": 0.8,
                # the area tells the share of the total
                "size": np.maximum(7.0, _LARGEST * np.sqrt(rows["share (%)"] / 100)),
            },
            hovertext=[_hover(row, plans) for row in rows.to_dict("records")],
            hoverinfo="text",
        )
    fig.update_xaxes(type="log")
    fig.update_yaxes(type="log")
    fig.update_layout(showlegend=True)
    return fig


def _hover(row: dict[str, object], plans: dict[int, str]) -> str:
    number = int(str(row["ID"]))
    numbers = {key: significant(float(str(row[key]))) for key in row if "(" in key}
    text = (
        f"{label(number, str(row['name']), 60)}<br>{numbers['speed (GFLOPS)']} GFLOPS, "
        f"{numbers['attained (%)']} % of what {row['bound']} allows<br>"
        f"{numbers['latency (ms)']} ms, {numbers['share (%)']} % of the total"
    )
    return f"{text}<br>{plans[number]}" if number in plans else text


def _plans(source: Source) -> dict[int, str]:
    """Return the best schedule of each task in one line, wrapped."""
    directory = directory_of(source)
    if directory is None:
        return {}
    best = {t.best_record: t.info.id for t in state_of(source).tasks if t.best_record}
    found = {}
    for digest, line in find_records(directory, best).items():
        try:
            text = escape(summary(decisions(line)))
        except RunError:  # of another TVM
            continue
        found[best[digest]] = text.replace("; ", "<br>")
    return found
