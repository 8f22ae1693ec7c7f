"""Runs made elsewhere, opened as read-only runs: MetaSchedule's databases."""

from __future__ import annotations

import gzip
import itertools
import json
import math
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from autotune_nb.errors import InputError, RunError
from autotune_nb.run import database, journal, lines
from autotune_nb.run import events as ev
from autotune_nb.run.database import RECORD_FILE, WORKLOAD_FILE, StoredRecord
from autotune_nb.run.directory import RunDirectory, prepare
from autotune_nb.run.manifest import Manifest, Options
from autotune_nb.run.records import TaskInfo
from autotune_nb.run.workload import describe

_FAILED = "failed; the database it was imported from keeps no reason"


def import_database(
    source: str | Path,
    destination: str | Path,
    *,
    name: str = "",
    weights: Sequence[int] | None = None,
    device_name: str = "",
) -> RunDirectory:
    """Make a read-only run of a database of TVM's MetaSchedule.

    Parameters
    ----------
    source
        The directory with ``database_workload.json`` and ``database_tuning_record.json``; either
        may be compressed by gzip and named ``….json.gz``.
    destination
        The new run directory.
    name
        What was tuned; the name of the source directory if empty.
    weights
        How often each workload occurs in the network, in order of the workloads. The database
        does not hold them; 1 for each if None, and then the estimated total is that of the
        workloads, not of the network.
    device_name
        What measured.

    Returns
    -------
    RunDirectory
        The new run. Its trials have no times, since the database holds none.

    Raises
    ------
    RunError
        If the database is missing or cannot be read, or `destination` is in use.
    InputError
        If the weights do not fit.
    """
    source = Path(source)
    workloads = [raw.decode("utf-8", "replace") for raw in _lines(source / WORKLOAD_FILE)]
    if not workloads:
        raise RunError(f"{source / WORKLOAD_FILE}: holds no workload; nothing to import")
    known = weights is not None
    weights = [1] * len(workloads) if weights is None else list(weights)
    if len(weights) != len(workloads):
        raise InputError(
            f"{source}: has {len(workloads)} workloads, {len(weights)} weights were given; pass "
            "one for each"
        )
    if any(type(weight) is not int or weight < 1 for weight in weights):
        raise InputError(f"{source}: a weight is no positive whole number; count the occurrences")
    tasks = tuple(
        _task(index, line, weight, source)
        for index, (line, weight) in enumerate(zip(workloads, weights, strict=True))
    )
    raw_records = list(_lines(source / RECORD_FILE))
    parsed = [database.parse_record(raw) for raw in raw_records]
    records = [r for r in parsed if r is not None and 0 <= r.task < len(tasks)]
    target = _target(records[0]) if records else {}
    device = {"llvm": "cpu", "cuda": "cuda:0"}.get(kind := str(target.get("kind", "")), kind)
    directory = prepare(destination)
    lines.append(directory / WORKLOAD_FILE, workloads)
    lines.append(directory / RECORD_FILE, [record.line for record in records])
    left_out = len(raw_records) - len(records)
    reason = f"imported from {source.name}" + (f"; {left_out} damaged lines" if left_out else "")
    now = time.time()
    journal.append(directory / journal.FILE, list(_events(records, now, reason)))
    Manifest(
        name=name or source.resolve().name,
        network_fingerprint="",
        network={"source": "imported", "weights_known": known},
        target=target,
        device=device,
        device_name=device_name,
        versions={},
        options=Options(batch_size=_batch(records)),
        tasks=tasks,
        created=now,
        read_only=True,
    ).write(directory)  # last: a directory without a manifest is no run
    return RunDirectory(directory)


def _lines(path: Path) -> Iterator[bytes]:
    packed = path.with_name(path.name + ".gz")
    try:
        if path.exists():
            data = path.read_bytes()
        elif packed.exists():
            data = gzip.decompress(packed.read_bytes())
        else:
            raise RunError(
                f"{path}: no such file; pass the directory of a MetaSchedule database, with "
                f"{WORKLOAD_FILE} and {RECORD_FILE}"
            )
    except (OSError, EOFError) as error:
        raise RunError(f"{path}: cannot be read ({error}); restore it from a copy") from error
    return (line for line in data.splitlines() if line.strip())


def _task(index: int, line: str, weight: int, source: Path) -> TaskInfo:
    try:
        found = describe(line)
    except RunError as error:
        raise RunError(f"{source / WORKLOAD_FILE}, line {index + 1}: {error}") from error
    return TaskInfo(
        id=index,
        name=found.name,
        weight=weight,
        flops=found.flops,
        workload_hash=found.workload_hash,
        operators=found.operators,
        shapes=found.shapes,
        trivial=found.flops == 0,
    )


def _target(record: StoredRecord) -> dict[str, Any]:
    target = json.loads(record.line)[1][2]
    return target if isinstance(target, dict) else {"kind": str(target)}


def _batch(records: Sequence[StoredRecord]) -> int:
    """Return how many trials a round had at most, as the lengths of the runs of one task show."""
    lengths = [len(list(group)) for _, group in itertools.groupby(r.task for r in records)]
    if not lengths:
        return Options().batch_size
    # Two rounds of one task in a row look like one; the most frequent length is that of one, and
    # those a little longer (a round may lose candidates) are too.
    usual = Counter(lengths).most_common(1)[0][0]
    return max(length for length in lengths if length < 1.5 * usual)


def _events(records: Sequence[StoredRecord], now: float, reason: str) -> Iterator[ev.Event]:
    yield ev.BudgetSet(time=now, trials=len(records) or None)
    batch = _batch(records)
    trial = number = 0
    for task, group in itertools.groupby(records, key=lambda record: record.task):
        whole = list(group)
        parts = max(1, math.ceil(len(whole) / batch))
        size = math.ceil(len(whole) / parts)
        for start in range(0, len(whole), size):
            part = whole[start : start + size]
            number += 1
            yield ev.RoundStarted(time=now, round=number, task=task)
            for record in part:
                trial += 1
                failed = record.latency_s is None
                yield ev.TrialDone(
                    time=now,
                    trial=trial,
                    round=number,
                    task=task,
                    candidate=record.digest,
                    latency_s=record.latency_s,
                    latencies_s=() if record.latency_s is None else (record.latency_s,),
                    error_kind="lost" if failed else "",
                    error=_FAILED if failed else "",
                    record=record.digest,
                )
            yield ev.RoundFinished(
                time=now, round=number, task=task, trials=len(part), build_s=0.0, measure_s=0.0
            )
    yield ev.TunerStopped(time=now, outcome="finished", reason=reason)
