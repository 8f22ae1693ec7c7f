"""Seeds: records of equal workloads, taken over from other runs when a run is made.

They are advice, not results: the search starts from the best of them, which are measured again
before they count, and its cost model learns from all. They stand in a file of their own, so that
the account of this run's trials stays whole.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from autotune_nb.errors import RunError
from autotune_nb.run import database, lines
from autotune_nb.run.manifest import FILE as MANIFEST_FILE
from autotune_nb.run.manifest import Manifest
from autotune_nb.run.records import TaskInfo

FILE = "seed_tuning_record.json"
_MOST = 96  # of each task: the best, and as many others spread over the rest
# What a schedule depends on; other differences between targets only shift all latencies.
_SAME = ("kind", "arch", "mtriple")


def collect(
    sources: Sequence[str | Path], tasks: Sequence[TaskInfo], target: Mapping[str, Any]
) -> list[str]:
    """Return the record lines of other runs that speak of `tasks`, for `write`.

    Parameters
    ----------
    sources
        Run directories, or directories full of them.
    tasks
        The tasks of the new run; a record counts if its workload has the same hash.
    target
        The target of the new run; runs for other kinds of target are refused.

    Raises
    ------
    RunError
        If a source is no run and holds none, or is a run for another kind of target.
    """
    wanted: dict[str, list[TaskInfo]] = {}
    for task in tasks:
        wanted.setdefault(task.workload_hash, []).append(task)
    found: dict[int, dict[str, database.StoredRecord]] = {task.id: {} for task in tasks}
    for run in _runs(sources, target):
        manifest = Manifest.read(run)
        names = {task.id: task.workload_hash for task in manifest.tasks}
        for record in database.read_records(run)[0]:
            for task in wanted.get(names.get(record.task, ""), ()):
                moved = _moved(record, task.id)
                found[task.id][moved.digest] = moved
    return [record.line for records in found.values() for record in _chosen([*records.values()])]


def write(directory: Path, records: Sequence[str]) -> None:
    """Write the seeds of a run; none at all leaves no file."""
    if records:
        lines.append(directory / FILE, records, sync=True)


def read(directory: Path) -> dict[int, list[database.StoredRecord]]:
    """Return the seeds of a run by task, the best first and failures last."""
    by_task: dict[int, list[database.StoredRecord]] = {}
    for raw in lines.read(directory / FILE)[0]:
        record = database.parse_record(raw)
        if record is not None:
            by_task.setdefault(record.task, []).append(record)
    for records in by_task.values():
        records.sort(key=_rank)
    return by_task


def _runs(sources: Sequence[str | Path], target: Mapping[str, Any]) -> Iterator[Path]:
    for source in map(Path, sources):
        if (source / MANIFEST_FILE).exists():
            theirs = Manifest.read(source).target
            other = [key for key in _SAME if theirs.get(key) != target.get(key)]
            if other:
                raise RunError(
                    f"{source}: was tuned for {theirs.get(other[0])}, this run is for "
                    f"{target.get(other[0])}; seed it from a run for the same kind of target"
                )
            yield source
            continue
        if not source.is_dir():
            raise RunError(f"{source}: no such run; check the path of the seeds")
        inside = [path.parent for path in sorted(source.glob(f"*/{MANIFEST_FILE}"))]
        if not inside:
            raise RunError(f"{source}: is no run and holds none; check the path of the seeds")
        for run in inside:
            theirs = Manifest.read(run).target
            if all(theirs.get(key) == target.get(key) for key in _SAME):
                yield run


def _moved(record: database.StoredRecord, task: int) -> database.StoredRecord:
    if record.task == task:
        return record
    _, rest = json.loads(record.line)
    moved = database.parse_record(json.dumps([task, rest], separators=(",", ":")).encode())
    assert moved is not None  # it was one before
    return moved


def _chosen(records: list[database.StoredRecord]) -> list[database.StoredRecord]:
    ordered = sorted(records, key=_rank)
    best, rest = ordered[: _MOST // 2], ordered[_MOST // 2 :]
    step = max(1, -(-len(rest) // (_MOST // 2)))
    return best + rest[::step]


def _rank(record: database.StoredRecord) -> tuple[bool, float, str]:
    return (record.latency_s is None, record.latency_s or 0.0, record.digest)
