"""The long form of tests/faults: many more kills, cuts at every byte, tens of thousands of trials.

    python benchmarks/faults.py --output benchmarks/results/faults-2-cores.json

Tuners with stub jobs are struck at random moments as on a CPU (`cpu`) and as on a GPU, where a
process of its own measures (`cuda`); then a tuner with TVM, on a tiny network. After each the
journal, the records and what was really measured are held against each other. It ends with exit
code 1 if anything is lost, counted twice or left running.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import psutil

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from autotune_nb.run import database, journal  # noqa: E402
from autotune_nb.run import events as ev  # noqa: E402
from autotune_nb.run.directory import RunDirectory, RunWriter  # noqa: E402
from tests.faults import stub_run  # noqa: E402
from tests.faults.chaos import Chaos  # noqa: E402

SLOW = {"build_s": 0.004, "measure_s": 0.004, "search_s": 0.01}


def kills(folder: Path, device: str, strikes: int, seed: int) -> dict[str, object]:
    """Strike a tuner with stub jobs."""
    run = stub_run.make(folder / f"stub-{device[:4]}", device=device, default=SLOW)
    return _strike(run, strikes, seed, lambda lost: {"lost_under_way": run.check(lost=lost)})


def kills_with_tvm(folder: Path, strikes: int, seed: int) -> dict[str, object]:
    """Strike a tuner with TVM in it; after each start it gets some seconds to measure."""
    import autotune_nb as at

    path = folder / "mlp"
    at.TuningSession.create(path, at.network("mlp"), "llvm", batch_size=8, min_repeat_ms=5)
    run = stub_run.StubRun(path, command=("-m", "autotune_nb.tuning"))

    def check(_: int) -> dict[str, object]:
        trials = run.events(ev.TrialDone)
        assert [t.trial for t in trials] == list(range(1, len(trials) + 1))
        records, bad = database.read_records(path)
        assert not bad
        assert [r.digest for r in records] == [t.record for t in trials]
        traces = [json.dumps([r.task, json.loads(r.line)[1][0]]) for r in records]
        assert len(set(traces)) == len(traces), "a schedule was measured twice"
        return {"different_schedules": len(set(traces))}

    return _strike(run, strikes, seed, check, gap_s=(0.5, 6.0), more=60)


def _strike(
    run: stub_run.StubRun,
    strikes: int,
    seed: int,
    check: Callable[[int], dict[str, object]],
    **how: object,
) -> dict[str, object]:
    chaos = Chaos()
    begun = time.monotonic()
    try:
        state = chaos.torment(run, strikes=strikes, seed=seed, **how)
    finally:
        left = run.close()
    assert state.phase == "finished", state.message
    assert state.failed_trials <= chaos.lost, "candidates failed that were not hit"
    assert chaos.left + left == [], "processes are left"
    return {
        "strikes": dict(sorted(chaos.strikes.items())),
        "tuner_sessions": chaos.sessions,
        "trials": state.trials,
        "failed_trials": state.failed_trials,
        **check(chaos.lost),
        "counted_twice": 0,
        "processes_left": 0,
        "slowest_stop_s": round(chaos.slowest_stop_s, 3),
        "seconds": round(time.monotonic() - begun, 1),
    }


def cuts(folder: Path) -> dict[str, object]:
    """Cut journal and records at every byte of their last two lines, and put garbage in between."""
    run = stub_run.make(folder / "cut", default={"padding": 20})
    run.tune(30)
    whole = run.state
    begun = time.monotonic()
    opened = 0
    for name in (journal.FILE, database.RECORD_FILE):
        data = (run.path / name).read_bytes()
        last_two = data[:-1].rfind(b"\n", 0, data[:-1].rfind(b"\n")) + 1
        damaged = [data[:size] for size in range(last_two, len(data))]
        step = max(1, len(data) // 40)
        garbage = b'\x00\xff{"event":\n[[[\n'
        damaged += [data[:at] + garbage + data[at:] for at in range(0, len(data), step)]
        for content in damaged:
            copy = folder / "copy"
            shutil.copytree(run.path, copy)
            (copy / name).write_bytes(content)
            read = RunDirectory(copy).poll()  # a reader bears it as it is
            assert read.trials <= whole.trials
            with RunWriter(copy) as writer:
                mended = writer.state
            assert whole.trials - 2 <= mended.trials <= whole.trials, (name, len(content))
            assert RunDirectory(copy).poll() == mended
            shutil.rmtree(copy)
            opened += 1
    return {"damaged_runs_opened": opened, "seconds": round(time.monotonic() - begun, 1)}


def long_run(folder: Path, trials: int) -> dict[str, object]:
    """Tune with stub jobs for very long; see what memory and time a trial takes."""
    run = stub_run.make(
        folder / "long", tasks=24, options={"batch_size": 16}, default={"padding": 300}
    )
    process = run.start(trials)
    tuner = psutil.Process(process.pid)
    reader = run.directory
    memory: list[tuple[int, int]] = []
    cpu = 0.0
    while process.poll() is None:
        try:
            memory.append((reader.poll().trials, tuner.memory_info().rss))
            cpu = sum(tuner.cpu_times()[:2])
        except psutil.Error:
            break
        time.sleep(0.2)
    assert process.wait(60) == 0
    run.check()
    stamps = [event.used_s for event in run.events(ev.TrialDone)]
    tenth = trials // 10
    pace = [
        (stamps[end - 1] - stamps[end - tenth]) / tenth for end in range(tenth, trials + 1, tenth)
    ]
    early = statistics.median(m for t, m in memory if tenth < t < 2 * tenth)
    late = statistics.median(m for t, m in memory if t > 9 * tenth)
    return {
        "trials": trials,
        "seconds": round(stamps[-1], 1),
        "tuner_cpu_ms_per_trial": round(cpu / trials * 1e3, 3),
        "ms_per_trial_by_tenth": [round(s * 1e3, 3) for s in pace],
        "tuner_mib_in_the_second_tenth": round(early / 2**20, 1),
        "tuner_mib_in_the_last_tenth": round(late / 2**20, 1),
    }


def short_form() -> dict[str, object]:
    """Run the tests marked `faults`."""
    begun = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-m", "faults", "tests/faults"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    last = done.stdout.strip().splitlines()[-1]
    assert done.returncode == 0, done.stdout[-3000:]
    return {"pytest": last, "seconds": round(time.monotonic() - begun, 1)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--strikes", type=int, default=50, help="of each kind of stub run")
    parser.add_argument("--tvm-strikes", type=int, default=25)
    parser.add_argument("--trials", type=int, default=30_000, help="of the long run")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", help="JSON file to write")
    options = parser.parse_args()
    results: dict[str, object] = {
        "machine": f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores",
        "python": platform.python_version(),
        "seed": options.seed,
    }
    failed = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        parts: dict[str, Callable[[], dict[str, object]]] = {
            "kills_cpu": lambda: kills(folder, "cpu", options.strikes, options.seed),
            "kills_gpu": lambda: kills(folder, "cuda:0", options.strikes, options.seed),
            "kills_tvm": lambda: kills_with_tvm(folder, options.tvm_strikes, options.seed),
            "cuts": lambda: cuts(folder),
            "long_run": lambda: long_run(folder, options.trials),
            "short_form": short_form,
        }
        for part, measure in parts.items():
            try:
                results[part] = measure()
            except Exception:
                traceback.print_exc()
                failed.append(part)
                results[part] = "failed"
            print(part, json.dumps(results[part]), flush=True)
    results["load"] = round(os.getloadavg()[0], 1)
    if options.output:
        Path(options.output).write_text(json.dumps(results, indent=1) + "\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
