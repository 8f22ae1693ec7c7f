"""What runs in the process of one contestant of an evaluation: it computes, and is timed.

Started as ``python -m autotune_nb.deploy.contestant``; takes requests as JSON lines from standard
input and answers each with one line on standard output. It ends when its input does, so that it
never outlives the process that started it.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

Array = np.ndarray[Any, Any]
_FEW_RUNS_S = 1.0


class Contestant(Protocol):
    """Something that computes a network's outputs."""

    def run(self, inputs: Sequence[Array]) -> list[Array]:
        """Return the outputs for these inputs, and keep the inputs for `seconds_per_run`."""

    def seconds_per_run(self, min_repeat_ms: int) -> float:
        """Return the mean time of a run, over at least so many milliseconds."""


class TvmContestant:
    """A compiled network: an exported library, or a stored network compiled on the spot."""

    def __init__(self, request: dict[str, Any]) -> None:
        from autotune_nb.deploy.library import Library

        if request["kind"] == "library":
            self.library = Library.load(request["library"])
        else:
            self.library = _compiled(request)
        self._arguments: list[Any] = []

    def run(self, inputs: Sequence[Array]) -> list[Array]:
        """See `Contestant`."""
        from autotune_nb.deploy.library import outputs_to_numpy

        self._arguments = self.library.arguments(inputs)
        return outputs_to_numpy(self.library.vm["main"](*self._arguments))

    def seconds_per_run(self, min_repeat_ms: int) -> float:
        """See `Contestant`."""
        vm, device = self.library.vm, self.library.device
        vm.set_input("main", *self._arguments)
        timer = vm.time_evaluator(
            "invoke_stateful", device, number=1, repeat=1, min_repeat_ms=min_repeat_ms
        )
        return float(timer("main").mean)


def _compiled(request: dict[str, Any]) -> Any:
    import tvm

    from autotune_nb.deploy.compile import compile_network
    from autotune_nb.network import store

    return compile_network(
        store.load(request["network"]),
        tvm.target.Target(request["target"]),
        device=request["device"],
        schedules="untuned" if request["kind"] == "untuned" else "best",
    )


def timed(contestant: Contestant, inputs: Sequence[Array], min_repeat_ms: int) -> float:
    """Return the mean time of a run; a slow contestant is run only once for it."""
    start = time.perf_counter()
    contestant.run(inputs)
    once = time.perf_counter() - start
    return once if once > _FEW_RUNS_S else contestant.seconds_per_run(min_repeat_ms)


class _Server:
    def __init__(self) -> None:
        self.contestant: Contestant | None = None
        self.inputs: list[Array] = []

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        if request["do"] == "open":
            if request["kind"] == "onnxruntime":
                from autotune_nb.deploy.onnx_reference import OnnxContestant

                self.contestant = OnnxContestant(request["network"], int(request["threads"]))
            else:
                self.contestant = TvmContestant(request)
            return {}
        assert self.contestant is not None
        if request["do"] == "run":
            with np.load(request["inputs"], allow_pickle=False) as stored:
                self.inputs = [stored[name] for name in sorted(stored.files)]
            outputs = self.contestant.run(self.inputs)
            named = {f"{number:04d}": array for number, array in enumerate(outputs)}
            np.savez(request["outputs"], **named)  # type: ignore[arg-type]
            return {}
        return {"latency_s": timed(self.contestant, self.inputs, int(request["min_repeat_ms"]))}


def _restrict_to(cores: int) -> None:
    """Leave this process as many cores as the others get."""
    if hasattr(os, "sched_setaffinity"):
        allowed = sorted(os.sched_getaffinity(0))
        if 0 < cores < len(allowed):
            os.sched_setaffinity(0, allowed[:cores])


def _read(requests: queue.Queue[str]) -> None:
    for line in sys.stdin:
        requests.put(line)
    os._exit(0)  # the other end is gone, whatever is running


def main() -> None:
    """Serve requests until the input ends."""
    # What libraries print must not be taken for an answer.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    requests: queue.Queue[str] = queue.Queue()
    threading.Thread(target=_read, args=(requests,), daemon=True).start()
    _restrict_to(int(os.environ.get("TVM_NUM_THREADS", "0")))
    server = _Server()
    while True:
        request = json.loads(requests.get())
        try:
            answer = {"ok": True, **server.answer(request)}
        except Exception as error:
            text = str(error).strip().splitlines() or [type(error).__name__]
            answer = {"ok": False, "error": f"{type(error).__name__}: {text[-1]}"}
        answers.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    main()
