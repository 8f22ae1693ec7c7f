"""The controls of a live view: start, pause, resume, stop, focus and the trial budget.

Each but start appends a line to the run's requests; the journal says when the tuner took it and
when it took effect, and the view shows both.
"""

from __future__ import annotations

import dataclasses
import inspect
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ipywidgets as widgets

from autotune_nb.errors import AutotuneError
from autotune_nb.run import requests
from autotune_nb.run.requests import Request
from autotune_nb.run.state import RequestState, State
from autotune_nb.view.sanitise import clean, escape, shorten
from autotune_nb.view.status import Status

_SHOWN = 4  # requests shown
_START_S = 60.0  # how long a start may take before another is let through
_SETTLE_S = 0.7  # the slider must rest so long before the budget is asked for
_PER_TASK = 64  # trials of each task that the slider reaches at least


@dataclasses.dataclass(frozen=True, slots=True)
class Now:
    """What the controls decide by."""

    state: State
    status: Status


class Controls:
    """Buttons, task list and budget slider of one view.

    Parameters
    ----------
    path
        The run's file of requests.
    now
        Gives the newest state of the run.
    start
        Starts a tuner and returns; gets the slider's budget as ``trials`` and ``seconds`` if it
        takes these. None where none can be started.
    read_only
        Show no control that changes the run.
    """

    def __init__(
        self,
        path: Path,
        now: Callable[[], Now],
        start: Callable[..., object] | None = None,
        *,
        read_only: bool = False,
    ) -> None:
        self._path = path
        self._now = now
        self._start = start
        self._lock = threading.RLock()
        self._asked: dict[str, Request] = {}
        self._note = ""
        self._start_asked: float | None = None
        self._moved: float | None = None  # when the slider was last dragged
        self._quiet = False  # True while the slider is moved by us
        state = now().state
        self._budget = state.budget.trials
        self.tasks = widgets.SelectMultiple(
            options=[
                (shorten(f"{t.info.id} {clean(t.info.name)}", 60), t.info.id) for t in state.tasks
            ],
            description="Tasks",
            rows=min(8, max(3, len(state.tasks))),
            tooltip="Selected tasks are drawn in the plot",
            layout=widgets.Layout(width="420px"),
        )
        self.slider = widgets.IntSlider(
            description="Trial budget",
            min=1,
            max=self._reach(state),
            value=self._slider_value(state),
            style={"description_width": "initial"},
            layout=widgets.Layout(flex="0 0 auto", width="440px"),
            disabled=read_only,
        )
        self.slider.observe(self._on_slide, names="value")
        self.buttons = {
            name: self._button(*face, act)
            for name, face, act in (
                ("start", ("Start", "play", "Start a tuner for this run"), self._on_start),
                ("pause", ("Pause", "pause", "Pause after the running step"), self._asker("pause")),
                ("resume", ("Resume", "forward", "Go on after a pause"), self._asker("resume")),
                ("stop", ("Stop", "stop", "End the tuner; the run stays"), self._asker("stop")),
                ("focus", ("Tune only selected", "", "Trials go to these"), self._on_focus),
                ("skip", ("Leave out selected", "", "Trials go to the others"), self._on_skip),
                ("all", ("Tune all", "", "Trials go to all tasks"), self._on_all),
            )
        }
        self.message = widgets.HTML()
        b = self.buttons
        self._start_row = [] if start is None else [b["start"]]
        fixed = widgets.Layout(flex="0 0 auto", overflow="visible")
        rows = [
            widgets.HBox([*self._start_row, b["pause"], b["resume"], b["stop"]]),
            widgets.HBox(
                [widgets.VBox([b["focus"], b["skip"], b["all"]], layout=fixed), self.tasks]
            ),
        ]
        self.widget = widgets.VBox([self.tasks] if read_only else rows)
        self.tell()

    def _button(self, text: str, icon: str, tip: str, act: Callable[[], None]) -> widgets.Button:
        button = widgets.Button(description=text, icon=icon, tooltip=tip)
        button.on_click(lambda _: self._guard(act))
        return button

    def _guard(self, act: Callable[[], None]) -> None:
        """Run a callback: what it raises is shown, for a print would reach no cell."""
        with self._lock:
            try:
                act()
            except AutotuneError as error:
                self._note = str(error)
            except OSError as error:
                self._note = f"the request could not be written: {error}"
            except Exception as error:
                self._note = f"{type(error).__name__}: {error}"
            self.tell()

    # What is asked for ---------------------------------------------------------------------

    def ask(self, wish: str, **details: Any) -> None:
        """Append a request, unless the same one waits already."""
        for known in self._waiting():
            if known.wish == wish and all(getattr(known, k) == v for k, v in details.items()):
                self._note = f"{wish} was asked for already"
                return
        request = requests.append(self._path, wish, **details)
        self._asked[request.id] = request
        self._note = ""

    def _waiting(self) -> list[Request]:
        done = {r.id for r in self._now().state.requests if r.done is not None}
        return [request for key, request in self._asked.items() if key not in done]

    def _asker(self, wish: str) -> Callable[[], None]:
        def act() -> None:
            where = self._now().status
            if not where.alive:
                self._note = f"nothing to {wish}: no tuner is at work ({where.state})"
            elif wish == "pause" and where.state == "paused":
                self._note = "the run is paused already"
            elif wish == "resume" and where.state != "paused":
                self._note = "the run is not paused"
            else:
                self.ask(wish)

        return act

    def _on_start(self) -> None:
        now = time.monotonic()
        if self._now().status.alive:
            self._note = "a tuner is at work already"
        elif self._start_asked is not None and now - self._start_asked < _START_S:
            self._note = "the tuner is being started"
        elif self._start is not None:
            self._start_asked = now
            try:
                self._call(self._start)
            except BaseException:
                self._start_asked = None
                raise
            self._note = "the tuner is being started"

    def _call(self, start: Callable[..., object]) -> None:
        """Start a tuner, with the slider's budget if `start` takes one as `TuningSession.tune`."""
        state = self._now().state
        budget = {"trials": int(self.slider.value), "seconds": state.budget.seconds}
        try:
            inspect.signature(start).bind(**budget)
        except (TypeError, ValueError):
            start()
            return
        self._moved = None  # asked for herewith
        start(**budget)

    def _on_focus(self) -> None:
        if self.tasks.value:
            self.ask("focus", tasks=tuple(sorted(self.tasks.value)))
        else:
            self._note = "select tasks first"

    def _on_skip(self) -> None:
        state = self._now().state
        current = range(len(state.tasks)) if state.focus is None else state.focus
        left = tuple(sorted(set(current) - set(self.tasks.value)))
        if not self.tasks.value:
            self._note = "select tasks first"
        elif not left:
            self._note = "no task would be left to tune"
        else:
            self.ask("focus", tasks=left)

    def _on_all(self) -> None:
        self.ask("focus", tasks=None)

    # The budget ----------------------------------------------------------------------------

    def _reach(self, state: State) -> int:
        return max(
            2 * (state.budget.trials or 0), 2 * state.trials, _PER_TASK * len(state.tasks), 256
        )

    def _slider_value(self, state: State) -> int:
        return max(1, state.trials, state.budget.trials or state.trials)

    def _on_slide(self, _: Any) -> None:
        if not self._quiet:
            self._moved = time.monotonic()

    def tick(self) -> None:
        """Ask for the budget once the slider rests; follow a budget that was set elsewhere.

        Call it a few times a second from the thread that polls. The slider is written to only
        when the budget or its reach has changed: what that thread writes to answers late.
        """
        with self._lock:
            state = self._now().state
            if self._now().status.alive:
                self._start_asked = None
            if self._moved is not None:
                if time.monotonic() - self._moved >= _SETTLE_S:
                    self._moved = None
                    self._guard(self._set_budget)
                return
            waiting = any(request.wish == "budget" for request in self._waiting())
            if state.budget.trials != self._budget and not waiting:
                self._budget = state.budget.trials
                self._move(state, self._slider_value(state))

    def _set_budget(self) -> None:
        state = self._now().state
        wanted = int(self.slider.value)
        if wanted < state.trials:
            self._note = f"{state.trials} trials are spent already; the budget is set to that"
            wanted = state.trials
        self._move(state, wanted)
        if wanted == state.budget.trials:
            return
        note = self._note
        self.ask("budget", trials=wanted, seconds=state.budget.seconds)
        self._note = self._note or note
        self._budget = wanted

    def _move(self, state: State, value: int) -> None:
        self._quiet = True
        try:
            self.slider.max = max(
                self._reach(state), value if value < self.slider.max else 2 * value
            )
            self.slider.value = value
        finally:
            self._quiet = False

    # What became of it ---------------------------------------------------------------------

    def tell(self) -> None:
        """Show the newest requests, and when each was taken and took effect."""
        with self._lock:
            state = self._now().state
            known = {r.id: r for r in state.requests}
            rows = [_words(known[i], self._asked.get(i)) for i in list(known)[-_SHOWN:]]
            alive = self._now().status.alive
            rows += [
                f"{_what(request)}: asked {_clock(request.time)}, "
                + ("not taken yet" if alive else "waits for a tuner")
                for i, request in self._asked.items()
                if i not in known
            ][-_SHOWN:]
            note = f"<div class='bad'>{escape(shorten(clean(self._note), 400))}</div>"
            text = "".join(f"<div>{row}</div>" for row in rows[-_SHOWN:])
            value = f"<div class='atnb'>{note if self._note else ''}{text}</div>"
            if self.message.value != value:
                self.message.value = value


def _clock(seconds: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(seconds))


def _what(request: Request) -> str:
    if request.wish == "budget":
        limit = "no limit" if request.trials is None else f"{request.trials} trials"
        return f"budget of {limit}"
    if request.wish == "focus":
        if request.tasks is None:
            return "tune all tasks"
        return f"tune only tasks {', '.join(map(str, request.tasks[:20]))}"
    return request.wish


def _words(taken: RequestState, asked: Request | None) -> str:
    name = escape(_what(asked) if asked else taken.wish)
    if asked is None:
        text = f"{name}: taken {_clock(taken.taken)}"
    else:
        after = max(0.0, taken.taken - asked.time)
        text = f"{name}: asked {_clock(asked.time)}, taken after {after:.1f} s"
    if taken.refused:
        return f"{text}, <span class='bad'>refused: {escape(shorten(taken.refused, 300))}</span>"
    if taken.done is None:
        return f"{text}, not in effect yet"
    start = taken.taken if asked is None else asked.time
    return f"{text}, in effect after {max(0.0, taken.done - start):.1f} s"
