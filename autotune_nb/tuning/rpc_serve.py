"""A TVM tracker and servers on one address: the process that starts, watches and ends them.

Run by `rpc_up` as ``python -m autotune_nb.tuning.rpc_serve OPTIONS`` (JSON). TVM is loaded once,
and the tracker and each server are forked from that. One that ends is started again: TVM's server
ends with a candidate that crashes. Nothing here outlives its parent, however that ends.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import json
import os
import select
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from types import FrameType

from tvm.rpc.server import PopenRPCServerState
from tvm.rpc.tracker import PopenTrackerServerState

_POLL_S = 0.1


@dataclasses.dataclass(slots=True, kw_only=True)
class _Child:
    """The tracker or a server: how it runs, and its process."""

    name: str
    run: Callable[[], None]
    pid: int = 0
    due: float = 0.0  # when it is started (again)


def main(arguments: list[str]) -> None:
    """Serve until standard input is closed or a signal says so."""
    options = json.loads(arguments[0])
    host, key, port = options["host"], options["key"], options["port"]
    _die_with_parent(options["parent"])
    os.register_at_fork(after_in_child=lambda: _die_with_parent(0))
    scratch = tempfile.mkdtemp(prefix="autotune-nb-rpc-")
    tempfile.tempdir = scratch  # a server that is killed cleans nothing up

    def end(*_: int | FrameType | None) -> None:
        raise SystemExit(0)

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, end)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent gets it as well, and decides
    os.environ["TVM_BIND_THREADS"] = "0"  # else TVM takes the first cores whatever set it has
    children = [_Child(name=f"{host}:{port}", run=lambda: _tracker(host, port))]
    for number, cores in zip(options["server_ports"], options["cores"], strict=True):
        children.append(
            _Child(
                name=f"{host}:{number}",
                run=lambda number=number, cores=cores: _server(  # type: ignore[misc]
                    host, number, key, port, cores
                ),
            )
        )
    try:
        while not select.select([sys.stdin], [], [], _POLL_S)[0]:
            _mend(children, options["restart_s"])
    finally:
        for child in children:
            if child.pid:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child.pid, signal.SIGKILL)
                os.waitpid(child.pid, 0)
        shutil.rmtree(scratch, ignore_errors=True)


def _mend(children: list[_Child], restart_s: float) -> None:
    """Start what is to be started, and note what has ended."""
    now = time.monotonic()
    for child in children:
        if child.pid and os.waitpid(child.pid, os.WNOHANG)[0]:
            child.pid, child.due = 0, now + restart_s
            _say(child.name, 0)
        if not child.pid and now >= child.due:
            child.pid = os.fork()
            if not child.pid:
                _child(child)
            _say(child.name, child.pid)


def _child(child: _Child) -> None:
    try:
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        child.run()
    except BaseException as error:  # a fork must never come back into the loop that made it
        sys.stderr.write(f"{child.name}: {error}\n")
        sys.stderr.flush()
    os._exit(1)


def _tracker(host: str, port: int) -> None:
    PopenTrackerServerState(host, port, port + 1, silent=True).thread.join()


def _server(host: str, port: int, key: str, tracker: int, cores: list[int]) -> None:
    os.environ["TVM_NUM_THREADS"] = str(len(cores))
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores)
    PopenRPCServerState(
        host, port, port + 1, tracker_addr=(host, tracker), key=key, silent=True
    ).thread.join()


def _say(name: str, pid: int) -> None:
    sys.stdout.write(json.dumps({"name": name, "pid": pid}) + "\n")
    sys.stdout.flush()


def _die_with_parent(parent: int) -> None:
    """See that this process is killed when its parent ends; `parent` is who that should be."""
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        _LIBC.prctl(pr_set_pdeathsig, signal.SIGKILL, 0, 0, 0)
    if parent and os.getppid() != parent:
        os._exit(1)


_LIBC = ctypes.CDLL(None)

if __name__ == "__main__":
    main(sys.argv[1:])
