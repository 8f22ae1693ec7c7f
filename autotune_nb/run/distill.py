"""Distilling: a run reduced to the best records of each task."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from autotune_nb.errors import InputError
from autotune_nb.run import derived
from autotune_nb.run import events as ev
from autotune_nb.run.database import StoredRecord
from autotune_nb.run.directory import RunDirectory


def distill(source: str | Path, destination: str | Path, k: int = 1) -> RunDirectory:
    """Make a read-only run that holds the best `k` results of each task of another.

    It compiles to the same, and is small. It cannot be tuned on, since it no longer accounts for
    every trial.

    Parameters
    ----------
    source
        A run directory.
    destination
        The run directory to make.
    k
        How many records of each task to keep. If one that is kept can not be applied any more,
        compiling takes the next best, so more than one is safer if TVM is going to change.

    Raises
    ------
    InputError
        If `k` is no whole number from 1.
    RunError
        If `source` is no run, or `destination` cannot be made.
    """
    if isinstance(k, bool) or k != int(k) or k < 1:
        raise InputError(f"k={k!r}: cannot keep so many records of a task; pass a number from 1")
    run = RunDirectory(source)
    account = derived.account(run)
    trials = account.trials
    by_record = {trial.record: trial for trial in trials if trial.record}
    kept = _best(list(account.records.values()), int(k))
    numbers = {by_record[record.digest].trial for record in kept}
    if not account.records:  # the log of another tuner: results without records
        numbers = _best_trials(trials, int(k))
    reason = (
        f"distilled from {run.path.resolve().name}: the best {k} of each task, {len(numbers)} of "
        f"{len(trials)} trials"
    )
    manifest = dataclasses.replace(
        run.manifest,
        read_only=True,
        created=time.time(),
        network={**run.manifest.network, "derived": reason},
    )
    events = list(_events(account.events, numbers, manifest.created, reason))
    return derived.write(destination, manifest, run, kept, events)


def _best(records: Sequence[StoredRecord], k: int) -> list[StoredRecord]:
    """Return the best records of each task in their order in the file.

    Of equal ones the first is the better, as it is when a network is compiled.
    """
    by_task: dict[int, list[StoredRecord]] = {}
    for record in records:
        if record.latency_s is not None:
            by_task.setdefault(record.task, []).append(record)
    chosen: set[str] = set()
    for found in by_task.values():
        found.sort(key=lambda record: record.latency_s or 0.0)
        chosen.update(record.digest for record in found[:k])
    return [record for record in records if record.digest in chosen]


def _best_trials(trials: Sequence[ev.TrialDone], k: int) -> set[int]:
    by_task: dict[int, list[ev.TrialDone]] = {}
    for trial in trials:
        if trial.latency_s is not None:
            by_task.setdefault(trial.task, []).append(trial)
    chosen: set[int] = set()
    for found in by_task.values():
        found.sort(key=lambda trial: trial.latency_s or 0.0)
        chosen.update(trial.trial for trial in found[:k])
    return chosen


def _events(
    events: Sequence[ev.Event], numbers: set[int], now: float, reason: str
) -> Iterator[ev.Event]:
    """Yield the chosen trials, numbered anew, in rounds of those that were measured together."""
    kept = [e for e in events if isinstance(e, ev.TrialDone) and e.trial in numbers]
    yield ev.BudgetSet(time=kept[0].time if kept else now, trials=len(kept) or None)
    last: Mapping[tuple[int, int], int] = {(t.round, t.task): t.trial for t in kept}
    rounds: dict[tuple[int, int], int] = {}
    members: dict[int, list[ev.TrialDone]] = {}
    for number, trial in enumerate(kept, 1):
        key = (trial.round, trial.task)
        if key not in rounds:
            rounds[key] = len(rounds) + 1
            yield ev.RoundStarted(
                time=trial.time, used_s=trial.used_s, round=rounds[key], task=trial.task
            )
        name = rounds[key]
        members.setdefault(name, []).append(trial)
        yield dataclasses.replace(trial, trial=number, round=name)
        if last[key] == trial.trial:
            yield ev.RoundFinished(
                time=trial.time,
                used_s=trial.used_s,
                round=name,
                task=trial.task,
                trials=len(members[name]),
                build_s=sum(t.build_s for t in members[name]),
                measure_s=sum(t.measure_s for t in members[name]),
            )
    end = max((event.used_s for event in events), default=0.0)
    yield ev.TunerStopped(time=now, used_s=end, outcome="finished", reason=reason)
