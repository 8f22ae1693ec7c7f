"""Times each function of a compiled network where it runs: inside the network.

The virtual machine tells an instrument before and after each call. Asking the clock there costs
about a microsecond a call; the whole is timed without it as well, in turns, so that it is known
what the calls do not explain.
"""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from autotune_nb.deploy.checks import random_inputs
from autotune_nb.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

    from autotune_nb.deploy.library import Array, Library
    from autotune_nb.run.directory import RunDirectory

_WARM_UPS = 3
_ALONE_S = 2e-3  # over which a function is timed by itself, at the least
_ALONE_RUNS = 3  # and so often


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FunctionTime:
    """The time of one function in one execution of the network.

    Attributes
    ----------
    name
        The function, as `Coverage` names it.
    kind
        ``tuned``, ``fallback``, ``library``, or ``runtime`` for what the virtual machine does
        itself: memory, shapes, views.
    task
        The task whose record it runs; None without one.
    calls
        How often the network calls it.
    duration_s
        Of all its calls, in place.
    alone_s
        Of all its calls with the same arguments, each run over and over, so that all that fits
        stays in the caches; None for ``runtime``.
    estimated_s
        What its task's record promises for all its calls; None without one.
    """

    name: str
    kind: str
    task: int | None
    calls: int
    duration_s: float
    alone_s: float | None
    estimated_s: float | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Where the time of one execution of a network goes.

    Attributes
    ----------
    name
        The network.
    latency_s
        Of one execution, undisturbed by the instrument.
    functions
        The longest first.
    """

    name: str
    latency_s: float
    functions: tuple[FunctionTime, ...]

    @property
    def outside_s(self) -> float:
        """What no function explains: the calls themselves; negative if the instrument disturbed."""
        return self.latency_s - sum(row.duration_s for row in self.functions)

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {
            "name": self.name,
            "latency_s": self.latency_s,
            "outside_s": self.outside_s,
            "functions": [dataclasses.asdict(row) for row in self.functions],
        }

    def table(self) -> pd.DataFrame:
        """Return a row for each function, the longest first.

        Columns: operator, kind, task, calls, time (ms), share (%), alone (ms), estimated (ms), all
        of one execution, and ratio: time over estimated. Missing where there is none.
        """
        import pandas as pd

        whole = sum(row.duration_s for row in self.functions)
        columns = {
            "operator": ("str", [row.name for row in self.functions]),
            "kind": ("str", [row.kind for row in self.functions]),
            "task": ("Int64", [row.task for row in self.functions]),
            "calls": ("int64", [row.calls for row in self.functions]),
            "time (ms)": ("float64", [row.duration_s * 1e3 for row in self.functions]),
            "share (%)": (
                "float64",
                [100 * row.duration_s / whole if whole else 0.0 for row in self.functions],
            ),
            "alone (ms)": ("float64", [_milli(row.alone_s) for row in self.functions]),
            "estimated (ms)": ("float64", [_milli(row.estimated_s) for row in self.functions]),
            "ratio": (
                "float64",
                [
                    row.duration_s / row.estimated_s if row.estimated_s else float("nan")
                    for row in self.functions
                ],
            ),
        }
        return pd.DataFrame(
            {name: pd.Series(values, dtype=dtype) for name, (dtype, values) in columns.items()}
        )

    def __str__(self) -> str:
        head = ("operator", "task", "calls", "ms", "share", "alone", "estimated", "ratio")
        whole = sum(row.duration_s for row in self.functions) or 1.0
        lines = [head]
        for row in self.functions:
            ratio = f"{row.duration_s / row.estimated_s:.2f}" if row.estimated_s else ""
            lines.append(
                (
                    row.name,
                    row.kind if row.task is None else str(row.task),
                    str(row.calls),
                    f"{row.duration_s * 1e3:.3f}",
                    f"{100 * row.duration_s / whole:.1f} %",
                    "" if row.alone_s is None else f"{row.alone_s * 1e3:.3f}",
                    "" if row.estimated_s is None else f"{row.estimated_s * 1e3:.3f}",
                    ratio,
                )
            )
        widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
        text = "\n".join(
            "  ".join(
                cell.ljust(size) if column == 0 else cell.rjust(size)
                for column, (cell, size) in enumerate(zip(line, widths, strict=True))
            )
            for line in lines
        )
        return (
            f"{text}\n{self.name}: {self.latency_s * 1e3:.4g} ms in all, "
            f"{self.outside_s * 1e3:.3g} ms of it outside of these"
        )


def profile(
    library: Library,
    inputs: Mapping[str, Array] | Sequence[Array] | None = None,
    *,
    repeats: int = 15,
) -> Profile:
    """Time each function of a compiled network inside it.

    Each time is the median of `repeats` executions. On a GPU the device is waited for around each
    call, so that a time holds the launch as well, and nothing overlaps.

    Parameters
    ----------
    library
        The network; on a GPU compiled without a CUDA graph, whose parts have no time of their own.
    inputs
        As for `Library.run`; random if None.
    repeats
        How often the network is run for it.

    Raises
    ------
    InputError
        If an input does not fit, or `repeats` is not positive.
    """
    if repeats < 1:
        raise InputError(f"repeats is {repeats}; pass a number from 1")
    if inputs is None:
        inputs = random_inputs(library.signature.inputs, seed=0)
    arguments = library.arguments(inputs)
    machine, device = library.vm, library.device
    run = machine["main"]
    watch = _Watch(device)
    for _ in range(_WARM_UPS):
        run(*arguments)
    undisturbed, runs = [], []
    try:
        for _ in range(repeats):
            machine.set_instrument(_idle)
            start = time.perf_counter()
            run(*arguments)
            device.sync()
            undisturbed.append(time.perf_counter() - start)
            machine.set_instrument(watch)
            runs.append(watch.times_of(run, arguments))
        watch.alone = {}
        watch.times_of(run, arguments)
    finally:
        machine.set_instrument(_idle)
    return Profile(
        name=library.signature.name,
        latency_s=statistics.median(undisturbed),
        functions=_rows(library, runs, watch.alone),
    )


def profile_run(run: RunDirectory, *, repeats: int = 15) -> Profile:
    """Compile the network of a run, profile it, and keep the profile among the run's artifacts.

    On a GPU it is compiled without a CUDA graph, so that each function has a time of its own.
    """
    from autotune_nb.deploy.compile import compile_run
    from autotune_nb.run import profiles

    found = profile(compile_run(run, cuda_graph=False), repeats=repeats)
    if not run.manifest.read_only:
        profiles.store(run, found.to_json())
    return found


def _milli(seconds: float | None) -> float:
    return float("nan") if seconds is None else seconds * 1e3


def _idle(*_: Any) -> int:
    return 0


class _Watch:
    """Takes the time of each call; with `alone` set, also runs each function by itself."""

    def __init__(self, device: Any) -> None:
        self._sync = None if str(device.type) == "cpu" else device.sync
        self._start = 0.0
        self._calls: dict[str, list[float]] = {}
        self.alone: dict[str, list[float]] | None = None

    def times_of(self, run: Any, arguments: Sequence[Any]) -> dict[str, list[float]]:
        """Run the network and return the seconds of each call of each function."""
        self._calls = {}
        run(*arguments)
        return self._calls

    def __call__(self, function: Any, symbol: str, before: bool, _: Any, *arguments: Any) -> int:
        if self._sync is not None:
            self._sync()
        now = time.perf_counter()
        if not before:
            self._calls.setdefault(symbol, []).append(now - self._start)
            if self.alone is not None and not _of_runtime(symbol):
                self.alone.setdefault(symbol, []).append(self._by_itself(function, arguments))
        self._start = time.perf_counter()
        return 0

    def _by_itself(self, function: Any, arguments: Sequence[Any]) -> float:
        """Time a function; it writes into an argument of its own, so running it again is safe."""
        number = 1
        found: list[float] = []
        while len(found) < _ALONE_RUNS:
            start = time.perf_counter()
            for _ in range(number):
                function(*arguments)
            if self._sync is not None:
                self._sync()
            took = time.perf_counter() - start
            if took < _ALONE_S:
                number = max(number + 1, int(number * min(10.0, 1.2 * _ALONE_S / max(took, 1e-9))))
            else:
                found.append(took / number)
        return min(found)


def _of_runtime(symbol: str) -> bool:
    return symbol.startswith("vm.builtin.")


def _rows(
    library: Library,
    runs: Sequence[Mapping[str, Sequence[float]]],
    alone: Mapping[str, Sequence[float]] | None,
) -> tuple[FunctionTime, ...]:
    tuned = {function.name: function for function in library.coverage.tuned}
    fallback = {name for name, _ in library.coverage.fallback}
    rows = []
    for name in dict.fromkeys(name for run in runs for name in run):
        record = tuned.get(name)
        if record is not None:
            kind = "tuned"
        elif name in fallback:
            kind = "fallback"
        else:
            kind = "runtime" if _of_runtime(name) else "library"
        calls = max(len(run.get(name, ())) for run in runs)
        by_itself = (alone or {}).get(name)
        rows.append(
            FunctionTime(
                name=name,
                kind=kind,
                task=None if record is None else record.task,
                calls=calls,
                duration_s=statistics.median(sum(run.get(name, ())) for run in runs),
                alone_s=sum(by_itself) if by_itself else None,
                estimated_s=None if record is None else record.latency_s * calls,
            )
        )
    return tuple(sorted(rows, key=lambda row: (-row.duration_s, row.name)))
