"""Quality of the search: what its settings and cost model cost, and what latency they reach.

    python benchmarks/search_quality.py --tasks 2,10,17 --seeds 0,1,2 --trials 128

Compares settings of the evolutionary search on single tasks, with the same builders, measurements
and batches. A setting is POPULATIONxGENERATIONS with this project's cost model, or followed by
``-xgb`` with TVM's ``XGBModel``; TVM's defaults are ``512x4-xgb``. The settings take turns, a round
each, so that a busy machine slows all of them alike; in the end the best schedules of all are
timed again, in turns, and only these times are compared.

Time is counted, not taken from a clock, since other processes would disturb it: CPU seconds of
search, learning and builds, spread over the cores, and for each trial what measuring one took on
average, for all settings the same.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime as dt
import itertools
import json
import math
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from trials_per_second import machine, write
from warm_builders import Builders

import autotune_nb as at
from autotune_nb.tuning import tvm_setup
from autotune_nb.tuning.cores import available_cores
from autotune_nb.tuning.launch import versions
from autotune_nb.tuning.messages import Candidate, SearchOptions

Result = dict[str, Any]
_KEPT = 3  # of a run's schedules, the best are timed again
_TURNS = 5


@dataclasses.dataclass(frozen=True, slots=True)
class Setting:
    """One way to search."""

    population: int
    generations: int
    upstream_model: bool

    @classmethod
    def parse(cls, text: str) -> Setting:
        sizes, _, model = text.partition("-")
        population, _, generations = sizes.partition("x")
        return cls(int(population), int(generations), model == "xgb")

    def options(self, batch_size: int, seed: int) -> SearchOptions:
        return SearchOptions(
            population=self.population,
            fresh=min(50, max(8, self.population // 2)),
            generations=self.generations,
            batch_size=batch_size,
            seed=seed,
        )


class UpstreamModel:
    """TVM's cost model behind the interface of ours."""

    def __init__(self) -> None:
        from tvm.s_tir import meta_schedule as ms

        self._model = ms.cost_model.XGBModel(num_tuning_cores=1)

    def add(self, context: Any, candidates: list[Any], times: list[list[float]]) -> None:
        from tvm.s_tir import meta_schedule as ms

        results = [
            ms.runner.RunnerResult(t, None) if t else ms.runner.RunnerResult(None, "failed")
            for t in times
        ]
        self._model.update(context, candidates, results)

    def for_search(self) -> Any:
        return self._model


@dataclasses.dataclass(slots=True)
class Step:
    """The state of a run after a round."""

    trials: int
    search_s: float
    build_s: float
    measure_s: float
    best: tuple[float, Candidate] | None


class Run:
    """One task searched with one setting and one seed."""

    def __init__(
        self, directory: str, target: str, task: int, setting: Setting, batch_size: int, seed: int
    ) -> None:
        from autotune_nb.tuning import search

        np.random.seed(seed)  # XGBModel's guesses before it is trained
        # the class, and not the functions around it, since several searches live in this process
        self._searcher = search._Searcher(directory, target, setting.options(batch_size, seed), {})
        if setting.upstream_model:
            self._searcher.model = UpstreamModel()  # type: ignore[assignment]
        self._task = task
        self.steps: list[Step] = []
        self.found: list[tuple[float, Candidate]] = []
        self.exhausted = False

    def round(self, builders: Builders, count: int) -> None:
        start = time.process_time()
        candidates = self._searcher.propose(self._task, count)
        search_s = time.process_time() - start
        self.exhausted = not candidates
        if not candidates:
            return
        known = min(self.found, key=lambda f: f[0], default=(None,))[0]
        results, build_s, measure_s = builders.try_all(candidates, known)
        start = time.process_time()
        self._searcher.learn(self._task, list(results.items()))
        search_s += time.process_time() - start
        self.found += [(min(results[c.key]), c) for c in candidates if results[c.key]]
        last = self.steps[-1] if self.steps else Step(0, 0.0, 0.0, 0.0, None)
        self.steps.append(
            Step(
                trials=last.trials + len(candidates),
                search_s=last.search_s + search_s,
                build_s=last.build_s + build_s,
                measure_s=last.measure_s + measure_s,
                best=min(self.found, key=lambda f: f[0], default=None),
            )
        )

    def finalists(self) -> list[Candidate]:
        """Return the best candidates, as far as one measurement can tell."""
        return [c for _, c in sorted(self.found, key=lambda f: f[0])[:_KEPT]]


class Clock:
    """Turns what the runs of a task have spent into time."""

    def __init__(self, runs: list[Run]) -> None:
        last = [run.steps[-1] for run in runs]
        self.measure_s = sum(s.measure_s for s in last) / sum(s.trials for s in last)
        # equal time is the time in which the quickest run has had all its trials
        self.equal_s = min(self.time_s(step) for step in last)

    def time_s(self, step: Step) -> float:
        return (step.search_s + step.build_s) / available_cores() + step.trials * self.measure_s

    def best_at_equal_time(self, run: Run) -> Candidate | None:
        in_time = [step.best for step in run.steps if self.time_s(step) <= self.equal_s + 1e-9]
        return in_time[-1][1] if in_time and in_time[-1] else None


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--network", default="resnet-18")
    parser.add_argument("--layout", default="NHWC")
    parser.add_argument("--target", default="llvm")
    parser.add_argument("--tasks", default="2,10,17", help="ids")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--trials", type=int, default=128)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--settings", default="512x4-xgb,64x2", help="the first is the reference")
    parser.add_argument("--output", type=Path, help="default: by date in benchmarks/results/")
    options = parser.parse_args()
    names = options.settings.split(",")
    now = dt.datetime.now(dt.timezone.utc).isoformat(timespec="seconds")
    result: Result = {
        "benchmark": "search_quality",
        "date": now,
        "command": " ".join(["python", "benchmarks/search_quality.py", *sys.argv[1:]]),
        "machine": machine(),
        "versions": versions(),
        "settings": names,
        "batch_size": options.batch_size,
        "trials": options.trials,
        "runs": [],
    }
    output = options.output or (
        Path(__file__).parent / "results" / f"search-quality-{now[:10]}.json"
    )
    with tempfile.TemporaryDirectory() as scratch:
        network = at.network(options.network, layout=options.layout)
        session = at.TuningSession.create(Path(scratch) / "run", network, options.target)
        manifest = session.manifest
        if manifest.device != "cpu":
            parser.error("this benchmark counts the time of a CPU target")
        tvm_setup.prepare(manifest.target)
        target = json.dumps(manifest.target)
        builders = Builders(target)
        try:
            for seed, task in itertools.product(
                map(int, options.seeds.split(",")), map(int, options.tasks.split(","))
            ):
                runs = {
                    name: Run(
                        str(session.path),
                        target,
                        task,
                        Setting.parse(name),
                        options.batch_size,
                        seed,
                    )
                    for name in names
                }
                take_turns(list(runs.values()), builders, options.trials, options.batch_size)
                label = manifest.tasks[task].name
                result["runs"] += compare(runs, builders, {"task": label, "seed": seed})
                result["summary"] = summary(result["runs"], names)
                result["load_average_after"] = machine()["load_average_before"]
                write(output, result)
                print(f"{label}, seed {seed}\n{table(result['summary'])}", flush=True)
        finally:
            builders.close()
    return 0


def take_turns(runs: list[Run], builders: Builders, trials: int, batch_size: int) -> None:
    """Let each run do its rounds, one after the other, until all have had their trials."""
    while True:
        left = [r for r in runs if not r.exhausted and spent(r) < trials]
        if not left:
            return
        for run in left:
            run.round(builders, min(batch_size, trials - spent(run)))


def spent(run: Run) -> int:
    return run.steps[-1].trials if run.steps else 0


def compare(runs: dict[str, Run], builders: Builders, about: Result) -> list[Result]:
    """Time the best schedules of all runs again, in turns, and return what each run reached."""
    clock = Clock(list(runs.values()))
    early = {name: clock.best_at_equal_time(run) for name, run in runs.items()}
    finalists = {c.key: c for run in runs.values() for c in run.finalists()}
    finalists |= {c.key: c for c in early.values() if c is not None}
    times = builders.time_again(list(finalists.values()), _TURNS)
    rows = []
    for name, run in runs.items():
        last = run.steps[-1]
        final = min(times[c.key] for c in run.finalists())
        first = early[name]
        rows.append(
            {
                **about,
                "setting": name,
                "trials": last.trials,
                "latency_ms": round(final * 1e3, 5),
                "equal_time_s": round(clock.equal_s, 1),
                "latency_at_equal_time_ms": first and round(times[first.key] * 1e3, 5),
                "time_s": round(clock.time_s(last), 1),
                "search_cpu_s": round(last.search_s, 1),
                "build_cpu_s": round(last.build_s, 1),
                "measure_s": round(last.measure_s, 1),
                "failed": last.trials - len(run.found),
                "curve": [
                    [s.trials, round(clock.time_s(s), 1), s.best and round(s.best[0] * 1e3, 5)]
                    for s in run.steps
                ],
            }
        )
    return rows


def summary(rows: list[Result], names: list[str]) -> list[Result]:
    """Return each setting against the first: geometric means of latency over tasks and seeds.

    Below 1 is faster. The interval is the middle 90 % of means of pairs drawn with replacement.
    """
    found = []
    for name in names:
        pairs = [
            (row, reference)
            for row in rows
            if row["setting"] == name
            for reference in rows
            if reference["setting"] == names[0]
            and (reference["task"], reference["seed"]) == (row["task"], row["seed"])
        ]
        entry: Result = {"setting": name, "pairs": len(pairs)}
        for key, title in (
            ("latency_ms", "equal_trials"),
            ("latency_at_equal_time_ms", "equal_time"),
        ):
            logs = [math.log(a[key] / b[key]) for a, b in pairs if a[key] and b[key]]
            entry[title] = mean_ratio(logs)
        for key in ("time_s", "search_cpu_s", "build_cpu_s", "measure_s", "failed"):
            entry[key] = round(statistics.fmean(a[key] for a, _ in pairs), 1)
        found.append(entry)
    return found


def mean_ratio(logs: list[float]) -> list[float] | None:
    """Return a geometric mean and its interval."""
    if not logs:
        return None
    draw = random.Random(0)
    means = sorted(statistics.fmean(draw.choices(logs, k=len(logs))) for _ in range(1000))
    return [round(math.exp(x), 3) for x in (statistics.fmean(logs), means[50], means[950])]


def table(rows: list[Result]) -> str:
    """Return a summary as text."""
    heads = ("equal trials", "equal time", "time s", "search", "build", "measure", "failed")
    widths = (26, 24, 8, 8, 7, 9, 8)
    head = "".join(f"{text:>{width}}" for text, width in zip(heads, widths, strict=True))
    lines = [f"{'setting':<12}{head}"]
    for row in rows:
        cells = [
            "–" if r is None else f"{r[0]:.3f} ({r[1]:.3f}–{r[2]:.3f})"
            for r in (row["equal_trials"], row["equal_time"])
        ]
        lines.append(
            f"{row['setting']:<12}{cells[0]:>26}{cells[1]:>24}{row['time_s']:>8}"
            f"{row['search_cpu_s']:>8}{row['build_cpu_s']:>7}{row['measure_s']:>9}"
            f"{row['failed']:>8}"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
