"""Compiles every network of the zoo, checks it, and records its time; tunes some of them briefly.

    python benchmarks/networks.py --output results.json
    python benchmarks/networks.py resnet-18 mlp --tune --trials 256 --output results.json

Each network is compiled with fallback schedules, or with what a short tuning finds, and compared
with ONNX Runtime on the same weights and inputs; then both are timed in turn. Every contestant runs
in a process of its own on the same cores. The results are written after each network.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime as dt
import json
import os
import platform
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

import autotune_nb as at
from autotune_nb.deploy import checks
from autotune_nb.deploy.contest import OPEN_TIMEOUT_S, RUN_TIMEOUT_S, ContestantProcess
from autotune_nb.errors import AutotuneError
from autotune_nb.network import list_networks, store
from autotune_nb.network.network import Network
from autotune_nb.tuning.extract import extract
from autotune_nb.tuning.launch import versions
from autotune_nb.tuning.target import cpu_name, resolve

ROUNDS = 3


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("networks", nargs="*", help="names in the zoo; all of them if none")
    parser.add_argument("--layout", help="NHWC or NCHW; each network's first if left out")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--tune", action="store_true")
    parser.add_argument("--trials", type=int, default=128, help="budget of each network")
    parser.add_argument("--seconds", type=float, help="budget of each network")
    parser.add_argument("--min-repeat-ms", type=int, default=300, help="of each timing")
    parser.add_argument("--output", required=True, help="JSON file to write")
    options = parser.parse_args()

    names = options.networks or [row.name for row in list_networks()]
    result = {
        "benchmark": "networks",
        "date": dt.datetime.now(dt.timezone.utc).isoformat(timespec="seconds"),
        "command": " ".join(["python", "benchmarks/networks.py", *sys.argv[1:]]),
        "machine": {
            "processor": cpu_name(),
            "cores": len(os.sched_getaffinity(0)),
            "system": platform.platform(),
            "nice": os.nice(0),
            "load_average_before": [round(value, 2) for value in os.getloadavg()],
        },
        "versions": versions(),
        "networks": [],
    }
    bad = 0
    for name in names:
        start = time.perf_counter()
        try:
            row = one(name, options)
        except AutotuneError as error:
            row = {"network": name, "correct": False, "error": str(error)}
        row["took_s"] = round(time.perf_counter() - start, 1)
        row["load_average"] = round(os.getloadavg()[0], 2)
        bad += not row["correct"]
        result["networks"].append(row)
        Path(options.output).write_text(json.dumps(result, indent=1) + "\n")
        print(json.dumps(row), flush=True)
    return 1 if bad else 0


def one(name: str, options: argparse.Namespace) -> dict[str, object]:
    """Compile, check and time one network."""
    net = at.network(name, layout=options.layout, dtype=options.dtype)
    target = resolve("llvm")
    row: dict[str, object] = {
        "network": net.name,
        "layout": net.layout,
        "dtype": options.dtype,
        "parameters": net.parameter_count,
    }
    with tempfile.TemporaryDirectory(prefix="networks-") as scratch:
        folder = Path(scratch)
        request = {
            "target": json.loads(str(target)),
            "device": "cpu",
            "threads": len(os.sched_getaffinity(0)),
        }
        contestants = {"fallback": "fallback", "onnxruntime": "onnxruntime"}
        if options.tune:
            session = at.TuningSession.create(folder / "run", net, "llvm")
            session.tune(trials=options.trials, seconds=options.seconds)
            state = session.wait(on_change=lambda *_: None)
            library = session.compile()
            request["library"] = str(library.export(folder / "tuned.so"))
            request["network"] = str(session.directory.network)
            contestants = {"tuned": "library", **contestants}
            row |= {
                "tasks": len(session.manifest.tasks),
                "trials": state.trials,
                "failed_trials": state.failed_trials,
                "tuning_s": round(state.used_s, 1),
                "estimated_total_latency_ms": milliseconds(state.estimated_total_latency_s),
                "partial": state.partial,
                "coverage": str(library.coverage),
            }
        else:
            row["tasks"] = len(extract(net, target).tasks)
            request["network"] = str(folder / "network")
            store.save(net, folder / "network")
        return row | compared(net, contestants, request, folder, options.min_repeat_ms)


def compared(
    net: Network,
    contestants: dict[str, str],
    request: dict[str, object],
    folder: Path,
    min_repeat_ms: int,
) -> dict[str, object]:
    """Run the contestants on the same inputs, compare what they return, and time them in turn."""
    inputs = folder / "inputs.npz"
    arrays = checks.random_inputs(net.inputs, seed=0)
    np.savez(inputs, **{f"{n:04d}": array for n, array in enumerate(arrays)})
    outputs: dict[str, list[np.ndarray]] = {}
    times: dict[str, list[float]] = {name: [] for name in contestants}
    opened: dict[str, float] = {}
    with contextlib.ExitStack() as stack:
        processes = {}
        for name, kind in contestants.items():
            process = ContestantProcess(name, int(str(request["threads"])))
            stack.callback(process.close)
            processes[name] = process
            start = time.perf_counter()
            process.ask(OPEN_TIMEOUT_S, do="open", kind=kind, **request)
            opened[name] = round(time.perf_counter() - start, 1)
            stored = folder / f"{name}.npz"
            process.ask(RUN_TIMEOUT_S, do="run", inputs=str(inputs), outputs=str(stored))
            with np.load(stored, allow_pickle=False) as found:
                outputs[name] = [found[key] for key in sorted(found.files)]
        for turn in range(ROUNDS):
            names = list(contestants)
            for name in names[turn % len(names) :] + names[: turn % len(names)]:
                answer = processes[name].ask(
                    RUN_TIMEOUT_S, do="measure", min_repeat_ms=min_repeat_ms
                )
                times[name].append(float(answer["latency_s"]))
    expected = outputs.pop("onnxruntime")
    errors = {name: checks.deviation(found, expected) for name, found in outputs.items()}
    tolerance = checks.tolerance_of(net)
    return {
        "correct": max(errors.values()) <= tolerance,
        "max_error": errors,
        "tolerance": tolerance,
        "start_and_compile_s": opened,
        "least_latency_ms": {name: milliseconds(min(samples)) for name, samples in times.items()},
    }


def milliseconds(seconds: float | None) -> float | None:
    """Return milliseconds with four digits that mean something."""
    return None if seconds is None else float(f"{seconds * 1e3:.4g}")


if __name__ == "__main__":
    sys.exit(main())
