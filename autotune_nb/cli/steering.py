"""Verbs that steer a run: tune, resume, status, watch, pause, stop."""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from autotune_nb.cli.arguments import (
    Verbs,
    add_budget,
    add_layout,
    add_measure,
    add_run,
    add_verb,
    measure,
    print_json,
    shape,
)
from autotune_nb.errors import BudgetError, InputError, RunError
from autotune_nb.run.directory import require_free
from autotune_nb.run.lock import Holder
from autotune_nb.run.records import Budget
from autotune_nb.run.state import State
from autotune_nb.session import TuningSession
from autotune_nb.view.status import status, to_json
from autotune_nb.view.text import render_line, render_task_table

if TYPE_CHECKING:
    from autotune_nb.network.network import Network

_LINE_EVERY_S = 5.0
_REDRAW_EVERY_S = 0.5


def add_verbs(verbs: Verbs) -> None:
    """Add these verbs."""
    verb = add_verb(verbs, "tune", _tune, "make a run for a network and tune it")
    verb.add_argument(
        "network", metavar="NETWORK", help="name in the zoo, or path of an .onnx file"
    )
    verb.add_argument("--target", default="llvm", help="llvm, cuda, cuda:N or a TVM target as JSON")
    add_budget(verb)
    verb.add_argument("--run", metavar="DIR", help="run directory to make (default: runs/NETWORK)")
    verb.add_argument(
        "--shape",
        type=shape,
        action="append",
        default=[],
        metavar="NAME=N,C,H,W",
        help="shape of an input of an ONNX model, or N=2 for a symbol in it; repeatable",
    )
    add_layout(verb)
    verb.add_argument("--dtype", choices=("float32", "float16"), help="data type")
    verb.add_argument("--batch-size", type=int, metavar="N", help="batch of a zoo network")
    verb.add_argument("--seed", type=int, default=0, help="seed of the weights and of the search")
    verb.add_argument("--batch-trials", type=int, metavar="N", help="trials of one round")
    verb.add_argument("--workers", type=int, metavar="N", help="build processes")
    verb.add_argument(
        "--seed-from",
        action="append",
        default=[],
        metavar="RUN",
        help="start from the records of a run, or of all runs in a directory; repeatable",
    )
    add_measure(verb)
    _add_detach(verb)

    verb = add_verb(verbs, "resume", _resume, "go on tuning a run, or end its pause")
    add_run(verb)
    add_budget(verb)
    _add_detach(verb)

    verb = add_verb(verbs, "status", _status, "show where a run stands", json_output=True)
    add_run(verb)
    add_run(add_verb(verbs, "watch", _watch, "follow a run until its tuner stops"))
    add_run(add_verb(verbs, "pause", _pause, "pause the tuning of a run"))
    add_run(add_verb(verbs, "stop", _stop, "end the tuning of a run; what it measured is kept"))


def _add_detach(verb: argparse.ArgumentParser) -> None:
    verb.add_argument(
        "--detach", action="store_true", help="return at once; the tuning goes on by itself"
    )


def _tune(options: argparse.Namespace) -> int:
    from autotune_nb import doctor

    if options.trials is None and options.seconds is None:
        raise BudgetError("no budget given; pass --trials, --seconds or both")
    Budget.checked(options.trials, options.seconds)
    is_model = options.network.endswith(".onnx") or Path(options.network).is_file()
    stem = Path(options.network).stem if is_model else options.network.lower()
    path = Path(options.run or Path("runs") / stem)
    require_free(path)
    where = measure(options)
    remote = where is not None and where.remote
    doctor.require(doctor.check(options.target, quick=True, directory=path, remote=remote))
    extra = {"batch_size": options.batch_trials, "workers": options.workers}
    session = TuningSession.create(
        path,
        _model(options) if is_model else _zoo(options),
        options.target,
        seed_from=options.seed_from,
        measure=where,
        seed=options.seed,
        **{k: v for k, v in extra.items() if v is not None},
    )
    print(f"Run {path}: {session.manifest.name}, {len(session.manifest.tasks)} tasks")
    return _start(session, options)


def _zoo(options: argparse.Namespace) -> Network:
    from autotune_nb.network import network

    if options.shape:
        raise InputError("--shape is for ONNX models; zoo networks have --batch-size")
    given = {"layout": options.layout, "dtype": options.dtype, "batch_size": options.batch_size}
    chosen = {k: v for k, v in given.items() if v is not None}
    return network(options.network, seed=options.seed, **chosen)


def _model(options: argparse.Namespace) -> Network:
    from autotune_nb.network import from_onnx

    if options.batch_size is not None:
        raise InputError("--batch-size is for zoo networks; ONNX models have --shape")
    return from_onnx(
        options.network,
        shapes=dict(options.shape),
        layout=options.layout,
        dtype=options.dtype,
    )


def _resume(options: argparse.Namespace) -> int:
    session = TuningSession.open(options.run)
    if session.running and options.trials is None and options.seconds is None:
        session.resume()
        return _follow(session, options)
    return _start(session, options)


def _start(session: TuningSession, options: argparse.Namespace) -> int:
    session.tune(trials=options.trials, seconds=options.seconds)
    return _follow(session, options)


def _follow(session: TuningSession, options: argparse.Namespace) -> int:
    if options.detach:
        print(f"Tuning goes on by itself; 'autotune-nb watch {session.path}' shows it")
        return 0
    show = _Display()
    try:
        session.wait(on_change=show)
    except KeyboardInterrupt:
        show.end()
        print("Stopping; press Ctrl-C again to leave the tuner to itself")
        session.stop()
        print(f"Stopped; 'autotune-nb resume {session.path}' goes on where it was")
        return 130
    finally:
        show.end()
    return 0


def _status(options: argparse.Namespace) -> int:
    session = TuningSession.open(options.run)
    holder, state = session.holder, session.state
    if options.json:
        print_json(to_json(state, status(state, holder)))
    else:
        print(render_task_table(state, holder, width=_columns()))
    return 0


def _watch(options: argparse.Namespace) -> int:
    session = TuningSession.open(options.run)
    show = _Display()
    try:
        session.wait(on_change=show)
    finally:
        show.end()
    return 0


def _pause(options: argparse.Namespace) -> int:
    session = TuningSession.open(options.run)
    session.pause()
    while session.running and session.state.phase != "paused":
        time.sleep(0.05)
    print(
        f"Paused after {session.state.trials} trials; 'autotune-nb resume {session.path}' goes on"
    )
    return 0


def _stop(options: argparse.Namespace) -> int:
    session = TuningSession.open(options.run)
    if not session.running:
        raise RunError(f"{session.path}: is not being tuned, there is nothing to stop")
    session.stop()
    print(f"Stopped after {session.state.trials} trials")
    return 0


def _columns() -> int:
    return shutil.get_terminal_size((100, 24)).columns


class _Display:
    """Shows a run as it goes: a table redrawn in place, or a line now and then if no terminal."""

    def __init__(self) -> None:
        self._terminal = sys.stdout.isatty()
        self._drawn = 0
        self._last = float("-inf")
        self._pending: tuple[State, Holder] | None = None
        self._said: tuple[str, int] | None = None

    def __call__(self, state: State, holder: Holder) -> None:
        now = time.monotonic()
        self._pending = (state, holder)
        if now - self._last >= (_REDRAW_EVERY_S if self._terminal else _LINE_EVERY_S):
            self._draw(now)

    def end(self) -> None:
        """Show the last state, whole."""
        if self._pending is None:
            return
        state, holder = self._pending
        if self._terminal:
            self._draw(time.monotonic(), whole=True)
        else:
            print(render_task_table(state, holder, width=_columns(), ascii_only=_ascii()))
        self._pending = None

    def _draw(self, now: float, *, whole: bool = False) -> None:
        assert self._pending is not None
        self._last = now
        state, holder = self._pending
        if not self._terminal:
            news = (state.phase, state.trials)
            if news != self._said:
                print(render_line(state, holder=holder), flush=True)
            self._said = news
            return
        columns, rows = shutil.get_terminal_size((100, 24))
        # what does not fit above the cursor cannot be drawn over: show the largest tasks
        room = None if whole else max(3, rows - 9)
        text = render_task_table(state, holder, columns, max_rows=room, ascii_only=_ascii())
        up = f"\x1b[{self._drawn}A\r\x1b[J" if self._drawn else ""
        sys.stdout.write(up + text + "\n")
        sys.stdout.flush()
        self._drawn = text.count("\n") + 1


def _ascii() -> bool:
    return (sys.stdout.encoding or "ascii").lower().replace("-", "") not in ("utf8", "utf16")
