"""Several runs side by side: their tasks, their totals, and what it took to get there."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import pandas as pd

from autotune_nb.errors import InputError
from autotune_nb.run.manifest import Manifest
from autotune_nb.run.state import State
from autotune_nb.view import frames
from autotune_nb.view.matching import Row, common_latency, match, reach
from autotune_nb.view.sanitise import escape
from autotune_nb.view.source import Source, directory_of, names_of, state_of


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Runs side by side; printed and shown as two tables.

    Attributes
    ----------
    names
        What the runs are called. Ratios are to the first: below 1 is faster.
    runs
        One row for each run: run, network, target, device, trials, failures, used time (s), total
        (ms), partial, common total (ms) of the tasks for which every run has a result (each with
        its weight in the first run), its ratio, trials to same and time to same (s): what it took
        to reach `reached_s`.
    tasks
        Tidy, one row for each task and run: name, run, ID, weight, latency (ms), speed (GFLOPS),
        trials, state and ratio. Tasks come in order of their share in the first run.
    reached_s
        The estimated total latency, in seconds, for which trials and time are told: unless chosen,
        the lowest that every run without missing results has reached. None if there is no such run.
    """

    names: tuple[str, ...]
    runs: pd.DataFrame
    tasks: pd.DataFrame
    reached_s: float | None

    @property
    def table(self) -> pd.DataFrame:
        """One row for each task: its name, weight, and latency (ms) and ratio in each run."""
        wide = self.tasks.pivot_table(
            index="task", columns="run", values=["latency (ms)", "ratio"], dropna=False, sort=False
        )
        first = self.tasks.groupby("task", sort=False).first()
        out = first[["name", "weight"]].copy()
        for name in self.names:
            out[f"{name} (ms)"] = _column(wide, "latency (ms)", name, out.index)
        for name in self.names[1:]:
            out[f"{name} / {self.names[0]}"] = _column(wide, "ratio", name, out.index)
        return out.reset_index(drop=True)

    def to_text(self, columns: int = 100, *, ascii_only: bool = False) -> str:
        """Return both tables as text."""
        turned = self.runs.set_index("run").T.reset_index(names="")
        parts = [
            frames.to_text(self.table, columns, ascii_only=ascii_only),
            frames.to_text(turned, columns, ascii_only=ascii_only),
        ]
        return "\n\n".join(parts)

    def __str__(self) -> str:
        return self.to_text()

    def _repr_html_(self) -> str:
        note = f"Ratios are to {escape(self.names[0])}: below 1 is faster."
        return f"{frames.to_html(self.runs)}<p>{note}</p>{frames.to_html(self.table)}"

    def to_json(self) -> dict[str, Any]:
        """Return all of it as JSON values, times in seconds."""
        runs = []
        for row in self.runs.to_dict("records"):
            runs.append(
                {
                    "run": row["run"],
                    "network": row["network"],
                    "target": row["target"],
                    "device": row["device"],
                    "trials": int(row["trials"]),
                    "failed_trials": int(row["failures"]),
                    "used_s": row["used time (s)"],
                    "estimated_total_latency_s": _seconds(row["total (ms)"]),
                    "partial": bool(row["partial"]),
                    "common_total_latency_s": _seconds(row["common total (ms)"]),
                    "ratio": _known(row["ratio"]),
                    "trials_to_reach": _known(row["trials to same"]),
                    "seconds_to_reach": _known(row["time to same (s)"]),
                }
            )
        tasks = []
        for _, rows in self.tasks.groupby("task", sort=False):
            first = rows.iloc[0]
            tasks.append(
                {
                    "name": first["name"],
                    "weight": int(first["weight"]),
                    "runs": {
                        row["run"]: {
                            "id": int(row["ID"]),
                            "latency_s": _seconds(row["latency (ms)"]),
                            "trials": int(row["trials"]),
                            "ratio": _known(row["ratio"]),
                        }
                        for row in rows.to_dict("records")
                    },
                }
            )
        return {"reached_s": self.reached_s, "runs": runs, "tasks": tasks}


def compare(
    sources: Sequence[Source],
    names: Sequence[str] | None = None,
    *,
    latency_s: float | None = None,
) -> Comparison:
    """Compare runs of any networks, targets, options or versions.

    Tasks are the same if their workloads have the same hash; where another version hashed them,
    if they are the only ones with their buffers and their work.

    Parameters
    ----------
    sources
        Two or more sessions, run directories, paths or states.
    names
        What they are called; their folders' names if None.
    latency_s
        Estimated total latency for which to tell what it took to reach; see
        `Comparison.reached_s`.

    Raises
    ------
    InputError
        If there is only one run, or the names do not fit.
    """
    if len(sources) < 2:
        raise InputError("one run alone cannot be compared; pass two or more")
    shown = tuple(names_of(sources) if names is None else names)
    if len(shown) != len(sources) or len(set(shown)) != len(shown):
        raise InputError(f"{len(sources)} runs need as many different names; {shown} were given")
    directories = [directory_of(source) for source in sources]
    # one look at each, so that all tables show the same moment
    states = [
        state_of(source) if directory is None else directory.poll()
        for source, directory in zip(sources, directories, strict=True)
    ]
    manifests = [None if directory is None else directory.manifest for directory in directories]
    matched = sorted(match(states), key=_order)
    reached_s = common_latency(states) if latency_s is None else latency_s
    return Comparison(
        names=shown,
        runs=_runs(shown, states, manifests, matched, reached_s),
        tasks=_tasks(shown, matched),
        reached_s=reached_s,
    )


def _order(row: Row) -> tuple[float, ...]:
    parts = [task.weighted_latency_s or 0.0 if task else -1.0 for task in row]
    return tuple(-part for part in parts)


def _tasks(names: Sequence[str], matched: Sequence[Row]) -> pd.DataFrame:
    rows = []
    for number, row in enumerate(matched):
        first = row[0].best_latency_s if row[0] else None
        for name, task in zip(names, row, strict=True):
            if task is None:
                continue
            best = task.best_latency_s
            speed = task.gflops if task.info.flops else None
            rows.append(
                (
                    number,
                    task.info.name,
                    name,
                    task.info.id,
                    task.info.weight,
                    math.nan if best is None else best * 1e3,
                    math.nan if speed is None else speed,
                    task.trials,
                    task.state,
                    math.nan if best is None or first is None else best / first,
                )
            )
    columns = {
        "task": "int64",
        "name": "str",
        "run": "str",
        "ID": "int64",
        "weight": "int64",
        "latency (ms)": "float64",
        "speed (GFLOPS)": "float64",
        "trials": "int64",
        "state": "str",
        "ratio": "float64",
    }
    return pd.DataFrame(rows, columns=list(columns)).astype(columns)


def _runs(
    names: Sequence[str],
    states: Sequence[State],
    manifests: Sequence[Manifest | None],
    matched: Sequence[Row],
    reached_s: float | None,
) -> pd.DataFrame:
    common = [
        row for row in matched if all(t is not None and t.best_latency_s is not None for t in row)
    ]
    totals = [_sum(common, number) for number in range(len(states))]
    table = pd.DataFrame(
        {
            "run": pd.Series(names, dtype="str"),
            "network": pd.Series([m.name if m else "" for m in manifests], dtype="str"),
            "target": pd.Series([_target(m) for m in manifests], dtype="str"),
            "device": pd.Series(
                [(m.device_name or m.device) if m else "" for m in manifests], dtype="str"
            ),
            "trials": pd.Series([s.trials for s in states], dtype="int64"),
            "failures": pd.Series([s.failed_trials for s in states], dtype="int64"),
            "used time (s)": pd.Series([s.used_s for s in states], dtype="float64"),
            "total (ms)": pd.Series(
                [_ms(s.estimated_total_latency_s) for s in states], dtype="float64"
            ),
            "partial": pd.Series([s.partial for s in states], dtype="bool"),
            "common total (ms)": pd.Series([_ms(total) for total in totals], dtype="float64"),
            "ratio": pd.Series(
                [
                    total / totals[0] if total is not None and totals[0] else math.nan
                    for total in totals
                ],
                dtype="float64",
            ),
        }
    )
    points = [None if reached_s is None else reach(state, reached_s) for state in states]
    table["trials to same"] = pd.array([p.trial if p else None for p in points], dtype="Int64")
    # a database that a run was imported from holds no times
    table["time to same (s)"] = pd.Series(
        [
            p.used_s if p and state.used_s else math.nan
            for p, state in zip(points, states, strict=True)
        ],
        dtype="float64",
    )
    return table


def _sum(rows: Sequence[Row], number: int) -> float | None:
    parts = []
    for row in rows:
        first, mine = row[0], row[number]
        if first is not None and mine is not None and mine.best_latency_s is not None:
            parts.append(mine.best_latency_s * first.info.weight)
    return math.fsum(parts) if parts else None


def _target(manifest: Manifest | None) -> str:
    if manifest is None:
        return ""
    target = manifest.target
    detail = target.get("mcpu") or target.get("arch") or ""
    return f"{target.get('kind', '')} {detail}".strip()


def _column(wide: pd.DataFrame, value: str, name: str, index: pd.Index) -> pd.Series:
    if (value, name) in wide.columns:
        return wide[value, name].reindex(index)
    return pd.Series(math.nan, index=index)


def _ms(value: float | None) -> float:
    return math.nan if value is None else value * 1e3


def _known(value: Any) -> Any:
    """Return a number as JSON has it: None for NaN."""
    if value is None or value is pd.NA or math.isnan(value):
        return None
    return value if isinstance(value, float) else int(value)


def _seconds(value: float) -> float | None:
    return None if math.isnan(value) else value / 1e3
