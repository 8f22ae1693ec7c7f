"""Asking `probe` in a child process, which may crash or hang without harm to this one."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).parents[2]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a child process came to: its answer, or None and how it failed."""

    value: dict[str, Any] | None
    failure: str = ""
    crashed: bool = False


def ask(question: str, *arguments: str, timeout_s: float = 90) -> Answer:
    """Return the answer of `probe` to a question; a child that is late is killed."""
    search_path = [str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return run_child(
        [sys.executable, "-m", "autotune_nb.doctor.probe", question, *arguments],
        # The package must be found where this process found it.
        environment=os.environ | {"PYTHONPATH": os.pathsep.join(search_path)},
        timeout_s=timeout_s,
    )


def run_child(
    command: list[str], *, environment: dict[str, str] | None = None, timeout_s: float
) -> Answer:
    """Run a command whose last line of output is JSON."""
    with subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as child:
        try:
            output, errors = child.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            _kill_group(child)
            return Answer(value=None, failure=f"no answer within {timeout_s:g} s")
        except BaseException:
            _kill_group(child)
            raise
    if child.returncode < 0:
        name = signal.Signals(-child.returncode).name
        return Answer(value=None, failure=f"the interpreter crashed ({name})", crashed=True)
    if child.returncode:
        lines = [line for line in errors.splitlines() if line.strip()]
        last = lines[-1] if lines else f"exit code {child.returncode}"
        return Answer(value=None, failure=last)
    value: dict[str, Any] = json.loads(output.splitlines()[-1])
    return Answer(value=value)


def _kill_group(child: subprocess.Popen[str]) -> None:
    """Kill a child that has not been waited for yet, with everything it started."""
    os.killpg(child.pid, signal.SIGKILL)
