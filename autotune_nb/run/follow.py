"""Waiting for a tuner: until it is gone, or until it has granted a request."""

from __future__ import annotations

import time
from collections.abc import Callable

from autotune_nb.errors import TuningFailed
from autotune_nb.run.directory import RunDirectory
from autotune_nb.run.lock import Holder
from autotune_nb.run.state import RequestState, State

_POLL_S = 0.25


def until_stopped(
    run: RunDirectory,
    timeout_s: float | None = None,
    on_change: Callable[[State, Holder], None] | None = None,
) -> State:
    """Wait until the tuner has stopped, or `timeout_s` is over; return the last state.

    `on_change` is called with the state and the tuner's process about four times a second.

    Raises
    ------
    TuningFailed
        If the tuner failed, or died without a word.
    """
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    while True:
        holder = run.holder()  # first: what it wrote before it let go is then in the state
        state = run.poll()
        if on_change is not None:
            on_change(state, holder)
        if not holder.alive:
            break
        if deadline is not None and time.monotonic() > deadline:
            return state
        time.sleep(_POLL_S)
    if state.phase == "failed":
        raise TuningFailed(f"{run.path}: {state.message}")
    if state.phase in ("starting", "tuning", "paused"):
        raise TuningFailed(
            f"{run.path}: the tuner died without a word (see {run.tuner_log}); "
            f"'autotune-nb resume {run.path}' goes on where it was"
        )
    return state


def until_idle(run: RunDirectory, timeout_s: float) -> None:
    """Wait until no tuner holds the run.

    Raises
    ------
    TuningFailed
        If it still does after `timeout_s` seconds.
    """
    deadline = time.monotonic() + timeout_s
    while (holder := run.holder()).alive:
        if time.monotonic() > deadline:
            raise TuningFailed(
                f"{run.path}: the tuner (process {holder.pid}) has not stopped within "
                f"{timeout_s:g} s; end it with 'kill {holder.pid}', nothing is lost"
            )
        time.sleep(0.05)


def until_done(run: RunDirectory, request: str, timeout_s: float = 5.0) -> RequestState | None:
    """Wait until a request has taken effect; None if the tuner ends or is slow to take it."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        for known in run.poll().requests:
            if known.id == request and known.done is not None:
                return known
        if not run.holder().alive:
            return None
        time.sleep(0.02)
    return None
