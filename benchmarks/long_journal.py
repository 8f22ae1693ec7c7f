"""Measures how a run with a very long journal opens, and how fast it follows and commits.

    python benchmarks/long_journal.py --trials 1000000 --tasks 1000 --output results.json

The journal and its records are made up, in a temporary directory, as a tuner would write them.
Times are the median of several; each opening happens in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from autotune_nb.run import checkpoint, database, journal
from autotune_nb.run import events as ev
from autotune_nb.run.directory import RunDirectory, RunWriter
from autotune_nb.run.manifest import Manifest, Options
from autotune_nb.run.records import TaskInfo

BATCH = 16


def make(path: Path, trials: int, tasks: int) -> None:
    """Write a run of so many trials, a fifth of them failed."""
    infos = tuple(
        TaskInfo(id=i, name=f"op{i}", weight=1, flops=1e9, workload_hash=str(i))
        for i in range(tasks)
    )
    Manifest(
        name="long",
        network_fingerprint="",
        network={},
        target={"kind": "llvm"},
        device="cpu",
        device_name="",
        versions={},
        options=Options(batch_size=BATCH),
        tasks=infos,
        created=time.time(),
    ).write(path)
    chance = random.Random(1)
    best = [1e-3] * tasks
    clock, done = 0.0, 0
    with (
        (path / journal.FILE).open("w") as events,
        (path / database.RECORD_FILE).open("w") as records,
    ):

        def note(cls: type[ev.Event], **fields: object) -> None:
            event = cls(time=1.7e9 + clock, used_s=clock, **fields)
            events.write(ev.encode(event) + "\n")

        note(ev.TunerStarted, pid=1, host="h", versions={}, workers={})
        while done < trials:
            number = done // BATCH + 1
            task = number % tasks
            note(ev.RoundStarted, round=number, task=task)
            note(ev.RoundSearched, round=number, task=task, candidates=BATCH, search_s=1.2345)
            for _ in range(BATCH):
                done, clock = done + 1, round(clock + 0.2, 3)
                good = chance.random() > 0.2
                latency = float(f"{best[task] * chance.uniform(0.98, 3):.6g}") if good else None
                best[task] = min(best[task], latency or 1.0)
                times = () if latency is None else (latency,)
                line = database.record_line(task, [["trace"], done], times, {"kind": "llvm"}, [])
                records.write(line + "\n")
                note(
                    ev.TrialDone,
                    trial=done,
                    round=number,
                    task=task,
                    candidate=f"{chance.getrandbits(64):016x}",
                    latency_s=latency,
                    latencies_s=times,
                    error_kind="" if good else "build_timeout",
                    error="" if good else "the build took more than 20 s and was killed",
                    build_s=round(chance.random(), 4),
                    measure_s=round(chance.random(), 4),
                    record=database.digest(line),
                    device="cpu",
                )
            note(
                ev.RoundFinished, round=number, task=task, trials=BATCH, build_s=5.0, measure_s=3.0
            )


def timed_open(path: Path, kind: str) -> float:
    """Return the seconds a process of its own needs to open the run as ``reader`` or ``writer``."""
    done = subprocess.run(
        [sys.executable, __file__, "--open", kind, str(path)],
        capture_output=True,
        text=True,
        check=True,
    )
    return float(done.stdout)


def open_once(path: Path, kind: str) -> float:
    start = time.perf_counter()
    if kind == "reader":
        RunDirectory(path).poll()
        return time.perf_counter() - start
    with RunWriter(path):
        return time.perf_counter() - start


def follow(path: Path) -> dict[str, float]:
    """Return the times of a commit and of the update a reader needs after it."""
    reader = RunDirectory(path)
    reader.poll()
    commits, updates = [], []
    with RunWriter(path) as writer:
        for _ in range(20):
            event = ev.PhaseChanged(time=time.time(), used_s=writer.state.used_s, phase="tuning")
            start = time.perf_counter()
            writer.commit([event])
            commits.append(time.perf_counter() - start)
            start = time.perf_counter()
            state = reader.poll()
            updates.append(time.perf_counter() - start)
            assert state == writer.state
    return {
        "commit_s": statistics.median(commits),
        "live_update_s": statistics.median(updates),
        "slowest_live_update_s": max(updates),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=1_000_000)
    parser.add_argument("--tasks", type=int, default=1000)
    parser.add_argument("--output", help="JSON file to write")
    parser.add_argument("--open", nargs=2, metavar=("KIND", "RUN"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.open:
        kind, run = options.open
        print(open_once(Path(run), kind))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        make(path, options.trials, options.tasks)
        result: dict[str, object] = {
            "machine": f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores",
            "python": platform.python_version(),
            "trials": options.trials,
            "tasks": options.tasks,
            "journal_bytes": (path / journal.FILE).stat().st_size,
            "reader_without_checkpoint_s": timed_open(path, "reader"),
            "writer_without_checkpoint_s": timed_open(path, "writer"),
        }
        result.update(follow(path))  # the first commit has written the checkpoint
        result["checkpoint_bytes"] = (path / checkpoint.FILE).stat().st_size
        for kind in ("reader", "writer"):
            result[f"{kind}_s"] = statistics.median(timed_open(path, kind) for _ in range(3))
        result["load"] = os.getloadavg()[0]
    text = json.dumps(result, indent=1)
    print(text)
    if options.output:
        Path(options.output).write_text(text + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
