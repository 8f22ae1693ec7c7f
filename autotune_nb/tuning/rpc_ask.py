"""Asks a tracker, before anything is tuned, whether its servers can measure for a run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autotune_nb.errors import TrackerError, near_matches
from autotune_nb.run.measure import Measure
from autotune_nb.tuning import cross, tracker

_ROOT = Path(__file__).parents[2]
_PROBE_TIMEOUT_S = 40.0  # loading TVM alone takes a busy machine ten
_SERVER_TIMEOUT_S = 8.0


def servers(measure: Measure) -> tracker.Summary:
    """Return what a tracker has for a run; within some seconds, and without TVM.

    Raises
    ------
    TrackerError
        If it cannot be reached, or has no server with the key.
    """
    found = tracker.summary(measure)
    if found.servers:
        return found
    if found.others:
        has = f"it has servers with {', '.join(found.others)}"
        hint = near_matches(measure.key, found.others)
        todo = f"use one of these keys{hint}, or start"
    else:
        has, todo = "it has no servers at all", "start"
    raise TrackerError(
        f"tracker {measure.tracker}: no server has the key {measure.key} ({has}); {todo} one with "
        f"'python -m tvm.exec.rpc_server --tracker {measure.tracker} --key {measure.key}'"
    )


def probe(measure: Measure, target: Mapping[str, Any], device: str) -> str:
    """Build a small kernel for a target, run it on one of the servers, and return which.

    Raises
    ------
    EnvironmentProblem
        If a cross compiler is needed and missing.
    TrackerError
        If there is no server, none is free, or the one that was asked cannot run the kernel.
    """
    cross.compiler(target)
    servers(measure)
    command = [
        *(sys.executable, "-m", "autotune_nb.tuning.rpc_probe"),
        json.dumps(measure.to_json()),
        json.dumps(dict(target)),
        device,
        str(_SERVER_TIMEOUT_S),
    ]
    search_path = [str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(search_path)}
    # a process of its own: TVM's client waits for a server that hangs for as long as that hangs
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    ) as child:
        try:
            output, errors = child.communicate(timeout=_PROBE_TIMEOUT_S)
        except BaseException as error:
            child.kill()
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
            output, errors = "", f"no answer within {_PROBE_TIMEOUT_S:g} s"
    for line in output.splitlines():
        if line.startswith("PROBE "):
            answer = json.loads(line.removeprefix("PROBE "))
            if answer["error"]:
                raise TrackerError(answer["error"])
            return str(answer["device"])
    last = (errors.strip().splitlines() or ["it was killed"])[-1]
    raise TrackerError(
        f"tracker {measure.tracker}: asking a server to run a kernel failed ({last}); run "
        "'autotune-nb doctor'"
    )
