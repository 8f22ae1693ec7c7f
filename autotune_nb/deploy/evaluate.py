"""Checks a compiled network against references, then measures it beside baselines."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from autotune_nb.deploy.checks import Array, deviation, random_inputs, tolerance_of
from autotune_nb.deploy.contest import OPEN_TIMEOUT_S, RUN_TIMEOUT_S, ContestantProcess
from autotune_nb.deploy.library import Coverage, Library
from autotune_nb.errors import EvaluationError, InputError, near_matches
from autotune_nb.network import store
from autotune_nb.network.network import Network
from autotune_nb.run.directory import RunDirectory
from autotune_nb.tuning.cores import available_cores

BASELINES = ("untuned", "fallback", "onnxruntime")
REPEATS = 3
MIN_REPEAT_MS = 500
_SLOW_S = 1.0
_SLOW_TOTAL_S = 10.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """Mean, median and standard deviation, in seconds, of the repeats of a measurement."""

    mean: float
    median: float
    std: float

    @classmethod
    def of(cls, samples: Sequence[float]) -> Latency:
        """Return the statistics of some samples."""
        return cls(
            mean=statistics.fmean(samples),
            median=statistics.median(samples),
            std=statistics.stdev(samples) if len(samples) > 1 else 0.0,
        )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """What an evaluation found.

    Attributes
    ----------
    correct
        Whether the outputs agree with every reference.
    max_error
        The largest deviation from a reference, over that reference's largest output; infinite
        where an output is not a number.
    tolerance
        The largest `max_error` that counts as correct.
    latency
        Of the compiled network; None if it is not correct.
    baselines
        Latency of each baseline that could be measured, by name.
    coverage
        Which function ran what.
    estimated_total_latency_s
        The sum over its tuned functions.
    references
        What it was compared with: name and the deviation.
    problems
        What could not be compared or measured, and why.
    """

    correct: bool
    max_error: float
    tolerance: float
    latency: Latency | None
    baselines: Mapping[str, Latency]
    coverage: Coverage
    estimated_total_latency_s: float | None
    references: Mapping[str, float]
    problems: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values; an infinite error is null."""
        return {
            "correct": self.correct,
            "max_error": self.max_error if math.isfinite(self.max_error) else None,
            "tolerance": self.tolerance,
            "latency_s": None if self.latency is None else dataclasses.asdict(self.latency),
            "baselines": {
                name: dataclasses.asdict(latency) for name, latency in self.baselines.items()
            },
            "coverage": self.coverage.to_json(),
            "estimated_total_latency_s": self.estimated_total_latency_s,
        }

    def __str__(self) -> str:
        verdict = "correct" if self.correct else "NOT CORRECT"
        text = f"{verdict} (largest error {self.max_error:.1e}, allowed {self.tolerance:.0e})"
        if self.latency is None:
            return text
        text += f"; {self.latency.mean * 1e3:.4g} ms"
        for name, latency in self.baselines.items():
            ratio = latency.mean / self.latency.mean
            text += f"; {name} {latency.mean * 1e3:.4g} ms ({ratio:.3g} times as long)"
        return text


def evaluate_run(
    run: RunDirectory, library: Library, baselines: Sequence[str] = ("untuned", "onnxruntime")
) -> Evaluation:
    """Check and measure a library compiled from a run; see `evaluate`."""
    return evaluate(store.load(run.network), library, baselines, folder=run.network)


def evaluate(
    network: Network,
    library: Library,
    baselines: Sequence[str] = ("untuned", "onnxruntime"),
    *,
    folder: Path | None = None,
    seed: int = 0,
    repeats: int = REPEATS,
    min_repeat_ms: int = MIN_REPEAT_MS,
) -> Evaluation:
    """Check a compiled network against references, then measure it beside baselines.

    Every contestant runs in a process of its own, on as many cores as the target has, and all are
    measured in turn, repeat by repeat, so that what disturbs the machine disturbs all of them.
    The references are TVM without any schedule, and ONNX Runtime where the network has a model
    for it; inputs are random.

    Parameters
    ----------
    network
        What `library` was compiled from.
    library
        What to evaluate.
    baselines
        Any of ``untuned``, ``fallback`` and ``onnxruntime``, to be measured too.
    folder
        Where the network is stored already, if it is.
    seed
        Of the inputs.
    repeats, min_repeat_ms
        Each contestant is timed `repeats` times, each over at least `min_repeat_ms` milliseconds;
        one that takes seconds is run only a few times.

    Raises
    ------
    InputError
        If a baseline does not exist, or the library is another network's.
    EvaluationError
        If there is nothing to compare with.
    """
    for name in baselines:
        if name not in BASELINES:
            raise InputError(
                f"baseline {name}: does not exist{near_matches(name, BASELINES)}; "
                f"choose from {', '.join(BASELINES)}"
            )
    if library.signature.network_fingerprint != network.fingerprint():
        raise InputError(
            f"{library.signature.name}: was not compiled from the network {network.name} it is to "
            "be compared with; compile it again"
        )
    with tempfile.TemporaryDirectory(prefix="autotune-nb-") as scratch:
        if folder is None:
            folder = Path(scratch) / "network"
            store.save(network, folder)
        with contextlib.ExitStack() as stack:
            contest = _Contest(network, library, folder, Path(scratch), stack)
            return contest.hold(tuple(dict.fromkeys(baselines)), seed, repeats, min_repeat_ms)


class _Contest:
    def __init__(
        self,
        network: Network,
        library: Library,
        folder: Path,
        scratch: Path,
        stack: contextlib.ExitStack,
    ) -> None:
        self.network = network
        self.library = library
        self.folder = folder
        self.scratch = scratch
        self.stack = stack
        self.problems: list[str] = []
        self.processes: dict[str, ContestantProcess] = {}
        target = library.signature.target
        self.on_cpu = target.get("kind") == "llvm"
        cores = available_cores()
        self.threads = int(target.get("num-cores", cores)) if self.on_cpu else cores

    def hold(
        self, baselines: tuple[str, ...], seed: int, repeats: int, min_repeat_ms: int
    ) -> Evaluation:
        """Run everything, first for the outputs and then for the time."""
        tolerance = tolerance_of(self.network)
        inputs = self.scratch / "inputs.npz"
        arrays = random_inputs(self.network.inputs, seed)
        np.savez(inputs, **{f"{n:04d}": a for n, a in enumerate(arrays)})  # type: ignore[arg-type]
        references = ["untuned"] + (["onnxruntime"] if self.network.reference is not None else [])
        outputs: dict[str, list[Array]] = {}
        names = ("tuned", *dict.fromkeys((*references, *baselines)))
        for name in names:  # all at first: they import TVM side by side
            self.processes[name] = ContestantProcess(name, self.threads)
            self.stack.callback(self.processes[name].close)
        for name in names:
            found = self._outputs(name, inputs)
            if found is not None:
                outputs[name] = found
        errors: dict[str, float] = {}
        for name in references:
            if name in outputs:
                errors[name] = deviation(outputs.get("tuned"), outputs[name])
        if not errors:
            raise EvaluationError(
                f"{self.network.name}: has nothing to be compared with "
                f"({'; '.join(self.problems)}); its correctness is not known"
            )
        worst = max(errors.values())
        correct = worst <= tolerance
        times: dict[str, list[float]] = {}
        if correct:
            contestants = ["tuned", *(name for name in baselines if name in outputs)]
            times = self._times(contestants, repeats, min_repeat_ms)
        tuned = times.pop("tuned", [])
        return Evaluation(
            correct=correct,
            max_error=worst,
            tolerance=tolerance,
            latency=Latency.of(tuned) if tuned else None,
            baselines={name: Latency.of(samples) for name, samples in times.items() if samples},
            coverage=self.library.coverage,
            estimated_total_latency_s=self.library.estimated_total_latency_s,
            references=errors,
            problems=tuple(self.problems),
        )

    def _outputs(self, name: str, inputs: Path) -> list[Array] | None:
        """Open a contestant and return what it computes; None, and a problem, if it fails."""
        if name == "onnxruntime" and self.network.reference is None:
            self.problems.append("onnxruntime: the network has no ONNX model; left out")
            return None
        process = self.processes[name]
        stored = self.scratch / f"{name}.npz"
        request = {
            "kind": "library" if name == "tuned" else name,
            "library": str(self._exported()) if name == "tuned" else "",
            "network": str(self.folder),
            "target": self.library.signature.target,
            "device": self.library.device_name,
            "threads": self.threads,
        }
        try:
            process.ask(OPEN_TIMEOUT_S, do="open", **request)
            process.ask(RUN_TIMEOUT_S, do="run", inputs=str(inputs), outputs=str(stored))
        except EvaluationError as error:
            self.problems.append(str(error))
            return None
        with np.load(stored, allow_pickle=False) as arrays:
            return [arrays[key] for key in sorted(arrays.files)]

    def _exported(self) -> Path:
        return self.library.path or self.library.export(self.scratch / "tuned.so")

    def _times(
        self, names: Sequence[str], repeats: int, min_repeat_ms: int
    ) -> dict[str, list[float]]:
        """Measure the contestants in turn, repeat by repeat."""
        times: dict[str, list[float]] = {name: [] for name in names}
        if "onnxruntime" in times and not self.on_cpu:
            del times["onnxruntime"]
            self.problems.append("onnxruntime: runs on the CPU here, so its speed is left out")
        for turn in range(repeats):
            order = list(times)
            # Another one begins each time: who comes after whom matters too.
            start = turn % len(order)
            for name in order[start:] + order[:start]:
                samples = times[name]
                if samples and samples[0] > _SLOW_S and sum(samples) > _SLOW_TOTAL_S:
                    continue
                try:
                    answer = self.processes[name].ask(
                        RUN_TIMEOUT_S, do="measure", min_repeat_ms=min_repeat_ms
                    )
                except EvaluationError as error:
                    self.problems.append(str(error))
                    del times[name]
                    continue
                samples.append(float(answer["latency_s"]))
            if not times:
                break
        return times
