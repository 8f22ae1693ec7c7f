"""Builds a small kernel, runs it on a server, and prints what came of it; a process of its own.

Run as ``python -m autotune_nb.tuning.rpc_probe MEASURE TARGET DEVICE SECONDS``, the first two as
JSON. The answer is a line with ``PROBE`` and JSON. The server has SECONDS to answer once it is
known which it is.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import tvm
from tvm import te

from autotune_nb.run.measure import Measure
from autotune_nb.tuning import rpc_jobs, tracker
from autotune_nb.tuning.jobs import build, library
from autotune_nb.tuning.messages import MeasureOptions
from autotune_nb.tuning.worker_main import describe

_LENGTH = 64
_KEY = "probe"
_FREE_S = 5.0


def main(arguments: list[str]) -> None:
    """Answer on standard output."""
    measure = Measure.from_json(json.loads(arguments[0]))
    target, device, seconds = arguments[1], arguments[2], float(arguments[3])
    with tempfile.TemporaryDirectory() as folder:
        build(_KEY, tvm.ir.save_json(_kernel(device)), target, folder)
        grant = tracker.request(measure, _FREE_S)
        if grant is None:
            _say(error=_busy(measure))
            return
        # what hangs in TVM cannot be interrupted, only ended
        timer = threading.Timer(seconds, _hangs, (grant, seconds, folder))
        timer.daemon = True
        timer.start()
        _say(**_run(grant, library(folder, _KEY), device, seconds))
        timer.cancel()


def _run(grant: tracker.Grant, path: Path, device: str, seconds: float) -> dict[str, str]:
    args_info = json.dumps([["TENSOR", "float32", [_LENGTH]]] * 2)
    options = MeasureOptions(repeats=1, min_repeat_ms=1, best_s=None)
    try:
        session = rpc_jobs.connect(grant, seconds)
    except Exception as error:
        return {"error": _other(grant, describe(error))}
    try:
        rpc_jobs.run(session, path, args_info, device, options)
    except Exception as error:
        return {
            "error": f"server {grant.device}: cannot run a kernel for this target "
            f"({_short(describe(error))}); check that the target is the server's (its mtriple and "
            f"mcpu, or its GPU) and that it runs TVM {tvm.__version__}"
        }
    return {"device": grant.device}


def _kernel(device: str) -> tvm.IRModule:
    source = te.placeholder((_LENGTH,), name="source")
    result = te.compute((_LENGTH,), lambda i: source[i] + 1.0, name="result")
    function = te.create_prim_func([source, result]).with_attr("global_symbol", "main")
    schedule = tvm.s_tir.Schedule(tvm.IRModule({"main": function}))
    if not device.startswith("cpu"):
        (loop,) = schedule.get_loops(schedule.get_sblock("result"))
        block, thread = schedule.split(loop, [None, 32])
        schedule.bind(block, "blockIdx.x")
        schedule.bind(thread, "threadIdx.x")
    return schedule.mod


def _hangs(grant: tracker.Grant, seconds: float, folder: str) -> None:
    _say(
        error=f"server {grant.device}: took the connection and has not answered within "
        f"{seconds:g} s; start it again (it may also run another TVM than {tvm.__version__})"
    )
    for path in Path(folder).iterdir():
        path.unlink()
    Path(folder).rmdir()
    os._exit(0)


def _busy(measure: Measure) -> str:
    found = tracker.summary(measure)
    return (
        f"tracker {measure.tracker}: none of its {len(found.servers)} servers with the key "
        f"{measure.key} was free within {_FREE_S:g} s ({found.pending} others wait); try again "
        "when they are, or start more"
    )


def _other(grant: tracker.Grant, message: str) -> str:
    return (
        f"server {grant.device}: does not speak the language of TVM {tvm.__version__} "
        f"({_short(message)}); install apache-tvm=={tvm.__version__} where it runs, and start it "
        "again"
    )


def _short(message: str) -> str:
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    return lines[-1][:200] if lines else "it gave no reason"


def _say(*, device: str = "", error: str = "") -> None:
    answer: dict[str, Any] = {"device": device, "error": error}
    sys.stdout.write("\nPROBE " + json.dumps(answer) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
