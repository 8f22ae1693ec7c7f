"""What a live view says of a run's future: the forecast beside the budget slider."""

from __future__ import annotations

import time

from autotune_nb.run.state import State
from autotune_nb.view.curve import Band
from autotune_nb.view.forecast import Forecast, forecast
from autotune_nb.view.units import duration, milliseconds, percent

_EVERY_S = 10.0  # a forecast is made anew at most so often
_FURTHER = 1000  # trials beyond the budget whose gain is told


class Outlook:
    """The forecast of one view, made anew when the run has moved on."""

    def __init__(self) -> None:
        self._made: Forecast | None = None
        self._for: tuple[int, int] = (-1, -1)
        self._when = -_EVERY_S

    def update(self, state: State, reach: int) -> bool:
        """Make the forecast anew if it is due; tell whether that was done.

        Parameters
        ----------
        state
            The run.
        reach
            Last budget of interest, in trials.
        """
        key = (state.trials, reach)
        now = time.monotonic()
        recent = now - self._when < _EVERY_S and self._for[1] == reach
        if key == self._for or (recent and self._made is not None):
            return False
        self._made = forecast(state, reach + _FURTHER)
        self._for, self._when = key, now
        return True

    def band(self, state: State, budget: int) -> Band | None:
        """Return the forecast up to a budget, for the plot."""
        made = self._made
        if made is None or budget <= state.trials:
            return None
        ends = int((made.trials < budget).sum()) + 1
        return Band(
            trials=made.trials[:ends],
            used_s=made.used_s[:ends],
            low_s=made.low_s[:ends],
            median_s=made.median_s[:ends],
            high_s=made.high_s[:ends],
        )

    def words(self, state: State, budget: int) -> str:
        """Return what is expected at a budget, as HTML."""
        made = self._made
        if made is None:
            return "<div class='atnb muted'>No forecast before the first result.</div>"
        end = made.at(max(budget, state.trials))
        now = made.at(state.trials)
        if end.trials > state.trials:
            text = (
                f"At <b>{end.trials} trials</b>: <b>{milliseconds(end.median_s)} ms</b> expected "
                f"(80 %: {milliseconds(end.low_s)} to {milliseconds(end.high_s)} ms)"
            )
            left_s = end.used_s - state.used_s
            if left_s > 0:
                text += f", after {duration(left_s)} more"
            if now.median_s:
                text += f"; {percent(1 - end.median_s / now.median_s)} less than now"
            text += ".<br>"
        else:
            text = (
                f"{state.trials} trials are spent; drag the slider to see what more may bring.<br>"
            )
        further = made.gain(end.trials, end.trials + _FURTHER)
        text += f"The {_FURTHER} trials after that are expected to gain {percent(further)}."
        turn = made.diminishing(_FURTHER)
        if turn is not None:
            text += f" From {max(turn, state.trials)} trials on it is less than 1 %."
        if made.guessed:
            text += (
                f"<br>{len(made.guessed)} tasks have no result yet; theirs is guessed from similar "
                "ones."
            )
        return f"<div class='atnb'>{text}</div>"
