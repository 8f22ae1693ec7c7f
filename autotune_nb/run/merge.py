"""Merging: several runs of one network and target as one, nothing counted twice."""

from __future__ import annotations

import dataclasses
import re
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from autotune_nb.errors import InputError, RunError
from autotune_nb.run import database, derived
from autotune_nb.run import events as ev
from autotune_nb.run.database import StoredRecord
from autotune_nb.run.directory import RunDirectory
from autotune_nb.run.manifest import Manifest
from autotune_nb.run.records import TaskInfo

_TASK = re.compile(r"^\s*\[\s*\d+")
_SHOWN = 4  # tasks that a message names


def merge(sources: Sequence[str | Path], destination: str | Path) -> RunDirectory:
    """Make one run of several that tuned the same network for the same target.

    The runs follow each other in the order in which they were made. Where one was copied from
    another and tuned on, what they have in common counts once; a candidate that two measured
    counts once too, with its first good result. The merged run can be tuned on unless one of the
    runs was read-only.

    Parameters
    ----------
    sources
        Run directories, two or more.
    destination
        The run directory to make.

    Raises
    ------
    InputError
        If fewer than two different runs are given.
    RunError
        If they do not fit together, or `destination` cannot be made.
    """
    runs = [RunDirectory(path) for path in sources]
    if len({run.path.resolve() for run in runs}) != len(runs) or len(runs) < 2:
        raise InputError(
            f"{len(runs)} runs to merge, {len({run.path.resolve() for run in runs})} of them "
            "different; pass two or more different run directories"
        )
    first = runs[0]
    for other in runs[1:]:
        _check(first, other)
    runs.sort(key=lambda run: run.manifest.created)
    accounts = [
        _renumbered(derived.account(run), run.manifest, first.manifest.tasks) for run in runs
    ]
    names = ", ".join(run.path.resolve().name for run in runs)
    manifest = dataclasses.replace(
        first.manifest,
        read_only=any(run.manifest.read_only for run in runs),
        created=time.time(),
        network={**first.manifest.network, "derived": f"merged from {names}"},
    )
    events, kept = _joined(accounts, manifest.created, f"merged from {names}")
    records: dict[str, StoredRecord] = {}
    for found in accounts:
        records.update((n, r) for n, r in found.records.items() if n in kept and n not in records)
    return derived.write(destination, manifest, first, list(records.values()), events)


def _check(first: RunDirectory, other: RunDirectory) -> None:
    """Refuse runs whose trials cannot stand side by side."""
    a, b = first.manifest, other.manifest
    if a.network_fingerprint != b.network_fingerprint:
        raise RunError(
            f"{other.path}: tunes another network ({b.name}) than {first.path} ({a.name}); merge "
            "runs of one network only"
        )
    mine, theirs = _works(a.tasks), _works(b.tasks)
    if mine != theirs:
        strange = sorted({name for name, *_ in mine ^ theirs})
        shown = ", ".join(strange[:_SHOWN]) + (", …" if len(strange) > _SHOWN else "")
        raise RunError(
            f"{other.path}: has other tasks than {first.path} ({shown}); merge runs of one "
            "network, made by one version of TVM"
        )
    if a.target != b.target:
        keys = sorted(k for k in {*a.target, *b.target} if a.target.get(k) != b.target.get(k))
        raise RunError(
            f"{other.path}: was tuned for another target than {first.path} (they differ in "
            f"{', '.join(keys)}); merge runs of one target only"
        )
    if a.device_name and b.device_name and a.device_name != b.device_name:
        raise RunError(
            f"{other.path}: was measured on {b.device_name}, {first.path} on {a.device_name}; "
            "their latencies cannot be compared"
        )


def _works(tasks: Sequence[TaskInfo]) -> set[tuple[str, str, int]]:
    return {(task.name, task.workload_hash, task.weight) for task in tasks}


def _renumbered(
    account: derived.Account, manifest: Manifest, tasks: Sequence[TaskInfo]
) -> derived.Account:
    """Return the account with the task IDs of the merged run."""
    ids = {task.workload_hash: task.id for task in tasks}
    new = {task.id: ids[task.workload_hash] for task in manifest.tasks}
    if all(old == number for old, number in new.items()):
        return account
    names: dict[str, str] = {}
    records: dict[str, StoredRecord] = {}
    for record in account.records.values():
        line = _TASK.sub(f"[{new[record.task]}", record.line, count=1)
        moved = dataclasses.replace(
            record, line=line, digest=database.digest(line), task=new[record.task]
        )
        names[record.digest] = moved.digest
        records[moved.digest] = moved

    def changed(event: ev.Event) -> ev.Event:
        if isinstance(event, ev.TrialDone):
            record = names.get(event.record, event.record)
            return dataclasses.replace(event, task=new[event.task], record=record)
        if isinstance(event, (ev.RoundStarted, ev.RoundSearched, ev.RoundFinished)):
            return dataclasses.replace(event, task=new[event.task])
        return event

    return derived.Account(events=[changed(event) for event in account.events], records=records)


def _joined(
    accounts: Sequence[derived.Account], now: float, reason: str
) -> tuple[list[ev.Event], set[str]]:
    """Return the events of the merged run, and the digests of the records that they name."""
    news: list[Sequence[ev.Event]] = []
    before: list[float] = []  # tuning time of a run that an earlier one has too
    for index, account in enumerate(accounts):
        common = max((_common(account.events, e.events) for e in accounts[:index]), default=0)
        news.append(account.events[common:])
        before.append(max((event.used_s for event in account.events[:common]), default=0.0))
    chosen = _chosen(news)
    total = len(chosen)
    out: list[ev.Event] = [ev.BudgetSet(time=now, trials=total or None)]
    kept: set[str] = set()
    spent_in: dict[int, int] = {}
    trials = rounds = 0
    start = 0.0
    for number, (events, known_s) in enumerate(zip(news, before, strict=True)):
        spent = max((event.used_s for event in events), default=known_s)
        for event in _in_rounds(events, rounds):
            used_s = start + max(0.0, event.used_s - known_s)
            changes: dict[str, Any] = {}
            if isinstance(event, ev.TrialDone):
                if (number, event.trial) not in chosen:
                    continue
                trials += 1
                changes["trial"] = trials
                kept.add(event.record)
                spent_in[event.round] = spent_in.get(event.round, 0) + 1
            elif isinstance(event, ev.RoundStarted):
                rounds = event.round
            elif isinstance(event, ev.RoundFinished):
                changes["trials"] = spent_in.get(event.round, 0)
            out.append(dataclasses.replace(event, used_s=used_s, **changes))
        start += max(0.0, spent - known_s)
    out.append(ev.TunerStopped(time=now, used_s=start, outcome="stopped", reason=reason))
    return out, kept


def _common(events: Sequence[ev.Event], earlier: Sequence[ev.Event]) -> int:
    """Return how many events two runs begin with in common; 0 if no trial is among them."""
    count, copied = 0, False
    for mine, theirs in zip(events, earlier, strict=False):
        if mine != theirs:
            break
        count += 1
        copied = copied or isinstance(mine, ev.TrialDone)
    return count if copied else 0


def _chosen(news: Sequence[Sequence[ev.Event]]) -> set[tuple[int, int]]:
    """Return the trials to keep, as (number of the run, number of the trial)."""
    best: dict[tuple[int, str], tuple[tuple[int, int], bool]] = {}
    chosen: set[tuple[int, int]] = set()
    for number, events in enumerate(news):
        for event in events:
            if not isinstance(event, ev.TrialDone):
                continue
            name = event.candidate or event.record
            if not name:  # nothing is known of it but that it was spent
                chosen.add((number, event.trial))
                continue
            good = event.latency_s is not None
            known = best.get((event.task, name))
            if known is None or (good and not known[1]):
                best[event.task, name] = ((number, event.trial), good)
    return chosen | {where for where, _ in best.values()}


def _in_rounds(events: Sequence[ev.Event], rounds: int) -> Iterator[ev.Event]:
    """Yield what belongs to trials, with rounds counted on from `rounds`.

    A round that was begun before these events, or whose beginning is lost, is begun here.
    """
    number = rounds
    names: dict[tuple[int, int], int] = {}
    for event in events:
        if not isinstance(
            event, (ev.RoundStarted, ev.RoundSearched, ev.TrialDone, ev.RoundFinished)
        ):
            continue
        key = (event.round, event.task)
        if key not in names:
            number += 1
            names[key] = number
            yield ev.RoundStarted(
                time=event.time, used_s=event.used_s, round=number, task=event.task
            )
        if not isinstance(event, ev.RoundStarted):
            yield dataclasses.replace(event, round=names[key])
