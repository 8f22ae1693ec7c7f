"""Trials per second: this project and upstream's ``tune_tasks``, on the same tasks in one run.

    python benchmarks/trials_per_second.py --trials 512 --upstream-trials 64

Both tune the same tasks of the same network for the same target, in batches of the same size, and
time a candidate over the same least time. Upstream runs twice: as it is, cut off after
``--upstream-limit`` seconds, and with the time-outs of its builder and runner raised until it
completes. Upstream is slow, so it may be given fewer trials: rates are compared, with and without
the start-up. The result, with machine and versions, goes to benchmarks/results/.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
from journal_shares import (
    failure_kinds,
    start_up,
    wall_shares,
    worker_seconds,
)
from process_watch import ProcessWatch

import autotune_nb as at
from autotune_nb.run import journal
from autotune_nb.tuning.launch import versions
from autotune_nb.tuning.target import cpu_name

HERE = Path(__file__).parent
Result = dict[str, Any]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--network", default="resnet-18")
    parser.add_argument("--layout", default="NHWC")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--target", default="llvm")
    parser.add_argument("--tasks", help="ids of the tasks to tune, such as 2,5,9; default: all")
    parser.add_argument("--trials", type=int, default=512)
    parser.add_argument("--upstream-trials", type=int, help="default: as many as --trials")
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--min-repeat-ms", type=int, default=60)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--raised-timeout", type=float, default=600.0)
    parser.add_argument("--upstream-limit", type=float, default=300.0, help="s, as it is")
    parser.add_argument("--raised-limit", type=float, default=3600.0, help="s, time-outs raised")
    parser.add_argument("--skip", default="", help="some of ours,default,raised")
    parser.add_argument("--output", type=Path, help="default: by date in benchmarks/results/")
    options = parser.parse_args()
    options.upstream_trials = options.upstream_trials or options.trials
    options.tasks = None if options.tasks is None else [int(t) for t in options.tasks.split(",")]
    skipped = set(options.skip.split(","))

    result: Result = {
        "benchmark": "trials_per_second",
        "date": dt.datetime.now(dt.timezone.utc).isoformat(timespec="seconds"),
        "command": " ".join(["python", "benchmarks/trials_per_second.py", *sys.argv[1:]]),
        "machine": machine(),
        "versions": versions(),
        "settings": {k: v for k, v in vars(options).items() if k not in ("output", "skip")},
        "runs": {},
    }
    runs: dict[str, Result] = result["runs"]
    output = options.output or HERE / "results" / f"trials-per-second-{result['date'][:10]}.json"
    if "ours" not in skipped:
        runs["this project"] = ours(options)
        write(output, result)
    for name, title, timeout_s, limit_s in (
        ("default", "upstream as it is", None, options.upstream_limit),
        ("raised", "upstream, time-outs raised", options.raised_timeout, options.raised_limit),
    ):
        if name not in skipped:
            runs[title] = upstream(options, timeout_s, limit_s)
            write(output, result)
    result["times_as_fast"] = ratios(runs)
    write(output, result)
    print(table(result))
    return 0


def write(path: Path, result: Result) -> None:
    path.write_text(json.dumps(result, indent=1) + "\n")


def machine() -> Result:
    return {
        "processor": cpu_name(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "system": platform.platform(),
        "load_average_before": [round(x, 2) for x in os.getloadavg()],
    }


# -- this project


def ours(options: argparse.Namespace) -> Result:
    """Tune through the public API in a temporary run directory."""
    with tempfile.TemporaryDirectory() as scratch:
        network = at.network(options.network, layout=options.layout, dtype=options.dtype)
        session = at.TuningSession.create(
            Path(scratch) / "run",
            network,
            options.target,
            batch_size=options.batch_size,
            min_repeat_ms=options.min_repeat_ms,
            repeats=options.repeats,
            seed=options.seed,
        )
        if options.tasks is not None:
            session.focus(options.tasks)
        # known before the tuner has told anything: what it starts in its first second counts too
        watch = ProcessWatch(lambda: session.holder.pid or 0)
        asked = time.perf_counter()
        asked_at = time.time()
        session.tune(trials=options.trials)
        first_row_s = None
        while session.running:
            if first_row_s is None and session.state.trials:
                first_row_s = time.perf_counter() - asked
            time.sleep(0.1)
        wall_s = time.perf_counter() - asked
        watch.stop()
        orphans = watch.left_behind()
        state = session.state
        events, _ = journal.read(session.directory.journal)
        on_cpu = session.manifest.device.startswith("cpu")
        return {
            "outcome": f"{state.phase}: {state.message}",
            **rates(state.trials, wall_s, start_up(events, asked_at)),
            "first_row_s": rounded(first_row_s),
            "failed_trials": state.failed_trials,
            "failures": failure_kinds(events),
            "worker_seconds": worker_seconds(events),
            "wall_shares": wall_shares(events, asked_at, wall_s) if on_cpu else None,
            "best_latency_ms": {
                task.info.name: rounded(task.best_latency_s * 1e3, 5)
                for task in state.tasks
                if task.best_latency_s is not None
            },
            "orphans": orphans,
            **watch.summary(),
        }


def rates(trials: int, wall_s: float, ready_s: float) -> Result:
    """Return trials a second: over all the time, and from the moment that tuning could begin."""
    return {
        "trials": trials,
        "wall_s": round(wall_s, 1),
        "start_up_s": round(ready_s, 1),
        "trials_per_s": round(trials / wall_s, 3) if wall_s else 0.0,
        "trials_per_s_after_start_up": round(trials / max(wall_s - ready_s, 1e-9), 3),
    }


# -- upstream


def upstream(options: argparse.Namespace, timeout_s: float | None, limit_s: float) -> Result:
    """Tune with upstream in a process of its own, for at most `limit_s` seconds."""
    names = ("network", "layout", "dtype", "target", "tasks", "batch_size", "min_repeat_ms")
    settings = {name: getattr(options, name) for name in (*names, "repeats", "seed")}
    settings |= {"trials": options.upstream_trials, "timeout_s": timeout_s}
    with tempfile.TemporaryDirectory() as scratch:
        asked, progress = Path(scratch) / "settings.json", Path(scratch) / "progress.jsonl"
        asked.write_text(json.dumps(settings))
        progress.touch()
        log = (Path(scratch) / "log").open("wb")
        child = subprocess.Popen(
            [sys.executable, str(HERE / "upstream_tuning.py"), str(asked), str(progress)],
            stdout=log,
            stderr=log,
            start_new_session=True,
            env={**os.environ, "TMPDIR": scratch},  # what it leaves there goes with the folder
        )
        watch = ProcessWatch(child.pid)
        started = None
        while child.poll() is None:
            if started is None and progress.stat().st_size:
                started = time.perf_counter()
            if started is not None and time.perf_counter() - started > limit_s:
                break
            time.sleep(0.2)
        wall_s = 0.0 if started is None else time.perf_counter() - started
        watch.stop()
        cut_off = child.poll() is None
        if cut_off:
            child.terminate()
        child.wait()
        orphans = watch.left_behind()
        watch.kill_left_behind()
        log.close()
        steps = [json.loads(line) for line in progress.read_text().splitlines()]
        batches = [step for step in steps if step["what"] == "batch"]
        last = steps[-1] if steps else {}
        if not cut_off and child.returncode:
            outcome = "failed: " + (Path(scratch) / "log").read_text("utf-8", "replace")[-300:]
        else:
            outcome = f"cut off after {limit_s:.0f} s" if cut_off else "finished"
    failures: dict[str, int] = {}
    for batch in batches:
        for message, count in batch["failures"].items():
            failures[message] = failures.get(message, 0) + count
    trials = sum(batch["trials"] for batch in batches)
    # Its start-up: importing intrinsics, starting the pools. Batches are reported when the next one
    # has been measured, so the first report tells no rate.
    ready_s = next((step["at_s"] for step in steps if step["what"] == "ready"), 0.0)
    return {
        "outcome": outcome,
        **rates(trials, wall_s if cut_off else last.get("at_s", wall_s), ready_s),
        "first_row_s": rounded(batches[0]["at_s"]) if batches else None,
        "failed_trials": sum(failures.values()),
        "failures": failures,
        "worker_seconds": upstream_seconds(last),
        "wall_shares": upstream_shares(last),
        "orphans": orphans,
        **watch.summary(),
    }


def upstream_seconds(last: Result) -> dict[str, float] | None:
    """Return what upstream's workers spent; linking is what its runner does before it measures."""
    costs, profile = last.get("costs"), last.get("profile")
    if not costs or not profile:
        return None
    spent = {name: round(costs.get(name, 0.0), 1) for name in ("import", "build", "export")}
    measure = costs.get("measure", 0.0)
    link = max(0.0, profile.get("SendToRunner", 0.0) - measure)
    return {**spent, "link and load": round(link, 1), "measure": round(measure, 1)}


def upstream_shares(last: Result) -> dict[str, float] | None:
    """Return what upstream's wall time went to, as its own profiler tells; one after the other."""
    profile, wall_s = last.get("profile"), last.get("at_s")
    if not profile or not wall_s:
        return None
    measure = last["costs"].get("measure", 0.0)
    shares = {
        "searching": sum(v for k, v in profile.items() if k.startswith("EvoSearch/")),
        "learning": profile.get("MeasureCallback/UpdateCostModel", 0.0),
        "building": profile.get("SendToBuilder", 0.0),
        "measuring": measure,
        "linking": max(0.0, profile.get("SendToRunner", 0.0) - measure),
    }
    known = {name: round(value / wall_s, 3) for name, value in shares.items()}
    return {**known, "other": round(1 - sum(shares.values()) / wall_s, 3)}


# -- the result


def ratios(runs: dict[str, Result]) -> Result:
    """Return how many times as fast as each run of upstream this project is."""
    mine = runs.get("this project")
    found: Result = {}
    for name, run in runs.items():
        if mine is None or run is mine:
            continue
        good = run["trials"] - run["failed_trials"]
        found[name] = {
            key: rounded(mine[key] / run[key], 1) if good and mine[key] and run[key] else None
            for key in ("trials_per_s", "trials_per_s_after_start_up")
        }
    return found


def rounded(value: float | None, digits: int = 2) -> float | None:
    return None if value is None else round(value, digits)


def table(result: Result) -> str:
    """Return the result as text."""
    rows = [
        (
            "",
            "trials",
            "failed",
            "wall s",
            "trials/s",
            "after start",
            "1st row s",
            "peak MiB",
            "flat",
            "orphans",
            "others' cores",
        )
    ]
    for name, run in result["runs"].items():
        rows.append(
            (
                name,
                *(
                    "–" if value is None else str(value)
                    for value in (
                        run["trials"],
                        run["failed_trials"],
                        run["wall_s"],
                        run["trials_per_s"],
                        run["trials_per_s_after_start_up"],
                        run["first_row_s"],
                        run["peak_memory_mib"],
                        run["flat_over_last_half"],
                        len(run["orphans"]),
                        run["cores_used_by_others"],
                    )
                ),
            )
        )
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = [
        "  ".join(
            cell.ljust(w) if not i else cell.rjust(w)
            for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
    for name, run in result["runs"].items():
        shares = run["wall_shares"] or {}
        text = ", ".join(f"{share:.0%} {what}" for what, share in shares.items())
        lines.append(f"{name}: {run['outcome']}; {text or 'no shares'}")
    for name, ratio in result["times_as_fast"].items():
        lines.append(f"this project, as a multiple of {name}: {ratio}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
