"""One look for all figures: colours that colour-blind people can tell apart, light and dark."""

from __future__ import annotations

import functools
from typing import Literal

import plotly.graph_objects as go

Theme = Literal["light", "dark", "auto"]

# Okabe and Ito's palette, without black, in the order that keeps neighbours apart; yellow comes
# last since it is weak on white.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442")
GOOD, BAD, MUTED = "#0072B2", "#D55E00", "#8A8A8A"
# Fills of bars: for those who cannot tell the colours apart.
PATTERNS = tuple({"shape": shape, "fillmode": "overlay"} for shape in ("", "/", ".", "x"))
DASHES = ("solid", "dash", "dot", "dashdot")


def colour(index: int) -> str:
    """Return the colour of the nth series."""
    return COLOURS[index % len(COLOURS)]


def dash(index: int) -> str:
    """Return the line style of the nth series: it changes once the colours begin again."""
    return DASHES[index // len(COLOURS) % len(DASHES)]


@functools.cache
def template(theme: Theme = "light") -> go.layout.Template:
    """Return the plotly template of a theme.

    ``auto`` has no background of its own and a grey that can be read on white and on black, for
    pages whose theme is not known.
    """
    ground, paper, ink, grid = {
        "light": ("#FFFFFF", "#FFFFFF", "#202020", "#E3E3E3"),
        "dark": ("#111111", "#111111", "#E6E6E6", "#3A3A3A"),
        "auto": ("rgba(0,0,0,0)", "rgba(0,0,0,0)", "#808080", "rgba(128,128,128,0.25)"),
    }[theme]
    axis = {
        "gridcolor": grid,
        "linecolor": ink,
        "zeroline": False,
        "showline": True,
        "ticks": "outside",
        "tickcolor": ink,
        "automargin": True,
        "title": {"standoff": 8},
    }
    layout = {
        "colorway": list(COLOURS),
        "font": {"family": "system-ui, -apple-system, Segoe UI, sans-serif", "color": ink},
        "paper_bgcolor": paper,
        "plot_bgcolor": ground,
        "title": {"x": 0.01, "xanchor": "left", "font": {"size": 16}},
        "margin": {"l": 60, "r": 20, "t": 50, "b": 50},
        "xaxis": axis,
        "yaxis": axis,
        "legend": {"orientation": "h", "y": -0.2, "yanchor": "top", "x": 0},
        "hoverlabel": {"align": "left", "namelength": 40},
    }
    return go.layout.Template(layout=layout)


def figure(title: str, x: str, y: str, theme: Theme, *, height: int = 380) -> go.Figure:
    """Return an empty figure with a title and named axes."""
    out = go.Figure()
    out.update_layout(template=template(theme), title_text=title, height=height)
    out.update_xaxes(title_text=x)
    out.update_yaxes(title_text=y)
    return out
