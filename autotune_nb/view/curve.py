"""The convergence plot of a live view: one FigureWidget whose traces are refilled, never remade."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go

from autotune_nb.run.state import State
from autotune_nb.view.downsample import Floats, m4
from autotune_nb.view.plots.parts import X_TITLE, label
from autotune_nb.view.theme import COLOURS, colour, dash, figure

MAX_TASKS = 6  # lines of single tasks at one time
_POINTS = 1000  # of one line; all lines together stay under 100 kB a redraw
_EMPTY: Floats = np.zeros(0)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """What the rest of a run is expected to bring, along its trials or its time.

    Attributes
    ----------
    trials, used_s
        Where, on either axis.
    low_s, median_s, high_s
        Estimated total latency there: 80 % of outcomes are expected between low and high.
    """

    trials: Floats
    used_s: Floats
    low_s: Floats
    median_s: Floats
    high_s: Floats


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """Points of one line, and its name in the legend."""

    x: Floats
    y: Floats
    name: str | None = None


def lines(
    state: State, x: str = "trials", tasks: Sequence[int] = (), band: Band | None = None
) -> list[Line]:
    """Return what the plot draws, one line for each of its traces, in their order.

    Parameters
    ----------
    state
        The run.
    x
        ``trials`` or ``time``.
    tasks
        IDs of tasks whose part of the total (latency × weight) is drawn too, `MAX_TASKS` at most.
    band
        The forecast, if any.
    """
    by_time = x == "time"
    curve = state.curve
    xs = np.array([p.used_s if by_time else p.trial for p in curve], dtype=np.float64)
    ys = np.array([p.estimated_total_latency_s for p in curve], dtype=np.float64) * 1e3
    partial = np.array([p.partial for p in curve], dtype=bool)
    now = float(state.used_s if by_time else state.trials)
    first = int(np.argmin(partial)) if len(curve) and not partial.all() else len(curve)
    part_x, part_y = xs[:first], ys[:first]
    if first and first < len(curve):  # up to where the whole line begins
        part_x, part_y = np.r_[part_x, xs[first]], np.r_[part_y, part_y[-1]]
    out = [
        _line(part_x, part_y, now if first == len(curve) else None),
        _line(xs[first:], ys[first:], now),
    ]
    for slot in range(MAX_TASKS):
        if slot >= len(tasks):
            out.append(Line(x=_EMPTY, y=_EMPTY))
            continue
        task = state.tasks[tasks[slot]]
        weight = task.info.weight * 1e3
        points = [p for p in curve if p.task == task.info.id]
        line = _line(
            np.array([p.used_s if by_time else p.trial for p in points], dtype=np.float64),
            np.array([p.latency_s * weight for p in points], dtype=np.float64),
            now,
        )
        name = label(task.info.id, task.info.name)
        out.append(dataclasses.replace(line, name=name))
    if band is None:
        return [*out, *(Line(x=_EMPTY, y=_EMPTY) for _ in range(3))]
    along = band.used_s if by_time else band.trials
    return [*out, *(Line(x=along, y=y * 1e3) for y in (band.low_s, band.high_s, band.median_s))]


def _line(x: Floats, y: Floats, until: float | None) -> Line:
    """Return a thinned line, drawn on to `until` at its last height."""
    if len(x) and until is not None and until > x[-1]:
        x, y = np.r_[x, until], np.r_[y, y[-1]]
    kept = m4(x, y, _POINTS)
    return Line(x=x[kept], y=y[kept])


class Curve:
    """The FigureWidget of one view.

    Raises
    ------
    ImportError
        If anywidget, which FigureWidget needs, is missing.
    """

    def __init__(self, drawn: Sequence[Line], x: str = "trials") -> None:
        fig = figure("", X_TITLE[x], "estimated total latency (ms)", "auto", height=340)
        fig.update_layout(margin={"t": 10, "r": 24}, legend={"y": -0.22}, autosize=True)
        fig.update_yaxes(rangemode="tozero")
        styles: list[dict[str, Any]] = [
            {"name": "partial total", "line": {"color": COLOURS[0], "dash": "dot", "width": 1}},
            {"name": "estimated total", "line": {"color": COLOURS[0]}},
            *(
                {"name": "", "line": {"color": colour(i + 1), "dash": dash(i + 1), "width": 1.5}}
                for i in range(MAX_TASKS)
            ),
            {"name": "forecast, low", "line": {"width": 0}, "showlegend": False},
            {
                "name": "forecast, 80 %",
                "line": {"width": 0},
                "fill": "tonexty",
                "fillcolor": "rgba(86,180,233,0.3)",
            },
            {"name": "forecast", "line": {"color": COLOURS[4], "dash": "dash"}},
        ]
        # Traces given to the constructor survive a reload of the page; those added later do not.
        traces = []
        for number, (line, style) in enumerate(zip(drawn, styles, strict=True)):
            forecast = number >= len(styles) - 3
            trace = go.Scatter(mode="lines", x=line.x, y=line.y, **style)
            trace.line.shape = "linear" if forecast else "hv"
            trace.hovertemplate = "%{x:.0f}: %{y:.4g} ms<extra>%{fullData.name}</extra>"
            trace.visible = bool(len(line.x))
            if line.name is not None:
                trace.name = line.name
            traces.append(trace)
        self.widget = go.FigureWidget(data=traces, layout=fig.layout)
        self.widget._config = {**self.widget._config, "responsive": True, "displaylogo": False}
        self._fits = itertools.count()
        self._drawn = list(drawn)
        self._x = x

    def draw(self, drawn: Sequence[Line], x: str) -> bool:
        """Send what has changed to the browser; tell whether there was anything."""
        changed = [
            index
            for index, (old, new) in enumerate(zip(self._drawn, drawn, strict=True))
            if not _same(old, new)
        ]
        if not changed and x == self._x:
            return False
        with self.widget.batch_update():
            for index in changed:
                trace, line = self.widget.data[index], drawn[index]
                trace.x, trace.y = line.x, line.y
                trace.visible = bool(len(line.x))
                if line.name is not None:
                    trace.name = line.name
            self.fit()
            if x != self._x:
                self.widget.layout.xaxis.title.text = X_TITLE[x]
        self._drawn, self._x = list(drawn), x
        return True

    def fit(self) -> None:
        """Let the browser fit the plot to the page.

        It is drawn before it has a place there, 700 pixels wide; any change of the layout makes
        plotly look again, so one that nobody sees is made.
        """
        self.widget.layout.meta = {"fit": next(self._fits)}


def _same(a: Line, b: Line) -> bool:
    return a.name == b.name and np.array_equal(a.x, b.x) and np.array_equal(a.y, b.y)
