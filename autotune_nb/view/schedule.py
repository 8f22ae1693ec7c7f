"""The best schedules of a task, readable: what they decide, and where they differ."""

from __future__ import annotations

import dataclasses
import json
import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence

import pandas as pd

from autotune_nb.errors import InputError
from autotune_nb.run import database, lines
from autotune_nb.run.database import StoredRecord
from autotune_nb.run.directory import RunDirectory
from autotune_nb.run.workload import blocks
from autotune_nb.view import frames
from autotune_nb.view.sanitise import clean, escape
from autotune_nb.view.source import Source, directory_of
from autotune_nb.view.trace import Decision, decisions
from autotune_nb.view.units import milliseconds

_TASK = re.compile(rb"\s*\[\s*(\d{1,9})\b")
_COLUMNS = ("step", "block", "what", "choice")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Schedules:
    """The best schedules of one task, the fastest first.

    Attributes
    ----------
    task, name
        The task's ID and name.
    latencies_s
        What each measured, in seconds.
    records
        The digest of each in the journal.
    decisions
        What each decides.
    """

    task: int
    name: str
    latencies_s: tuple[float, ...]
    records: tuple[str, ...]
    decisions: tuple[tuple[Decision, ...], ...]

    @property
    def best(self) -> pd.DataFrame:
        """What the fastest decides. Columns: step, block, what and choice."""
        rows = [(d.step, d.block, d.what, d.value) for d in self.decisions[0]]
        return pd.DataFrame(rows, columns=list(_COLUMNS)).astype("str")

    @property
    def table(self) -> pd.DataFrame:
        """All of them side by side: step, block, what, and the choice of each; ``-`` for none."""
        columns = [dict(_keyed(found)) for found in self.decisions]
        keys = list(dict.fromkeys(key for found in self.decisions for key, _ in _keyed(found)))
        table = pd.DataFrame([key[:3] for key in keys], columns=list(_COLUMNS[:3]))
        for title, found in zip(self._titles(), columns, strict=True):
            table[title] = [found.get(key, "-") for key in keys]
        return table.astype("str")

    @property
    def differences(self) -> pd.DataFrame:
        """Those rows of `table` in which the schedules do not all agree."""
        table = self.table
        apart = table[self._titles()].nunique(axis=1) > 1
        return table[apart].reset_index(drop=True)

    def _titles(self) -> list[str]:
        return [
            f"{number}: {milliseconds(latency_s)} ms"
            for number, latency_s in enumerate(self.latencies_s, 1)
        ]

    def _heads(self) -> tuple[str, str]:
        count = len(self.decisions)
        head = f"Task {self.task}, {clean(self.name)}: {milliseconds(self.latencies_s[0])} ms"
        return head, f"Where the best {count} differ" if count > 1 else ""

    def to_text(self, columns: int = 100, *, ascii_only: bool = False) -> str:
        """Return the best schedule's table, and that of the differences, as text."""
        head, second = self._heads()
        parts = [head, frames.to_text(self.best, columns, ascii_only=ascii_only)]
        if second:
            parts += ["", second, frames.to_text(self.differences, columns, ascii_only=ascii_only)]
        return "\n".join(parts)

    def __str__(self) -> str:
        return self.to_text()

    def _repr_html_(self) -> str:
        head, second = self._heads()
        text = f"<b>{escape(head)}</b>{frames.to_html(self.best)}"
        return f"{text}<b>{second}</b>{frames.to_html(self.differences)}" if second else text


def schedule(source: Source, task: int, count: int = 3) -> Schedules:
    """Return the best schedules of a task.

    Parameters
    ----------
    source
        A session, a run directory or its path.
    task
        The task's ID.
    count
        How many schedules at most.

    Raises
    ------
    InputError
        If there is no such task, it has no result yet, or `source` is a bare state.
    RunError
        If the schedules are not of a TVM that this version reads.
    """
    directory = directory_of(source)
    if directory is None:
        raise InputError("a state holds no schedules; pass the session or its run directory")
    tasks = directory.manifest.tasks
    if not 0 <= task < len(tasks):
        raise InputError(f"task {task} does not exist; ids go from 0 to {len(tasks) - 1}")
    if count < 1:
        raise InputError(f"count={count}: cannot show so many schedules; pass a number from 1")
    found = best_records(directory, task, count)
    if not found:
        raise InputError(f"task {task} has no tuning record yet; tune on, or choose another task")
    workloads = database.read_workloads(directory.path)
    known = blocks(workloads[task]) if task < len(workloads) else ()
    return Schedules(
        task=task,
        name=tasks[task].name,
        latencies_s=tuple(record.latency_s or 0.0 for record in found),
        records=tuple(record.digest for record in found),
        decisions=tuple(tuple(decisions(record.line, known)) for record in found),
    )


def summary(found: Sequence[Decision]) -> str:
    """Return the main choices of a schedule in one line, without tiles of loops of one step."""
    tiles = [d.value.replace(" ", "") for d in found if d.step == "tile" and "(1)" not in d.what]
    parts = [f"tiles {', '.join(tiles)}"] if tiles else []
    for step in ("bind", "parallel", "vectorise", "unroll", "tensorise"):
        values = dict.fromkeys(d.value for d in found if d.step == step and d.value != "?")
        if values:
            parts.append(f"{step} {', '.join(values)}")
    return "; ".join(parts)


def best_records(directory: RunDirectory, task: int, count: int = 1) -> list[StoredRecord]:
    """Return the best records of a task, the fastest first, each schedule once.

    Of equal ones the first in the file comes first, as when a network is compiled.
    """
    best: list[StoredRecord] = []
    for raw in _record_lines(directory):
        # parsing all of a long run's records would take minutes
        found = _TASK.match(raw)
        if found is None or int(found[1]) != task:
            continue
        record = database.parse_record(raw)
        if record is None or record.latency_s is None:
            continue
        if len(best) == count and record.latency_s >= (best[-1].latency_s or 0.0):
            continue
        same = next((other for other in best if _trace(other) == _trace(record)), None)
        if same is not None:  # measured again, as in merged runs
            if record.latency_s >= (same.latency_s or 0.0):
                continue
            best.remove(same)
        best.append(record)
        best.sort(key=lambda r: r.latency_s or 0.0)
        del best[count:]
    return best


def find_records(directory: RunDirectory, digests: Collection[str]) -> dict[str, str]:
    """Return the lines of these records by their digests, as far as they are there."""
    found = {}
    for raw in _record_lines(directory):
        name = database.digest(raw)
        if name in digests:
            found[name] = raw.decode("utf-8", "replace")
    return found


def _record_lines(directory: RunDirectory) -> Iterator[bytes]:
    path = directory.path / database.RECORD_FILE
    if path.exists():
        with path.open("rb") as file:
            for part, _ in lines.chunks(file):
                yield from part


def _trace(record: StoredRecord) -> str:
    return json.dumps(json.loads(record.line)[1][0])


def _keyed(found: tuple[Decision, ...]) -> list[tuple[tuple[str, str, str, int], str]]:
    """Return the decisions by what they decide, numbered where that occurs again."""
    seen: Counter[tuple[str, str, str]] = Counter()
    rows = []
    for d in found:
        key = (d.step, d.block, d.what)
        rows.append(((*key, seen[key]), d.value))
        seen[key] += 1
    return rows
