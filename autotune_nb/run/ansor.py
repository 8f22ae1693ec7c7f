"""Logs of TVM's former auto-scheduler (Ansor), opened as read-only runs.

A line is ``{"i": [task, state], "r": [costs, error, all cost, time stamp], "v": version}``. A task
begins with its workload key, which is JSON text itself (a name or a hash, then arguments), its
target and its hardware's parameters. Lines that begin with ``#`` are comments.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from autotune_nb.errors import InputError, RunError
from autotune_nb.run import database, derived, journal, lines
from autotune_nb.run import events as ev
from autotune_nb.run.directory import RunDirectory
from autotune_nb.run.manifest import Manifest, Options
from autotune_nb.run.records import TaskInfo
from autotune_nb.run.rounds import usual_size, whole_rounds

FILE = "ansor_log.json"
# By the number that the log gives a failed trial: our kind, and what the number means.
_ERRORS = {
    1: ("build", "its schedule could not be applied"),
    2: ("build", "the host code did not compile"),
    3: ("build", "the device code did not compile"),
    4: ("measure", "it failed on the device"),
    5: ("measure", "its result was wrong"),
    6: ("build_timeout", "building took too long"),
    7: ("measure_timeout", "running took too long"),
}
_UNKNOWN = ("lost", "it failed for an unknown reason")
_PAUSE_S = 3600.0  # between two trials; more than that was no tuning
_HASH_CHARACTERS = 32
_NAME_CHARACTERS = 120


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Record:
    """One line of a log."""

    line: str
    key: str
    target: str
    hardware: tuple[int, ...]
    latencies_s: tuple[float, ...]
    error: int
    cost_s: float
    when: float


def import_log(
    source: str | Path,
    destination: str | Path,
    *,
    name: str = "",
    weights: Sequence[int] | None = None,
    device_name: str = "",
) -> RunDirectory:
    """Make a read-only run of a log that the auto-scheduler of an older TVM wrote.

    Its time of tuning is taken from the time stamps, without pauses of more than an hour. The cost
    of a trial, which the log does not split, is shown as the cost of measuring it. The log says
    nothing of the work of a task in FLOPs.

    Parameters
    ----------
    source
        The log; it may be compressed by gzip.
    destination
        The new run directory.
    name
        What was tuned; the name of the file if empty.
    weights
        How often each workload occurs in the network, in the order in which the log first names
        them; 1 for each if None.
    device_name
        What measured.

    Raises
    ------
    RunError
        If the file is no such log, or `destination` is in use.
    InputError
        If the weights do not fit.
    """
    source = Path(source)
    records, left_out = _read(source)
    targets = {record.target for record in records}
    if len(targets) > 1:
        shown = "; ".join(sorted(targets)[:3])
        raise RunError(
            f"{source}: holds trials for {len(targets)} targets ({shown}); split it by target and "
            "import each part"
        )
    keys = list(dict.fromkeys(record.key for record in records))
    known = weights is not None
    weights = checked_weights(weights, len(keys), source)
    tasks = tuple(map(_task, range(len(keys)), keys, weights))
    target = _target(records[0])
    kind = str(target.get("kind", ""))
    reason = f"imported from {source.name}" + (f"; {left_out} damaged lines" if left_out else "")
    ids = {key: index for index, key in enumerate(keys)}
    batch = usual_size([ids[record.key] for record in records])
    with derived.new_directory(destination) as directory:
        lines.append(directory / FILE, [record.line for record in records])
        journal.append(directory / journal.FILE, list(_events(records, ids, batch, reason)))
        Manifest(
            name=name or source.name.split(".")[0],
            network_fingerprint="",
            network={"source": "imported", "weights_known": known},
            target=target,
            device={"llvm": "cpu", "cuda": "cuda:0"}.get(kind, kind),
            device_name=device_name,
            versions={},
            options=Options(batch_size=batch),
            tasks=tasks,
            created=time.time(),
            read_only=True,
        ).write(directory)
        return RunDirectory(directory)


def checked_weights(weights: Sequence[int] | None, count: int, source: Path) -> list[int]:
    """Return the weights of so many workloads; 1 for each if none are given.

    Raises
    ------
    InputError
        If there are more or fewer, or one is no whole number from 1.
    """
    found = [1] * count if weights is None else list(weights)
    if len(found) != count:
        raise InputError(
            f"{source}: has {count} workloads, {len(found)} weights were given; pass one for each"
        )
    if any(type(weight) is not int or weight < 1 for weight in found):
        raise InputError(f"{source}: a weight is no positive whole number; count the occurrences")
    return found


def _read(source: Path) -> tuple[list[_Record], int]:
    """Return the trials of a log, and how many lines are none."""
    data = derived.unpacked(source)
    found: list[_Record] = []
    bad = 0
    for raw in data.splitlines():
        if raw.strip() and not raw.lstrip().startswith(b"#"):
            record = _parse(raw)
            if record is None:
                bad += 1
            else:
                found.append(record)
    if not found:
        other = b'"config"' in data and b'"input"' in data
        what = "it is one of AutoTVM, which is older still" if other else "no line can be read"
        raise RunError(
            f"{source}: is no log of the auto-scheduler ({what}); pass one whose lines begin with "
            '{"i": [["[…'
        )
    return found, bad


def _parse(raw: bytes) -> _Record | None:
    try:
        line = raw.decode().strip()
        value = json.loads(line)
        key, target, *more = value["i"][0]
        costs, error, all_cost, stamp = value["r"]
        if type(key) is not str or type(target) is not str or type(error) is not int:
            return None
        hardware = more[0] if more and isinstance(more[0], list) else []
        record = _Record(
            line=line,
            key=key,
            target=target,
            hardware=tuple(int(number) for number in hardware),
            latencies_s=tuple(float(c) for c in costs) if error == 0 else (),
            error=error,
            cost_s=float(all_cost),
            when=float(stamp),
        )
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError):
        return None
    except OverflowError:
        return None
    sound = all(0 < s < math.inf for s in record.latencies_s) and math.isfinite(record.when)
    sound = sound and 0 <= record.cost_s < math.inf and (error != 0 or bool(record.latencies_s))
    return record if sound else None


def _task(index: int, key: str, weight: int) -> TaskInfo:
    try:
        head, *arguments = json.loads(key)
        # the hash of a subgraph, or the name under which a person registered a function
        hashed = len(head) == _HASH_CHARACTERS and set(head) <= set("0123456789abcdef")
        name = f"subgraph_{head[:8]}" if hashed else str(head)
        shown = json.dumps(arguments, separators=(",", ":"))[1:-1]
    except (ValueError, TypeError, RecursionError):
        name, shown = key, ""
    text = f"{name}({shown})" if shown else name
    digest = hashlib.blake2b(key.encode(), digest_size=8).digest()
    return TaskInfo(
        id=index,
        name=text if len(text) <= _NAME_CHARACTERS else text[: _NAME_CHARACTERS - 1] + "…",
        weight=weight,
        flops=0.0,
        workload_hash=str(int.from_bytes(digest, "big")),
    )


def _target(record: _Record) -> dict[str, Any]:
    """Return the target as today's TVM writes one."""
    if record.target.lstrip().startswith("{"):
        try:
            value = json.loads(record.target)
        except (ValueError, RecursionError):
            value = None
        if isinstance(value, dict):
            return value
    kind, *options = record.target.split()
    target: dict[str, Any] = {"kind": kind}
    for option in options:
        name, _, text = option.lstrip("-").partition("=")
        target[name] = text.split(",") if name in ("keys", "libs") else _number(text)
    if record.hardware and record.hardware[0] > 0:
        target.setdefault("num-cores", record.hardware[0])
    return target


def _number(text: str) -> int | str:
    return int(text) if text.lstrip("-").isdigit() else text


def _events(
    records: Sequence[_Record], ids: Mapping[str, int], batch: int, reason: str
) -> Iterator[ev.Event]:
    used: list[float] = []
    previous = records[0].when - min(records[0].cost_s, _PAUSE_S)
    for record in records:
        passed = record.when - previous
        used.append((used[-1] if used else 0.0) + (passed if 0 < passed <= _PAUSE_S else 0.0))
        previous = record.when
    yield ev.BudgetSet(time=records[0].when, trials=len(records))
    tasks = [ids[record.key] for record in records]
    for number, (start, end) in enumerate(whole_rounds(tasks, batch), 1):
        task = tasks[start]
        first, last = records[start], records[end - 1]
        began = used[start - 1] if start else 0.0
        yield ev.RoundStarted(time=first.when, used_s=began, round=number, task=task)
        for index in range(start, end):
            yield _trial(records[index], index + 1, number, task, used[index])
        yield ev.RoundFinished(
            time=last.when,
            used_s=used[end - 1],
            round=number,
            task=task,
            trials=end - start,
            build_s=0.0,
            measure_s=math.fsum(record.cost_s for record in records[start:end]),
        )
    yield ev.TunerStopped(time=records[-1].when, used_s=used[-1], outcome="finished", reason=reason)


def _trial(record: _Record, trial: int, number: int, task: int, used_s: float) -> ev.TrialDone:
    good = record.error == 0
    kind, text = ("", "") if good else _ERRORS.get(record.error, _UNKNOWN)
    times = record.latencies_s
    return ev.TrialDone(
        time=record.when,
        used_s=used_s,
        trial=trial,
        round=number,
        task=task,
        candidate=database.digest(record.line),
        latency_s=math.fsum(times) / len(times) if good else None,
        latencies_s=times,
        error_kind=kind,
        error=f"error {record.error} of the auto-scheduler: {text}" if not good else "",
        measure_s=record.cost_s,
    )
