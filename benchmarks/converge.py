"""Tunes a network for a given time and records how its latency converged, and what came out.

    python benchmarks/converge.py resnet-18 --target cuda --seconds 460 --output results.json

The result holds machine, versions, the whole convergence curve, speed of the tuning, failures, the
shares of time, and the evaluation: correctness, then latency beside baselines.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from pathlib import Path

import autotune_nb as at
from autotune_nb.errors import AutotuneError
from autotune_nb.run import events as ev
from autotune_nb.run import journal
from autotune_nb.tuning.launch import versions
from autotune_nb.view.text import render_line, render_task_table


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("network")
    parser.add_argument("--target", default="llvm")
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--trials", type=int)
    parser.add_argument("--layout", default="NHWC")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--baselines", default="untuned,onnxruntime")
    parser.add_argument("--run", required=True, help="run directory to make, or to go on with")
    parser.add_argument("--output", required=True, help="JSON file to write")
    parser.add_argument("--option", action="append", default=[], help="NAME=VALUE of the run")
    parser.add_argument("--seed-from", action="append", default=[], help="run to start from")
    options = parser.parse_args()

    path = Path(options.run)
    if (path / "manifest.json").exists():
        session = at.TuningSession.open(path)
    else:
        chosen = dict(item.split("=") for item in options.option)
        net = at.network(options.network, layout=options.layout, dtype=options.dtype)
        session = at.TuningSession.create(
            path,
            net,
            options.target,
            seed_from=options.seed_from,
            **{name: int(value) for name, value in chosen.items()},
        )
    asked = time.perf_counter()
    session.tune(trials=options.trials, seconds=options.seconds)
    first_row_s = None
    shown = 0.0
    while session.running:
        state = session.state
        if first_row_s is None and state.trials:
            first_row_s = time.perf_counter() - asked
        if time.perf_counter() - shown > 15:
            shown = time.perf_counter()
            print(render_line(state, holder=session.holder), flush=True)
        time.sleep(0.1)
    state = session.state
    print(render_task_table(state, session.holder), flush=True)
    result = describe(session, first_row_s)
    Path(options.output).write_text(json.dumps(result, indent=1) + "\n")
    try:
        evaluation = session.evaluate(baselines=options.baselines.split(","))
    except AutotuneError as error:
        print(f"evaluation: {error}")
        result["evaluation_error"] = str(error)
    else:
        print(evaluation)
        result["evaluation"] = evaluation.to_json()
    Path(options.output).write_text(json.dumps(result, indent=1) + "\n")
    return 0


def describe(session: at.TuningSession, first_row_s: float | None) -> dict[str, object]:
    """Return what the run says of itself."""
    state, manifest = session.state, session.manifest
    events, _ = journal.read(session.directory.journal)
    trials = [e for e in events if isinstance(e, ev.TrialDone)]
    started = [e for e in events if isinstance(e, ev.TunerStarted)]
    searched = [e for e in events if isinstance(e, ev.RoundSearched)]
    return {
        "network": manifest.name,
        "machine": {
            "device": manifest.device_name,
            "cores": len(os.sched_getaffinity(0)),
            "system": platform.platform(),
        },
        "target": manifest.target,
        "versions": versions(),
        "options": {f: getattr(manifest.options, f) for f in manifest.options.__slots__},
        "workers": started[-1].workers if started else {},
        "outcome": state.phase,
        "message": state.message,
        "trials": state.trials,
        "failed_trials": state.failed_trials,
        "failures": failures(trials),
        "used_s": state.used_s,
        "trials_per_s": state.trials / state.used_s if state.used_s else None,
        "first_row_s": first_row_s,
        "worker_seconds": {
            "search": sum(e.search_s for e in searched),
            "build": sum(e.build_s for e in trials),
            "measure": sum(e.measure_s for e in trials),
        },
        "estimated_total_latency_s": state.estimated_total_latency_s,
        "partial": state.partial,
        "curve": [
            [p.trial, round(p.used_s, 2), p.estimated_total_latency_s]
            for p in state.curve
            if not p.partial
        ],
        "tasks": [
            {
                "name": t.info.name,
                "weight": t.info.weight,
                "trials": t.trials,
                "latency_s": t.best_latency_s,
                "gflops": t.gflops,
            }
            for t in state.tasks
        ],
    }


def failures(trials: list[ev.TrialDone]) -> dict[str, int]:
    """Return the failed trials by kind."""
    kinds: dict[str, int] = {}
    for trial in trials:
        if trial.error_kind:
            kinds[trial.error_kind] = kinds.get(trial.error_kind, 0) + 1
    return kinds


if __name__ == "__main__":
    sys.exit(main())
