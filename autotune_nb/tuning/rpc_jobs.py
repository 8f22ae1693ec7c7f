"""Jobs of the workers that measure over RPC: take a server, and time a compiled candidate on it.

A server serves one connection at a time, in a process that it forks for it. A candidate that
crashes or hangs takes that process along, not the server; each candidate has a connection of its
own, so that servers can come and go between any two.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import tvm
from tvm import rpc

from autotune_nb.run.measure import Measure
from autotune_nb.tuning import tracker
from autotune_nb.tuning.jobs import FILL, time_candidate
from autotune_nb.tuning.messages import MeasureOptions
from autotune_nb.tuning.worker_main import describe


def acquire(measure: Measure, wait_s: float) -> tracker.Grant | None:
    """Take a free server; None if there was none within `wait_s` seconds."""
    return tracker.request(measure, wait_s)


def measure(
    path: str,
    args_info: str,
    device: str,
    options: MeasureOptions,
    server: tuple[tracker.Grant, float],
) -> tuple[str, Any]:
    """Time one candidate on a server.

    Parameters
    ----------
    path
        The compiled library.
    args_info, device, options
        As in `jobs.measure`; the device is the server's.
    server
        The server, and after how many seconds it ends the connection.

    Returns
    -------
    tuple of str and Any
        ``done`` and the seconds of each repeat; ``error`` or ``timeout`` and a message if the
        candidate is to blame; ``unreached`` or ``lost`` and a message if the server may be.
    """
    grant, session_timeout_s = server
    try:
        session = connect(grant, session_timeout_s)
    except Exception as error:
        return "unreached", describe(error)
    try:
        return "done", run(session, Path(path), args_info, device, options)
    except Exception as error:
        message = describe(error)
        if "RPCSessionTimeoutError" in message:
            return "timeout", f"took more than {session_timeout_s:g} s on {grant.device}"
        return ("error" if _lives(session) else "lost"), message


def connect(grant: tracker.Grant, session_timeout_s: float) -> Any:
    """Return TVM's session with a server; whoever calls it must reckon with a server that hangs."""
    return rpc.connect(grant.host, grant.port, grant.match_key, session_timeout=session_timeout_s)


def run(
    session: Any, path: Path, args_info: str, device: str, options: MeasureOptions
) -> list[float]:
    """Time a compiled library on a server; return the seconds of each repeat."""
    kind, _, index = device.partition(":")
    dev = session.device(kind, int(index or 0))
    session.upload(str(path))
    module = session.load_module(path.name)
    fill = session.get_function(FILL)
    tensors = []
    for _, dtype, shape in json.loads(args_info):
        tensor = tvm.runtime.empty(tuple(shape), dtype=dtype, device=dev)
        fill(tensor)
        tensors.append(tensor)
    if options.cool_down_ms:
        time.sleep(options.cool_down_ms / 1e3)
    dev.sync()
    return time_candidate(module, dev, tensors, options)


def _lives(session: Any) -> bool:
    """Tell whether a session still works: then what failed was the candidate."""
    try:
        session.get_function(FILL)
    except Exception:
        return False
    return True
