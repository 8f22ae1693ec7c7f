"""Tunes five networks; measures each beside its baselines, its estimate and the machine's limit.

    python benchmarks/latency.py --runs runs/latency --trials 640 --output latency.json

A run that is in `--runs` already goes on to `--trials` if it has fewer, else is used as it is. Then
the tuned network, the untuned one, the one with fallback schedules alone and ONNX Runtime are timed
in turns, each in a process of its own on the same cores, after their outputs were compared. The
results are written after each network, as JSON and beside it as a Markdown table.
"""

from __future__ import annotations

import argparse
import datetime as dt
import importlib.util
import json
import math
import os
import platform
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import autotune_nb as at
from autotune_nb.deploy import roofline
from autotune_nb.deploy.evaluate import evaluate_run
from autotune_nb.deploy.library import Library
from autotune_nb.deploy.profile import profile_run
from autotune_nb.errors import AutotuneError
from autotune_nb.network.network import Network
from autotune_nb.run import evaluations
from autotune_nb.run.buffers import buffer_bytes
from autotune_nb.run.records import TaskInfo
from autotune_nb.tuning.launch import versions
from autotune_nb.tuning.target import cpu_name

DETECTOR = "pp-ocrv4-det"
NETWORKS = ("resnet-18", "resnet-50", "mobilenet", "squeezenet_v1.1", DETECTOR)
BASELINES = ("untuned", "fallback", "onnxruntime")
_SHOWN = 6  # functions of a profile in the table of what holds a network back


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("networks", nargs="*", help=f"any of {', '.join(NETWORKS)}; all if none")
    parser.add_argument("--runs", required=True, type=Path, help="folder of the runs, one each")
    parser.add_argument("--trials", type=int, default=640, help="budget of each network")
    parser.add_argument("--seconds", type=float, help="budget of each network, in seconds as well")
    parser.add_argument("--target", default="llvm")
    parser.add_argument("--layout", default="NHWC", help="of the networks from the zoo")
    parser.add_argument("--onnx-layout", help="of the detector; chosen by measuring if left out")
    parser.add_argument("--model", type=Path, help="the detector, if not rapidocr-onnxruntime's")
    parser.add_argument("--baselines", default=",".join(BASELINES))
    parser.add_argument("--output", required=True, type=Path, help="JSON file to write")
    options = parser.parse_args()
    unknown = [name for name in options.networks if name not in NETWORKS]
    if unknown:
        parser.error(f"no such network: {', '.join(unknown)}; choose from {', '.join(NETWORKS)}")
    options.runs.mkdir(parents=True, exist_ok=True)

    result: dict[str, Any] = {
        "benchmark": "latency",
        "date": dt.datetime.now(dt.timezone.utc).isoformat(timespec="seconds"),
        "command": " ".join(["python", "benchmarks/latency.py", *sys.argv[1:]]),
        "machine": {
            "processor": cpu_name(),
            "cores": len(os.sched_getaffinity(0)),
            "system": platform.platform(),
            "nice": os.nice(0),
        },
        "versions": versions(),
        "left_out": left_out(),
        "networks": [],
    }
    for name in options.networks or NETWORKS:
        started = time.perf_counter()
        try:
            row = measure(name, options)
        except AutotuneError as error:
            row = {"network": name, "error": " ".join(str(error).split())}
        row["seconds"] = time.perf_counter() - started
        row["load"] = os.getloadavg()[0]
        result["networks"].append(row)
        options.output.write_text(json.dumps(result, indent=1) + "\n")
        options.output.with_suffix(".md").write_text(markdown(result))
        print(markdown(result), flush=True)
    return 1 if any(not row.get("correct") for row in result["networks"]) else 0


def left_out() -> list[str]:
    """Return what is not measured, and why."""
    torch = importlib.util.find_spec("torch") is not None
    why = (
        "these networks have no PyTorch form of the same weights"
        if torch
        else "it is not installed here"
    )
    return [f"PyTorch (eager, compiled, CUDA graph): {why}"]


def network(name: str, options: argparse.Namespace) -> Network:
    """Return one of the networks."""
    if name != DETECTOR:
        return at.network(name, layout=options.layout, dtype="float32")
    model = options.model
    if model is None:
        found = importlib.util.find_spec("rapidocr_onnxruntime")
        if found is None or not found.submodule_search_locations:
            raise AutotuneError(
                "rapidocr-onnxruntime: is not installed, so there is no detector; pip install "
                "--no-deps -r requirements-models.txt, or pass --model"
            )
        models = Path(found.submodule_search_locations[0]) / "models"
        model = models / "ch_PP-OCRv4_det_infer.onnx"
    return at.from_onnx(model, shapes={"x": (1, 3, 320, 320)}, layout=options.onnx_layout)


def measure(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Tune a network as far as it is to be, then measure it."""
    path = options.runs / name
    if (path / "manifest.json").exists():
        session = at.TuningSession.open(path)
    else:
        session = at.TuningSession.create(path, network(name, options), options.target)
    if session.state.trials < options.trials:
        session.tune(trials=options.trials, seconds=options.seconds)
        session.wait()
    library = session.compile()
    # anew, as quiet or busy as the machine is for what follows
    device = roofline.of_run(session.directory, again=True)
    baselines = [part.strip() for part in options.baselines.split(",") if part.strip()]
    evaluation = evaluate_run(session.directory, library, baselines)
    evaluations.store(session.directory, evaluation.to_json())
    state, manifest = session.state, session.manifest
    measured = evaluation.latency.median if evaluation.latency else None
    return {
        "network": name,
        "layout": manifest.network.get("layout"),
        "trials": state.trials,
        "failed_trials": state.failed_trials,
        "tuning_s": state.used_s,
        **evaluation.to_json(),
        "problems": list(evaluation.problems),
        "roofline": {
            "peak_gflops": device.peak_gflops,
            "bandwidth_gbs": device.bandwidth_gbs,
            "bound_s": bound_s(manifest.tasks, device),
        },
        "estimate_error": error_of(library, measured),
        "profile": profile_run(session.directory).to_json(),
    }


def bound_s(tasks: tuple[TaskInfo, ...], device: roofline.Roofline) -> float:
    """Return the least time of all tasks: each at the peak, or as fast as memory brings its data.

    Operations are those of the direct form, so that Winograd's convolutions can be below it.
    """
    total = 0.0
    for task in tasks:
        moved = math.fsum(map(buffer_bytes, task.shapes)) / (device.bandwidth_gbs * 1e9)
        computed = task.flops / (device.peak_gflops * 1e9)
        total += task.weight * max(computed, 0.0 if math.isnan(moved) else moved)
    return total


def error_of(library: Library, measured_s: float | None) -> float | None:
    """Return by what part the estimate misses the measured latency; negative if it is too low."""
    estimated = library.estimated_total_latency_s
    return None if not measured_s or estimated is None else estimated / measured_s - 1


def markdown(result: dict[str, Any]) -> str:
    """Return the results as tables, with what holds each network back."""
    machine = result["machine"]
    head = (
        "network",
        "trials",
        "tuned",
        *BASELINES,
        "tuned / ONNX Runtime",
        "limit",
        "of the limit",
        "estimated",
        "error",
        "largest error of outputs",
    )
    out = [
        "# Latency of five networks",
        "",
        (
            f"{machine['processor']}, {machine['cores']} cores, {result['date']}; apache-tvm "
            f"{result['versions'].get('apache-tvm', result['versions'].get('tvm', ''))}. "
            "Milliseconds, medians of runs in turns; float32, batch 1. *limit*, task by task: all "
            "operations of the direct form at the measured peak, or all data at the bandwidth."
        ),
        "",
        f"    {result['command']}",
        "",
        f"| {' | '.join(head)} |",
        f"|{'---|' * len(head)}",
    ]
    ratios = []
    for row in result["networks"]:
        if "error" in row or not row["correct"]:
            reason = row.get("error", "not correct")
            out.append(f"| {row['network']} | {reason} |{' |' * (len(head) - 2)}")
            continue
        tuned = row["latency_s"]["median"]
        others = {name: value["median"] for name, value in row["baselines"].items()}
        if "onnxruntime" in others:
            ratios.append(tuned / others["onnxruntime"])
        cells = [
            row["network"],
            str(row["trials"]),
            ms(tuned),
            *(ms(others.get(name)) for name in BASELINES),
            f"{ratios[-1]:.2f}" if "onnxruntime" in others else "-",
            ms(row["roofline"]["bound_s"]),
            f"{row['roofline']['bound_s'] / tuned:.0%}",
            ms(row["estimated_total_latency_s"]),
            "-" if row["estimate_error"] is None else f"{row['estimate_error']:+.0%}",
            f"{row['max_error']:.0e}",
        ]
        out.append(f"| {' | '.join(cells)} |")
    if ratios:
        out += ["", f"Median of tuned / ONNX Runtime: {statistics.median(ratios):.2f}."]
    out += ["", "Left out:", "", *(f"- {line}" for line in result["left_out"])]
    for row in result["networks"]:
        if "profile" in row:
            out += ["", f"## {row['network']}", "", *held_back(row)]
    return "\n".join(out) + "\n"


def held_back(row: dict[str, Any]) -> list[str]:
    """Return the functions that take longest, in place, beside what was promised."""
    functions = row["profile"]["functions"]
    whole = sum(f["duration_s"] for f in functions)
    out = [
        "| function | calls | in place | alone, warm | promised by its task | share |",
        "|---|---|---|---|---|---|",
    ]
    out += [
        f"| {f['name']} | {f['calls']} | {ms(f['duration_s'])} | {ms(f['alone_s'])} | "
        f"{ms(f['estimated_s'])} | {f['duration_s'] / whole:.0%} |"
        for f in functions[:_SHOWN]
    ]
    runtime = sum(f["duration_s"] for f in functions if f["kind"] == "runtime")
    out += [
        "",
        f"The virtual machine itself takes {ms(runtime)} ms; machine load {row['load']:.1f}.",
    ]
    return out + [f"Problem: {problem}" for problem in row["problems"]]


def ms(seconds: float | None) -> str:
    """Return milliseconds with three digits."""
    return "-" if seconds is None else f"{seconds * 1e3:.3g}"


if __name__ == "__main__":
    sys.exit(main())
