"""The live view of a run: one widget that polls the journal and draws what is new.

A daemon thread polls, since an asyncio task would stand still while a cell blocks. The view holds
no results: it draws a state, and all it asks of the run goes through `Controls`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ipywidgets as widgets

from autotune_nb.run.directory import RunDirectory
from autotune_nb.run.state import State, initial
from autotune_nb.view import curve, devices, markup, registry
from autotune_nb.view.controls import Controls, Now
from autotune_nb.view.history import History
from autotune_nb.view.outlook import Outlook
from autotune_nb.view.sanitise import clean, escape, shorten
from autotune_nb.view.source import Run
from autotune_nb.view.status import Status, status
from autotune_nb.view.text import render_task_table

_INTERVAL_S = 0.25  # between two polls: at most four redraws a second
_HOLDER_S = 1.0  # between two looks at the lock
_PLOT_S = 0.5  # between two redraws of the plot
_FITS_S = (0.7, 2.0, 5.0)  # after it was put out, when the plot is fitted to the page
_MARK_S = 4.0  # how long a new best latency stays marked
_LOAD = 20.0  # a redraw that took t is followed by a rest of at least 20 t: under 5 % of a core
_REST_S = 2.0  # but never a longer one


class View:
    """A live widget of one run; display it, or let a cell end with it.

    Parameters
    ----------
    run
        The run: a `RunDirectory`, its path, or a replay.
    start
        Starts a tuner and returns, as `TuningSession.tune` does; None leaves out the button.
    interval_s
        Seconds between two polls of the journal.
    """

    def __init__(
        self,
        run: Run | str | Path,
        start: Callable[..., object] | None = None,
        *,
        interval_s: float = _INTERVAL_S,
    ) -> None:
        # a reader of its own: the session's is polled by another thread
        self._run: Run = (
            RunDirectory(run.path if isinstance(run, RunDirectory) else run)
            if isinstance(run, RunDirectory | str | Path)
            else run
        )
        manifest = self._run.manifest
        self._title = f"{manifest.name} on {manifest.device_name or manifest.device}"
        self._interval_s = max(_INTERVAL_S, interval_s)
        self._lock = threading.RLock()
        self._stop = threading.Event()
        self._state = self._run.poll()
        self._holder = self._run.holder()
        self._holder_read = self._plotted = time.monotonic()
        self._plot_due = False
        self._quiet = False  # True while the history slider is moved by us
        self._fits: list[float] = []
        self._marks: dict[int, float] = {}
        self._history: History | None = None
        self._build(start, manifest.read_only or self._holder is None)
        self._thread = threading.Thread(
            target=self._poll, name=f"autotune-nb view of {self._run.path}", daemon=True
        )
        registry.register(self._run.path, self)
        self._thread.start()

    # Building ------------------------------------------------------------------------------

    def _build(self, start: Callable[..., object] | None, read_only: bool) -> None:
        self._head = widgets.HTML()
        self._error = widgets.HTML()
        self._table = widgets.HTML()
        self._failures = widgets.HTML()
        self.x = widgets.ToggleButtons(
            options=[("trials", "trials"), ("time", "time")],
            description="Against",
            style={"button_width": "70px"},
        )
        self.order = widgets.Dropdown(
            options=list(markup.ORDERS),
            description="Sort by",
            layout=widgets.Layout(width="200px"),
        )
        self.descending = widgets.ToggleButton(
            description="Largest first", tooltip="Sort the other way round", icon="sort"
        )
        self.past = widgets.IntSlider(
            description="Table after trial",
            min=0,
            max=max(1, self._state.trials),
            value=max(1, self._state.trials),
            style={"description_width": "initial"},
            layout=widgets.Layout(width="480px"),
        )
        self.follow = widgets.ToggleButton(
            value=True, description="Live", icon="circle", tooltip="Show the newest state"
        )
        self._outlook = Outlook()
        self._forecast = widgets.HTML()
        self.controls = Controls(self._run.requests, self._now, start, read_only=read_only)
        try:
            self._curve: curve.Curve | None = curve.Curve(self._lines())
            plot: Any = self._curve.widget
        except ImportError:
            self._curve = None
            plot = widgets.HTML(
                "<div class='atnb bad'>The live plot needs anywidget: install it with "
                "<code>pip install anywidget</code> and restart the kernel. "
                "<code>session.snapshot()</code> shows the plot without it.</div>"
            )
        controls = self.controls
        wrapped = widgets.Layout(flex_flow="row wrap", width="100%")
        budget = (
            [] if read_only else [widgets.HBox([controls.slider, self._forecast], layout=wrapped)]
        )
        self.widget = widgets.VBox(
            [
                widgets.HTML(markup.STYLE),
                self._head,
                self._error,
                controls.widget,
                controls.message,
                *budget,
                self.x,
                plot,
                widgets.HBox([self.order, self.descending]),
                self._table,
                widgets.HBox([self.past, self.follow]),
                self._failures,
            ],
            layout=widgets.Layout(width="100%", max_width="1200px"),
        )
        for control in (self.x, self.order, self.descending, self.follow, controls.tasks):
            control.observe(self._on_choice, names="value")
        self.past.observe(self._on_past, names="value")
        controls.slider.observe(self._on_choice, names="value")
        self._draw(everything=True)

    def _now(self) -> Now:
        return Now(self._state, self._status())

    def _status(self) -> Status:
        return status(self._state, self._holder)

    def _lines(self) -> list[curve.Line]:
        band = self._outlook.band(self._state, self.controls.slider.value)
        return curve.lines(self._state, self.x.value, list(self.controls.tasks.value), band)

    # Drawing -------------------------------------------------------------------------------

    def _poll(self) -> None:
        rest = self._interval_s
        while not self._stop.wait(rest):
            began = time.thread_time()
            try:
                self.refresh()
                self._tell_error("")
            except Exception as error:  # the next poll may go well; a dead view would say nothing
                self._tell_error(f"{type(error).__name__}: {error}")
            cost = time.thread_time() - began
            rest = max(self._interval_s, min(_REST_S, _LOAD * cost))

    def _tell_error(self, text: str) -> None:
        shown = f"<div class='atnb bad'>{escape(shorten(clean(text), 400))}</div>" if text else ""
        if self._error.value != shown:
            self._error.value = shown

    def refresh(self) -> None:
        """Read what is new and draw it; the view does so by itself a few times a second."""
        with self._lock:
            if self._stop.is_set():
                return
            before, self._state = self._state, self._run.poll()
            now = time.monotonic()
            if now - self._holder_read >= _HOLDER_S:
                self._holder, self._holder_read = self._run.holder(), now
            for old, new in zip(before.tasks, self._state.tasks, strict=True):
                if new is not old and new.best_trial not in (None, old.best_trial):
                    self._marks[new.info.id] = now
            marks = len(self._marks)
            self._marks = {t: at for t, at in self._marks.items() if now - at < _MARK_S}
            self._draw(everything=self._state is not before or len(self._marks) != marks)
            self._stretch_past()
            if self._curve is not None and self._fits and now >= self._fits[0]:
                self._fits = [at for at in self._fits if at > now]
                self._curve.fit()
            self.controls.tick()
            for widget in self._answering():
                registry.forget_route(widget)

    def _draw(self, *, everything: bool) -> None:
        _set(self._head, markup.summary(self._state, self._status(), self._title))
        self.controls.tell()
        if everything:
            notes = (devices.table, markup.damage, markup.failures)
            _set(self._failures, "".join(note(self._state) for note in notes))
            self._draw_table()
            self._outlook.update(self._state, self.controls.slider.max)
            _set(self._forecast, self._outlook.words(self._state, self.controls.slider.value))
            self._plot_due = True
        now = time.monotonic()
        if self._curve is not None and self._plot_due and now - self._plotted >= _PLOT_S:
            self._curve.draw(self._lines(), self.x.value)
            self._plotted, self._plot_due = now, False

    def _draw_table(self) -> None:
        live = self.follow.value
        state = self._state if live else self._past(self.past.value)
        _set(
            self._table,
            markup.task_table(
                state,
                order=self.order.value,
                descending=self.descending.value,
                changed=self._marks if live else (),
            ),
        )

    def _stretch_past(self) -> None:
        """Let the history slider reach the newest trial, now and then: see `Controls.tick`."""
        trials = self._state.trials
        if self.follow.value and trials > self.past.max * 1.2:
            self._quiet = True
            try:
                self.past.max = trials
                self.past.value = trials
            finally:
                self._quiet = False

    def _past(self, trials: int) -> State:
        if self._history is None:
            manifest = self._run.manifest
            self._history = History(self._run.journal, initial(manifest.tasks, manifest.choices))
        return self._history.at(trials)

    def _on_choice(self, change: Any) -> None:
        """Redraw at once after a choice of what is shown."""
        with self._lock:
            if self._stop.is_set():
                return
            self._plotted = 0.0
            if change["owner"] is self.follow and self.follow.value:
                self.past.max = max(1, self._state.trials)
                self.past.value = self.past.max  # which is the newest state, so `follow` stays
            self._draw(everything=True)

    def _on_past(self, change: Any) -> None:
        with self._lock:
            if self._stop.is_set() or self._quiet:
                return
            if change["new"] != self.past.max:
                self.follow.value = False
            self._draw_table()

    def _answering(self) -> list[Any]:
        controls = self.controls
        return [
            self.x,
            self.order,
            self.descending,
            self.past,
            self.follow,
            controls.slider,
            controls.tasks,
            *controls.buttons.values(),
        ]

    # Ending --------------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        """True once the view no longer polls."""
        return self._stop.is_set()

    def close(self) -> None:
        """End the polling and take the widget out of the page; a second call does nothing."""
        if self._stop.is_set():
            return
        self._stop.set()
        registry.forget(self)
        if self._thread is not threading.current_thread():
            self._thread.join(timeout=10.0)
        with self._lock:
            # those of a run that cannot be changed are not in the page, but are widgets too
            _close(self.widget)
            for widget in self._answering():
                _close(widget)

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, Any]:
        with self._lock:
            text = render_task_table(self._state, self._holder)
            if self.closed:
                return {"text/plain": f"{text}\nThis view was closed."}
            now = time.monotonic()
            self._fits = [now + after for after in _FITS_S]
            bundle: dict[str, Any] = dict(self.widget._repr_mimebundle_(**kwargs))
            # what is shown where there are no widgets: on a terminal, in a text export
            return {**bundle, "text/plain": text}


def _set(widget: Any, value: str) -> None:
    if widget.value != value:
        widget.value = value


def _close(widget: Any) -> None:
    """Close a widget and all that belongs to it: children, layout and style."""
    for child in getattr(widget, "children", ()):
        _close(child)
    widget.unobserve_all()
    for part in (getattr(widget, "layout", None), getattr(widget, "style", None), widget):
        if isinstance(part, widgets.Widget):
            part.close()
