"""How good the forecast is on recorded runs: its error, and how often its interval holds.

    python benchmarks/forecast.py            # test: forecast the end from 25 % and from 50 %
    python benchmarks/forecast.py --fit      # choose the constants of the forecast

Without names of runs, --fit takes the development set and the test all others in benchmarks/data
and tests/data: what constants were chosen from must not be tested on. A RUN is a run directory, one
packed as .tar.gz (its manifest and journal are enough), or the directory of a MetaSchedule
database, with the weights of its workloads after a colon if they are known (``h200:1,2,1``).
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import math
import statistics
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

from autotune_nb.run.database import RECORD_FILE
from autotune_nb.run.directory import RunDirectory
from autotune_nb.run.imports import import_database
from autotune_nb.run.journal import FILE as JOURNAL_FILE
from autotune_nb.run.manifest import FILE as MANIFEST_FILE
from autotune_nb.run.records import State
from autotune_nb.run.state import initial
from autotune_nb.view import forecast as model
from autotune_nb.view.history import History

HERE = Path(__file__).parent
DEVELOPMENT = ("data/resnet-18.tar.gz", "data/resnet-18-96.tar.gz")
TEST = (
    "../tests/data/h200-resnet18:1,2,1,1,1,1,2,2,1,2,1,1,2,1,1,1,1,1,1",
    "data/mlp-b64.tar.gz",
    "data/resnet-18-b4-96.tar.gz",
    "data/resnet-18-nchw-112.tar.gz",
    "data/resnet-34-64.tar.gz",
    "data/resnet-50-64.tar.gz",
    "data/h200-resnet18-5115.tar.gz",
    "data/h200-resnet18-3310.tar.gz",
)
FRACTIONS = (0.25, 0.5)
GRID = {
    "POWER": (0.3, 0.4, 0.5, 0.6),
    "DROP": (5.0, 7.0, 9.0),
    "LIGHT_DROP": (3.0,),
    "SHAPE": (12.0, 24.0, 48.0),
    "STRENGTH": (3.0, 6.0),
}


@dataclasses.dataclass(frozen=True)
class Recorded:
    """A recorded run that has come to its end."""

    name: str
    history: History
    trials: int

    def at(self, fraction: float) -> State:
        return self.history.at(round(self.trials * fraction))


@dataclasses.dataclass(frozen=True)
class Result:
    """One forecast beside what came."""

    name: str
    start: float
    trials: int
    guessed: int
    now_s: float
    low_s: float
    median_s: float
    high_s: float
    truth_s: float

    @property
    def error(self) -> float:
        return self.median_s / self.truth_s - 1

    @property
    def held(self) -> bool:
        return self.low_s <= self.truth_s <= self.high_s


def open_run(argument: str, folder: Path) -> Recorded:
    text, _, weights = argument.partition(":")
    path = Path(text)
    if path.name.endswith(".tar.gz"):
        path = unpack(path, folder / path.name.removesuffix(".tar.gz"))
    if (path / MANIFEST_FILE).exists():
        run = RunDirectory(path)
    else:
        if not any(path.glob(RECORD_FILE + "*")):
            sys.exit(f"{path}: neither a run directory nor a MetaSchedule database")
        counts = [int(w) for w in weights.split(",")] if weights else None
        run = import_database(path, folder / path.name, weights=counts)
    history = History(run.journal, initial(run.manifest.tasks))
    return Recorded(name=path.name, history=history, trials=run.poll().trials)


def unpack(path: Path, into: Path) -> Path:
    into.mkdir()
    with tarfile.open(path) as archive:
        for name in (MANIFEST_FILE, JOURNAL_FILE):
            member = archive.extractfile(name)
            if member is None:
                sys.exit(f"{path}: has no {name}")
            (into / name).write_bytes(member.read())
    return into


def judge(run: Recorded, start: float, end: float = 1.0) -> Result | None:
    """Forecast from one part of a run to another; None where there is nothing to compare."""
    state, final = run.at(start), run.at(end)
    if final.partial or final.estimated_total_latency_s is None:
        return None
    made = model.forecast(state, final.trials)
    if made is None:
        return None
    expected = made.at(final.trials)
    return Result(
        name=run.name,
        start=start,
        trials=final.trials,
        guessed=len(made.guessed),
        now_s=state.estimated_total_latency_s or math.nan,
        low_s=expected.low_s,
        median_s=expected.median_s,
        high_s=expected.high_s,
        truth_s=final.estimated_total_latency_s,
    )


def windows() -> Iterator[tuple[float, float]]:
    """Yield the parts of a run that the fit looks at: more than the test, for it has fewer runs."""
    for end in (0.6, 0.8, 1.0):
        for start in (0.25, 0.4, 0.5, 0.7):
            if start * 1.2 < end:
                yield start, end


def loss(results: list[Result]) -> float:
    """Return the pinball loss of the three quantiles, on the logarithm of the latency."""
    total = 0.0
    for result in results:
        for level, value in ((0.1, result.low_s), (0.5, result.median_s), (0.9, result.high_s)):
            gap = math.log(result.truth_s / value)
            total += max(level * gap, (level - 1) * gap)
    return total / len(results)


def fit(runs: list[Recorded]) -> None:
    names = list(GRID)
    scores = []
    for values in itertools.product(*GRID.values()):
        for name, value in zip(names, values, strict=True):
            setattr(model, name, value)
        # each run weighs the same, however many of its parts can be compared
        parts = [[judge(run, *window) for window in windows()] for run in runs]
        losses = [loss(kept) for part in parts if (kept := [r for r in part if r is not None])]
        scores.append((statistics.fmean(losses), values))
    for score, values in sorted(scores)[:10]:
        shown = "  ".join(f"{n} {v:g}" for n, v in zip(names, values, strict=True))
        print(f"loss {score:.4f}  {shown}")


def test(runs: list[Recorded]) -> None:
    print("| run | from | trials | guessed tasks | now | forecast (80 %) | came | error | held |")
    print("|---|---|---|---|---|---|---|---|---|")
    by_start: dict[float, list[Result]] = {start: [] for start in FRACTIONS}
    for run in runs:
        for start in FRACTIONS:
            result = judge(run, start)
            if result is None:
                continue
            by_start[start].append(result)
            ms = [f"{v * 1e3:.4g}" for v in (result.now_s, result.median_s, result.low_s)]
            print(
                f"| {run.name} | {start:.0%} | {result.trials} | {result.guessed} | {ms[0]} ms | "
                f"{ms[1]} ms ({ms[2]} to {result.high_s * 1e3:.4g}) | "
                f"{result.truth_s * 1e3:.4g} ms | {result.error:+.1%} | "
                f"{'yes' if result.held else 'no'} |"
            )
    print()
    for start, results in by_start.items():
        if results:
            median = statistics.median(abs(result.error) for result in results)
            held = sum(result.held for result in results)
            print(
                f"From {start:.0%}: median error {median:.1%}, the 80 % interval held the end in "
                f"{held} of {len(results)} runs."
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="*", metavar="RUN")
    parser.add_argument("--fit", action="store_true", help="choose the constants instead")
    options = parser.parse_args()
    known = [str(HERE / name) for name in (DEVELOPMENT if options.fit else TEST)]
    with tempfile.TemporaryDirectory() as folder:
        runs = [open_run(argument, Path(folder)) for argument in options.runs or known]
        (fit if options.fit else test)(runs)


if __name__ == "__main__":
    main()
