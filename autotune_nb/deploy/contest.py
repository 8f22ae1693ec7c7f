"""The processes in which the contestants of an evaluation run, seen from outside."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import IO, Any

from autotune_nb.errors import EvaluationError

OPEN_TIMEOUT_S = 600.0
RUN_TIMEOUT_S = 300.0
_PACKAGE_PARENT = str(Path(__file__).resolve().parents[2])


class ContestantProcess:
    """One contestant in a process of its own; whatever happens to it stays there.

    Parameters
    ----------
    name
        For messages.
    threads
        How many threads, and cores, it may use.
    """

    def __init__(self, name: str, threads: int) -> None:
        self.name = name
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  closed by close()
        environment = {
            **os.environ,
            "TVM_NUM_THREADS": str(threads),
            "OMP_NUM_THREADS": str(threads),
            "PYTHONPATH": os.pathsep.join(
                part for part in (_PACKAGE_PARENT, os.environ.get("PYTHONPATH")) if part
            ),
        }
        self._process = subprocess.Popen(
            [sys.executable, "-m", "autotune_nb.deploy.contestant"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=environment,
            text=True,
        )
        self._answers: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._answers.put(line)
        self._answers.put(None)

    def ask(self, timeout_s: float, **request: Any) -> dict[str, Any]:
        """Send a request and return its answer.

        Raises
        ------
        EvaluationError
            If the contestant fails, crashes, or does not answer in time; it is ended then.
        """
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            line = self._answers.get(timeout=timeout_s)
        except queue.Empty:
            self.close()
            raise EvaluationError(
                f"{self.name}: did not answer within {timeout_s:g} s and was ended; "
                "leave it out of the baselines"
            ) from None
        except OSError:
            line = None
        if line is None:
            raise EvaluationError(f"{self.name}: {self._death()}")
        answer: dict[str, Any] = json.loads(line)
        if not answer["ok"]:
            raise EvaluationError(f"{self.name}: {answer['error']}")
        return answer

    def _death(self) -> str:
        code = self._process.wait(timeout=10)
        self._errors.seek(0)
        last = (self._errors.read().decode(errors="replace").strip().splitlines() or [""])[-1]
        if code < 0:
            last = signal.Signals(-code).name + (f", {last}" if last else "")
        return f"its process died ({last or f'exit code {code}'})"

    def close(self) -> None:
        """End the process."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            if stream is not None:
                try:
                    stream.close()
                except OSError:  # what was not read yet by the dead
                    continue
