"""What a worker process runs: one job at a time from a pipe, and death when its tuner dies."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
import select
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

Job = Callable[..., Any]


def main(connection: Connection, environment: dict[str, str], preload: str, tuner: int) -> None:
    """Serve jobs until the other end of the pipe is closed.

    `preload` is the module to import first, `tuner` the tuner's process id. A job is
    ``(function, arguments)`` with the function as ``module:name``; the answer is ``(True, value)``
    or ``(False, message)``.
    """
    os.environ.update(environment)
    _die_with_tuner(connection, tuner)
    # A Ctrl-C in the tuner's terminal reaches the whole group: the tuner decides what ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    # a machine out of memory shall end this process, not the tuner or what else runs there
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("900")
    importlib.import_module(preload)  # already there if a fork server forked this process
    jobs: dict[str, Job] = {}
    while True:
        try:
            name, arguments = connection.recv()
        except (EOFError, OSError):
            os._exit(0)  # without exit handlers: a GPU's can hang
        answer: tuple[bool, Any]
        try:
            answer = (True, _resolve(name, jobs)(*arguments))
        except Exception as error:
            answer = (False, describe(error))
        try:
            connection.send(answer)
        except (BrokenPipeError, OSError):
            os._exit(0)
        sys.stderr.flush()


def describe(error: BaseException) -> str:
    """Return the message of an error, short enough to keep: its last lines say what went wrong."""
    text = "".join(traceback.format_exception_only(type(error), error)).strip()
    # TVM puts its whole C++ backtrace before the message
    lines = [line for line in text.splitlines() if line.strip()]
    tail = "\n".join(lines[-6:])
    return tail if len(tail) <= 2000 else "…" + tail[-2000:]


def _resolve(name: str, jobs: dict[str, Job]) -> Job:
    job = jobs.get(name)
    if job is None:
        module, _, function = name.partition(":")
        job = jobs[name] = getattr(importlib.import_module(module), function)
    return job


def _die_with_tuner(connection: Connection, tuner: int) -> None:
    """See that this process ends with its tuner, even in the middle of a job that never returns."""
    if sys.platform == "linux":
        # The parent is the fork server. It ends when nobody holds the other end of its pipe any
        # more: the tuner does, and so does every worker it forks, unless it lets go. Then the
        # signal ends a worker even while it is suspended, when the thread below cannot.
        held = getattr(forkserver._forkserver, "_forkserver_alive_fd", None)
        if isinstance(held, int):
            os.close(held)
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL, 0, 0, 0)
        if is_orphan(tuner):  # the fork server died before the line above: no signal will come
            os._exit(1)
    if hasattr(select, "poll"):
        threading.Thread(target=_watch, args=(connection.fileno(),), daemon=True).start()


def is_orphan(tuner: int) -> bool:
    """Tell whether neither this process's parent nor the parent of that is the tuner."""
    parent = os.getppid()
    if parent == tuner:
        return False
    try:
        stat = Path(f"/proc/{parent}/stat").read_text()
    except OSError:
        return True
    return int(stat.rpartition(")")[2].split()[1]) != tuner


def _watch(descriptor: int) -> None:
    poller = select.poll()
    poller.register(descriptor, 0)  # asked for nothing, it still tells of a hang-up
    while not any(state & select.POLLHUP for _, state in poller.poll()):
        pass
    os._exit(0)
