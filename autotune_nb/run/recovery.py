"""Recovery: what a kill, a full disk or a damaged line left behind, put right.

Trials are written to TVM's database first and to the journal second, so after a kill the database
may be one record ahead. Damage from outside can lose either. Both files are mended here and made
to agree; what was taken out lies beside them, and the journal says what was done.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from pathlib import Path

from autotune_nb.errors import RunError
from autotune_nb.run import database, journal, lines
from autotune_nb.run import events as ev
from autotune_nb.run.state import Draft, State


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """The state after mending, and the events that tell of it and are still to be written."""

    state: State
    events: list[ev.Event]


def mend(directory: Path, initial: State) -> Recovery:
    """Mend the journal and the tuning records of a run; call it only while holding its lock.

    Parameters
    ----------
    directory
        The run directory.
    initial
        The state before the journal's first event.
    """
    notes: list[str] = []
    journal_path = directory / journal.FILE
    for path in (journal_path, directory / database.RECORD_FILE):
        if aside := lines.move_torn_tail(path):
            notes.append(f"{path.name}: its last line was cut off; moved to {aside.name}")
    records, bad_records = database.read_records(directory)
    if bad_records:
        aside = lines.set_aside(directory / database.RECORD_FILE, b"\n".join(bad_records) + b"\n")
        database.rewrite_records(directory, records)
        notes.append(
            f"{database.RECORD_FILE}: {len(bad_records)} damaged lines moved to {aside.name}"
        )
    events, bad_lines = _read(journal_path)
    orphans = _without_event(records, events)
    kept, refused, filled = _replay(initial, events, orphans)
    if bad_lines or refused or filled:
        taken_out = bad_lines + [ev.encode(event).encode() for event in refused]
        aside = lines.set_aside(journal_path, b"\n".join(taken_out) + b"\n")
        lines.replace(journal_path, "".join(ev.encode(e) + "\n" for e in kept).encode())
        notes.append(
            f"{journal_path.name}: {len(taken_out)} damaged lines moved to {aside.name}, "
            f"{filled} trials restored or counted as lost"
        )
    draft = Draft(initial)
    for event in kept:
        draft.apply(event)
    state = draft.freeze()
    return Recovery(state=state, events=_agree(state, kept, records, list(orphans), notes))


def _read(path: Path) -> tuple[list[ev.Event], list[bytes]]:
    events, bad = [], []
    for line in lines.read(path)[0]:
        try:
            events.append(ev.decode(line))
        except RunError:
            bad.append(line)
    return events, bad


def _without_event(
    records: list[database.StoredRecord], events: list[ev.Event]
) -> Iterator[database.StoredRecord]:
    known = {event.record for event in events if isinstance(event, ev.TrialDone)}
    return iter([record for record in records if record.digest not in known])


def _replay(
    initial: State, events: list[ev.Event], orphans: Iterator[database.StoredRecord]
) -> tuple[list[ev.Event], list[ev.Event], int]:
    """Return the events that can follow each other, those that cannot, and how many were added.

    Trials missing in the middle are restored from records that have no event; where there is none
    left, the trial is counted as lost, so that nothing spent is forgotten.
    """
    draft = Draft(initial)
    kept: list[ev.Event] = []
    refused: list[ev.Event] = []
    filled = 0
    for event in events:
        if isinstance(event, ev.TrialDone) and event.trial > draft.trials + 1:
            for trial in range(draft.trials + 1, event.trial):
                restored = _restore(next(orphans, None), trial, event)
                draft.apply(restored)
                kept.append(restored)
                filled += 1
        try:
            draft.apply(event)
        except RunError:
            refused.append(event)
        else:
            kept.append(event)
    return kept, refused, filled


def _restore(record: database.StoredRecord | None, trial: int, near: ev.TrialDone) -> ev.TrialDone:
    """Return the event of a trial that only its record, if anything, still knows of."""
    if record is None:
        return ev.TrialDone(
            time=near.time,
            used_s=near.used_s,
            trial=trial,
            round=near.round,
            task=near.task,
            candidate="",
            error_kind="lost",
            error="its journal line was damaged and its record is gone",
        )
    failed = record.latency_s is None
    return ev.TrialDone(
        time=near.time,
        used_s=near.used_s,
        trial=trial,
        round=near.round,
        task=record.task,
        candidate="",
        latency_s=record.latency_s,
        latencies_s=() if record.latency_s is None else (record.latency_s,),
        error_kind="lost" if failed else "",
        error="failed; its error text was lost with its journal line" if failed else "",
        record=record.digest,
    )


def _agree(
    state: State,
    kept: list[ev.Event],
    records: list[database.StoredRecord],
    orphans: list[database.StoredRecord],
    notes: list[str],
) -> list[ev.Event]:
    """Return the events that account for records without a trial, and the other way round."""
    now = time.time()
    trials = [event for event in kept if isinstance(event, ev.TrialDone)]
    present = {record.digest for record in records}
    out: list[ev.Event] = []
    lost = 0
    for task in state.tasks:
        if not task.best_record or task.best_record in present:
            continue
        left = [
            t
            for t in trials
            if t.task == task.info.id and t.latency_s is not None and t.record in present
        ]
        best = min(left, key=lambda t: t.latency_s or 0.0, default=None)
        lost += 1
        out.append(
            ev.RecordLost(
                time=now,
                used_s=state.used_s,
                trial=task.best_trial or 0,
                task=task.info.id,
                best_trial=best.trial if best else None,
                best_latency_s=best.latency_s if best else None,
                best_record=best.record if best else "",
            )
        )
    if lost:
        notes.append(f"{database.RECORD_FILE}: the best schedules of {lost} tasks are gone")
    near = ev.TrialDone(
        time=now, used_s=state.used_s, trial=0, round=max(1, state.rounds), task=0, candidate=""
    )
    known_tasks = range(len(state.tasks))
    orphans = [record for record in orphans if record.task in known_tasks]
    for number, record in enumerate(orphans, state.trials + 1):
        out.append(_restore(record, number, near))
    if orphans:
        notes.append(f"{len(orphans)} measured trials were not in the journal yet; added")
    told: list[ev.Event] = [
        ev.Recovered(time=now, used_s=state.used_s, what=note) for note in notes
    ]
    return told + out
