"""What the tuner's processes were doing over the time of a run."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from autotune_nb.errors import InputError
from autotune_nb.run import events as ev
from autotune_nb.view.downsample import Floats
from autotune_nb.view.plots.parts import X_TITLE
from autotune_nb.view.source import Source, events_of
from autotune_nb.view.theme import MUTED, PATTERNS, Theme, colour, template

_STEPS = ("search", "learn", "build", "measure")
_Spans = tuple[list[float], list[float]]


def timeline_data(source: Source, bins: int = 120) -> pd.DataFrame:
    """Return how many processes were at each step, over equal parts of the tuning time.

    Columns: start (s), end (s), search, learn, build and measure (processes at it, on average) and
    idle (%), the part of the time in which none of these went on. The journal says when a trial
    was done and how long its two steps took, but not when it was built: that is taken to be as
    soon as its round was searched and a builder was free. Empty for a run that keeps no times.

    Raises
    ------
    InputError
        If `source` is a bare state, or `bins` is not positive.
    """
    if bins < 1:
        raise InputError(f"bins={bins}: cannot show so many parts; pass a number from 1")
    spans, end = _spans(events_of(source))
    edges = np.linspace(0.0, end, bins + 1) if end > 0 else np.zeros(1)
    width = np.diff(edges)
    table = pd.DataFrame({"start (s)": edges[:-1], "end (s)": edges[1:]})
    every: list[tuple[Floats, Floats]] = []
    for step in _STEPS:
        starts, ends = (np.array(side, dtype=np.float64) for side in spans[step])
        starts = np.maximum(starts, 0.0)
        every.append((starts, ends))
        table[step] = np.diff(_covered(edges, starts, ends)) / width
    busy = _covered(edges, *_union(every))
    table["idle (%)"] = np.clip(100 * (1 - np.diff(busy) / width), 0.0, 100.0)
    return table


def _spans(events: Sequence[ev.Event]) -> tuple[dict[str, _Spans], float]:
    """Return when each step began and ended, and how long the tuning was."""
    spans: dict[str, _Spans] = {step: ([], []) for step in _STEPS}
    end = 0.0
    free = [0.0]  # a heap: when each builder is free
    searched: dict[int, float] = {}

    def add(step: str, until: float, duration: float) -> None:
        if duration > 0:
            spans[step][0].append(until - duration)
            spans[step][1].append(until)

    for event in events:
        end = max(end, event.used_s)
        if isinstance(event, ev.TunerStarted):
            free = [event.used_s] * max(1, event.workers.get("build", 1))
        elif isinstance(event, ev.RoundSearched):
            searched[event.round] = event.used_s
            add("search", event.used_s, event.search_s)
        elif isinstance(event, ev.TrialDone):
            add("measure", event.used_s, event.measure_s)
            ready = max(heapq.heappop(free), searched.get(event.round, 0.0)) + event.build_s
            ready = min(ready, event.used_s - event.measure_s)
            heapq.heappush(free, ready)
            add("build", ready, event.build_s)
        elif isinstance(event, ev.RoundFinished):
            add("learn", event.used_s, event.learn_s)
    return spans, end


def _covered(at: Floats, starts: Floats, ends: Floats) -> Floats:
    """Return, for each moment, how many seconds of the spans lie before it, in all."""
    return _since(at, starts) - _since(at, ends)


def _since(at: Floats, marks: Floats) -> Floats:
    """Return, for each moment, the sum of the time passed since each earlier mark."""
    marks = np.sort(marks)
    sums = np.r_[0.0, np.cumsum(marks)]
    count = np.searchsorted(marks, at)
    covered: Floats = count * at - sums[count]
    return covered


def _union(spans: Sequence[tuple[Floats, Floats]]) -> tuple[Floats, Floats]:
    """Return spans that cover the same time and do not overlap."""
    starts = np.concatenate([s for s, _ in spans])
    ends = np.concatenate([e for _, e in spans])
    order = np.argsort(starts)
    starts, ends = starts[order], np.maximum.accumulate(ends[order])
    first = np.r_[True, starts[1:] > ends[:-1]][: len(starts)]
    last = np.r_[first[1:], True][: len(starts)]
    return starts[first], ends[last]


def timeline(source: Source, *, bins: int = 120, theme: Theme = "light") -> go.Figure:
    """Plot what the tuner's processes were doing: search, learn, build, measure, or nothing.

    Parameters
    ----------
    source
        A session, a run directory or its path.
    bins
        Into how many parts the time is cut.
    theme
        ``light``, ``dark`` or ``auto``.
    """
    table = timeline_data(source, bins)
    fig = make_subplots(
        rows=2, cols=1, shared_xaxes=True, vertical_spacing=0.06, row_heights=[0.75, 0.25]
    )
    middle = ((table["start (s)"] + table["end (s)"]) / 2).to_numpy(dtype=np.float64)
    width = (table["end (s)"] - table["start (s)"]).to_numpy(dtype=np.float64)
    span = [
        f"{a:.0f} to {b:.0f} s" for a, b in zip(table["start (s)"], table["end (s)"], strict=True)
    ]
    for index, step in enumerate(_STEPS):
        fig.add_bar(
            x=middle,
            y=table[step].to_numpy(dtype=np.float64),
            width=width,
            name=step,
            marker={"color": colour(index), "line": {"width": 0}, "pattern": PATTERNS[index % 4]},
            hovertext=span,
            hovertemplate="%{hovertext}: %{y:.2f} processes<extra>" + step + "</extra>",
            row=1,
            col=1,
        )
    fig.add_bar(
        x=middle,
        y=table["idle (%)"].to_numpy(dtype=np.float64),
        width=width,
        name="idle",
        marker={"color": MUTED, "line": {"width": 0}},
        hovertext=span,
        hovertemplate="%{hovertext}: %{y:.1f} %<extra>idle</extra>",
        row=2,
        col=1,
    )
    fig.update_layout(
        template=template(theme),
        title_text="What the tuner did",
        height=460,
        barmode="stack",
        bargap=0,
        showlegend=True,
        legend={"y": -0.16},
    )
    fig.update_xaxes(title_text=X_TITLE["time"], row=2, col=1)
    fig.update_yaxes(title_text="processes at it", rangemode="tozero", row=1, col=1)
    fig.update_yaxes(title_text="idle (%)", range=[0, 100], row=2, col=1)
    return fig
