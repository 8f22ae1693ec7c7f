"""TVM's JSON database as text: MetaSchedule's two files, written and checked without TVM.

``database_workload.json`` holds one ``[hash, base64 of a module]`` a line, line i for task i.
``database_tuning_record.json`` holds one ``[workload, [trace, run_secs, target, args_info]]`` a
line; a trial that failed has `FAILED_S` as its only time, which TVM does not take for a result.
Plain TVM opens both with ``meta_schedule.database.JSONDatabase``. Writing them here, not through
that class, lets one write hold a whole line, and lets a damaged file be mended and still be read:
TVM refuses a database with one bad line.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from autotune_nb.run import lines

WORKLOAD_FILE = "database_workload.json"
RECORD_FILE = "database_tuning_record.json"
FAILED_S = 1e10


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StoredRecord:
    """One line of the tuning records, with its trace left as text.

    `latency_s` is the mean of its times, or None for a failed trial.
    """

    digest: str
    task: int
    latency_s: float | None
    line: str


def digest(line: str | bytes) -> str:
    """Return the name by which the journal refers to a record."""
    data = line.encode() if isinstance(line, str) else line
    return hashlib.blake2b(data, digest_size=8).hexdigest()


def record_line(task: int, trace: Any, latencies_s: Sequence[float], target: Any, args: Any) -> str:
    """Return the line of a record; no `latencies_s` means that the trial failed.

    `trace`, `target` and `args` are the JSON values that TVM's ``TuningRecord.as_json`` gives.
    """
    times = list(latencies_s) or [FAILED_S]
    return json.dumps([task, [trace, times, target, args]], separators=(",", ":"))


def append_workloads(directory: Path, workloads: Sequence[Any]) -> None:
    """Write the workloads of a new run, in order of their tasks."""
    text = [json.dumps(workload, separators=(",", ":")) for workload in workloads]
    lines.append(directory / WORKLOAD_FILE, text, sync=True)


def append_record(directory: Path, line: str) -> None:
    """Append one record."""
    lines.append(directory / RECORD_FILE, [line])


def sync_records(directory: Path) -> None:
    """Wait until the disk has the records."""
    try:
        descriptor = os.open(directory / RECORD_FILE, os.O_WRONLY)
    except FileNotFoundError:
        return
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_workloads(directory: Path) -> list[str]:
    """Return the workload lines, in order of their tasks."""
    return [line.decode() for line in lines.read(directory / WORKLOAD_FILE)[0]]


def workload_hashes(directory: Path) -> list[str]:
    """Return TVM's structural hash of each workload; '' where a line is none."""
    hashes = []
    for line in lines.read(directory / WORKLOAD_FILE)[0]:
        try:
            name, _ = json.loads(line)
        except (ValueError, TypeError, RecursionError):
            name = ""
        hashes.append(str(name))
    return hashes


def read_records(directory: Path) -> tuple[list[StoredRecord], list[bytes]]:
    """Return the records, and the lines that are none."""
    records, bad = [], []
    for raw in lines.read(directory / RECORD_FILE)[0]:
        record = parse_record(raw)
        if record is None:
            bad.append(raw)
        else:
            records.append(record)
    return records, bad


def parse_record(raw: bytes) -> StoredRecord | None:
    """Return the record of a line, or None if it is none."""
    try:
        line = raw.decode()
        task, (_, times, _, _) = json.loads(line)
        if type(task) is not int or type(times) is not list:
            return None
        good = [math.fsum([t]) for t in times if t != FAILED_S]  # refuses what is no number
    except (ValueError, TypeError, OverflowError, RecursionError):
        return None
    if not all(0 < t < math.inf for t in good):
        return None
    latency = math.fsum(good) / len(good) if good else None
    return StoredRecord(digest=digest(line), task=task, latency_s=latency, line=line)
