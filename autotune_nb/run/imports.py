"""Runs made elsewhere: MetaSchedule's databases, logs of the auto-scheduler, archives of runs."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from autotune_nb.errors import InputError, RunError
from autotune_nb.run import ansor, archive, database, derived, journal, lines
from autotune_nb.run import events as ev
from autotune_nb.run.database import RECORD_FILE, WORKLOAD_FILE, StoredRecord
from autotune_nb.run.directory import RunDirectory
from autotune_nb.run.manifest import FILE as MANIFEST_FILE
from autotune_nb.run.manifest import Manifest, Options
from autotune_nb.run.records import TaskInfo
from autotune_nb.run.rounds import usual_size, whole_rounds
from autotune_nb.run.workload import describe

_FAILED = "failed; the database it was imported from keeps no reason"


def import_run(
    source: str | Path,
    destination: str | Path,
    *,
    name: str = "",
    weights: Sequence[int] | None = None,
    device_name: str = "",
) -> RunDirectory:
    """Make a run of what was tuned elsewhere.

    Parameters
    ----------
    source
        The directory of a MetaSchedule database, a log of the auto-scheduler, or an archive that
        ``autotune-nb export`` wrote. The first two become read-only runs.
    destination
        The run directory to make.
    name
        What was tuned; the name of the source if empty. An archive says this and the following
        itself.
    weights
        How often each workload occurs in the network, in order of the workloads (of a log: in the
        order in which it first names them). Neither a database nor a log holds them; 1 for each if
        None, and then the estimated total is that of the workloads, not of the network.
    device_name
        What measured.

    Returns
    -------
    RunDirectory
        The new run. One of a database has no times, since a database holds none.

    Raises
    ------
    RunError
        If `source` is none of these, or `destination` is in use.
    InputError
        If something was given that does not fit.
    """
    source = Path(source)
    if not source.exists():
        raise RunError(f"{source}: no such file or directory; check the path")
    if source.is_file() and archive.is_archive(source):
        if name or weights is not None or device_name:
            raise InputError(f"{source}: is an archive of a run, which says its name and weights")
        return archive.import_archive(source, destination)
    given: dict[str, Any] = {"name": name, "weights": weights, "device_name": device_name}
    if source.is_file():
        return ansor.import_log(source, destination, **given)
    if (source / MANIFEST_FILE).exists():
        raise RunError(f"{source}: is a run already; open it as it is")
    return import_database(source, destination, **given)


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
    destination, name, weights, device_name
        As for `import_run`, which this does the part of a database of, with the same errors.
    """
    source = Path(source)
    workloads = [raw.decode("utf-8", "replace") for raw in _lines(source / WORKLOAD_FILE)]
    if not workloads:
        raise RunError(f"{source / WORKLOAD_FILE}: holds no workload; nothing to import")
    known = weights is not None
    weights = ansor.checked_weights(weights, len(workloads), source)
    tasks = tuple(
        _task(index, line, weight, source)
        for index, (line, weight) in enumerate(zip(workloads, weights, strict=True))
    )
    raw_records = list(_lines(source / RECORD_FILE))
    parsed = [database.parse_record(raw) for raw in raw_records]
    records = [r for r in parsed if r is not None and 0 <= r.task < len(tasks)]
    target = _target(records[0]) if records else {}
    device = {"llvm": "cpu", "cuda": "cuda:0"}.get(kind := str(target.get("kind", "")), kind)
    left_out = len(raw_records) - len(records)
    reason = f"imported from {source.name}" + (f"; {left_out} damaged lines" if left_out else "")
    now = time.time()
    with derived.new_directory(destination) as directory:
        lines.append(directory / WORKLOAD_FILE, workloads)
        lines.append(directory / RECORD_FILE, [record.line for record in records])
        journal.append(directory / journal.FILE, list(_events(records, now, reason)))
        Manifest(
            name=name or source.resolve().name,
            network_fingerprint="",
            network={"source": "imported", "weights_known": known},
            target=target,
            device=device,
            device_name=device_name,
            versions={},
            options=Options(batch_size=usual_size([record.task for record in records])),
            tasks=tasks,
            created=now,
            read_only=True,
        ).write(directory)  # last: a directory without a manifest is no run
        return RunDirectory(directory)


def _lines(path: Path) -> Iterator[bytes]:
    packed = path.with_name(path.name + ".gz")
    found = next((p for p in (path, packed) if p.exists()), None)
    if found is None:
        raise RunError(
            f"{path}: no such file; pass the directory of a MetaSchedule database, with "
            f"{WORKLOAD_FILE} and {RECORD_FILE}"
        )
    data = derived.unpacked(found)
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


def _events(records: Sequence[StoredRecord], now: float, reason: str) -> Iterator[ev.Event]:
    yield ev.BudgetSet(time=now, trials=len(records) or None)
    trial = 0
    tasks = [record.task for record in records]
    for number, (start, end) in enumerate(whole_rounds(tasks, usual_size(tasks)), 1):
        task = tasks[start]
        yield ev.RoundStarted(time=now, round=number, task=task)
        for record in records[start:end]:
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
            time=now, round=number, task=task, trials=end - start, build_s=0.0, measure_s=0.0
        )
    yield ev.TunerStopped(time=now, outcome="finished", reason=reason)
