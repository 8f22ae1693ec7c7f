"""A run's last state as static HTML: for exported notebooks and pages without widgets."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import plotly.graph_objects as go

from autotune_nb.run import lines
from autotune_nb.run.lock import Holder
from autotune_nb.run.state import State
from autotune_nb.view import devices, markup
from autotune_nb.view.plots.convergence import convergence
from autotune_nb.view.sanitise import escape
from autotune_nb.view.source import Source, directory_of, state_of
from autotune_nb.view.status import status
from autotune_nb.view.text import render_task_table
from autotune_nb.view.theme import Theme

_CONFIG = {"displaylogo": False, "responsive": True}


def figures_html(figures: Sequence[go.Figure], *, first_brings_plotly: bool = True) -> list[str]:
    """Return figures as HTML that needs no network; the first brings plotly.js (about 5 MB)."""
    return [
        figure.to_html(
            full_html=False,
            include_plotlyjs=first_brings_plotly and index == 0,
            include_mathjax=False,
            config=_CONFIG,
        )
        for index, figure in enumerate(figures)
    ]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """What a run looked like at one moment; a notebook shows it without any widget.

    Attributes
    ----------
    title
        What was tuned, and on what.
    state, holder
        The run, and who tuned it.
    plot
        False leaves out the plot, and with it 5 MB of plotly.js.
    theme
        ``light``, ``dark`` or ``auto``.
    """

    title: str
    state: State
    holder: Holder | None = None
    plot: bool = True
    theme: Theme = "auto"

    @classmethod
    def take(cls, source: Source, *, plot: bool = True, theme: Theme = "auto") -> Snapshot:
        """Take a snapshot of a session, run directory, path or state."""
        directory = directory_of(source)
        if directory is None:
            return cls(title="", state=state_of(source), plot=plot, theme=theme)
        manifest = directory.manifest
        return cls(
            title=f"{manifest.name} on {manifest.device_name or manifest.device}",
            state=directory.poll(),
            holder=None if manifest.read_only else directory.holder(),
            plot=plot,
            theme=theme,
        )

    def _repr_html_(self) -> str:
        parts = [
            markup.STYLE,
            markup.summary(self.state, status(self.state, self.holder), self.title),
            markup.task_table(self.state),
        ]
        if self.plot:
            parts += figures_html([convergence(self.state, names=["total"], theme=self.theme)])
        notes = (devices.table, markup.damage, markup.failures)
        parts += [note(self.state) for note in notes]
        return "".join(parts)

    def __str__(self) -> str:
        return render_task_table(self.state, self.holder)

    def save(self, path: str | Path) -> Path:
        """Write the snapshot as an HTML page of its own that opens offline, and return its path."""
        page = (
            "<!doctype html><html lang='en'><head><meta charset='utf-8'>"
            f"<title>{escape(self.title)}</title></head>"
            f"<body style='font-family: system-ui, sans-serif'>{self._repr_html_()}</body></html>"
        )
        lines.replace(Path(path), page.encode())
        return Path(path)
