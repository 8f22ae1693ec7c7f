"""Recovery: what a kill, a full disk or a damaged line left behind, put right.

Trials are written to TVM's database first and to the journal second, so after a kill the database
may be one record ahead. Damage from outside can lose either. Both files are mended here and made
to agree; what was taken out lies beside them, and the journal says what was done.
"""

from __future__ import annotations

import dataclasses
import re
import time
from collections.abc import Iterator, Sequence, Set
from pathlib import Path

from autotune_nb.errors import RunError
from autotune_nb.run import checkpoint, database, journal, lines
from autotune_nb.run import events as ev
from autotune_nb.run.records import State, TaskState
from autotune_nb.run.salvage import restored, salvage
from autotune_nb.run.state import Draft

_RECORD = re.compile(rb'"record":"([0-9a-f]+)"')


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
    path = directory / journal.FILE
    notes = [
        lines.mend_tail(path, _is_event),
        lines.mend_tail(
            directory / database.RECORD_FILE, lambda line: database.parse_record(line) is not None
        ),
    ]
    try:
        state, known = _replay(path, initial)
        present, spare = _mend_records(directory, len(initial.tasks), known, notes)
    except RunError:
        present, unknown = _mend_records(directory, len(initial.tasks), frozenset(), notes)
        state, spare = _mend_journal(path, initial, unknown, notes)
    lost = [task for task in state.tasks if task.best_record and task.best_record not in present]
    if lost:
        notes.append(f"{database.RECORD_FILE}: the best schedules of {len(lost)} tasks are gone")
    if spare:
        notes.append(f"{len(spare)} measured trials were not in the journal yet; added")
    now = time.time()
    events: list[ev.Event] = [
        ev.Recovered(time=now, used_s=state.used_s, what=note) for note in notes if note
    ]
    events += _lose(lost, path, present, now, state.used_s)
    near = ev.TrialDone(
        time=now, used_s=state.used_s, trial=0, round=max(1, state.rounds), task=0, candidate=""
    )
    events += [restored(r, number, near) for number, r in enumerate(spare, state.trials + 1)]
    return Recovery(state=state, events=events)


def _is_event(line: bytes) -> bool:
    try:
        ev.decode(line)
    except RunError:
        return False
    return True


def _mend_records(
    directory: Path, tasks: int, known: Set[str], notes: list[str]
) -> tuple[set[str], list[database.StoredRecord]]:
    """Move the lines that are no record of a task out of their file.

    Returns the digests of all records, and the records that are not `known`, each once. A known
    one is as it was written, or its digest would be another: only the others need parsing.
    """
    path = directory / database.RECORD_FILE
    present: set[str] = set()
    unknown: list[database.StoredRecord] = []
    bad: list[bytes] = []
    for raw in _lines(path):
        name = database.digest(raw)
        if name not in known and name not in present:
            record = database.parse_record(raw)
            # TVM opens no database with a record of a workload that is not there
            if record is None or not 0 <= record.task < tasks:
                bad.append(raw)
                continue
            unknown.append(record)
        present.add(name)
    if bad:
        aside = lines.set_aside(path, b"\n".join(bad) + b"\n")
        out = frozenset(bad)
        lines.replace(path, b"".join(raw + b"\n" for raw in _lines(path) if raw not in out))
        notes.append(f"{path.name}: {len(bad)} damaged lines moved to {aside.name}")
    return present, unknown


def _replay(path: Path, initial: State) -> tuple[State, set[str]]:
    """Return the state after a good journal, and the digests of the records it knows of."""
    known: set[str] = set()
    state, offset = initial, 0
    try:
        with path.open("rb") as file:
            if found := checkpoint.load(file, path, initial):
                state, offset = found
                file.seek(0)
                for part, end in lines.chunks(file):
                    # quotes in texts are escaped, so that only the field itself can match
                    known.update(d.decode() for d in _RECORD.findall(b"\n".join(part)))
                    if end >= offset:
                        break
    except FileNotFoundError:
        return initial, known
    draft = Draft(state)
    for line in _lines(path, offset):
        event = ev.decode(line)
        draft.apply(event)
        if isinstance(event, ev.TrialDone):
            known.add(event.record)
    return draft.freeze(), known


def _lines(path: Path, offset: int = 0) -> Iterator[bytes]:
    try:
        with path.open("rb") as file:
            file.seek(offset)
            for part, _ in lines.chunks(file):
                yield from part
    except FileNotFoundError:
        return


def _mend_journal(
    path: Path, initial: State, records: list[database.StoredRecord], notes: list[str]
) -> tuple[State, list[database.StoredRecord]]:
    """Rewrite a damaged journal; return the state after it, and the records it does not know."""
    found = salvage(initial, lines.read(path)[0], records)
    note = f"{path.name}: {found.filled} missing trials restored or counted as lost"
    if found.taken_out:
        aside = lines.set_aside(path, b"\n".join(found.taken_out) + b"\n")
        note = f"{note}; {len(found.taken_out)} damaged lines moved to {aside.name}"
    lines.replace(path, b"".join(line + b"\n" for line in found.kept))
    notes.append(note)
    return found.state, found.spare


def _lose(
    tasks: Sequence[TaskState], path: Path, present: Set[str], now: float, used_s: float
) -> list[ev.RecordLost]:
    """Return the events that put the best trial that still has its record in place of the best."""
    best: dict[int, ev.TrialDone | None] = {task.info.id: None for task in tasks}
    for event in map(ev.decode, _lines(path) if tasks else ()):
        if (
            isinstance(event, ev.TrialDone)
            and event.task in best
            and event.latency_s is not None
            and event.record in present
        ):
            known = best[event.task]
            if known is None or event.latency_s < (known.latency_s or 0.0):
                best[event.task] = event
    return [
        ev.RecordLost(
            time=now,
            used_s=used_s,
            trial=task.best_trial or 0,
            task=task.info.id,
            best_trial=found.trial if found else None,
            best_latency_s=found.latency_s if found else None,
            best_record=found.record if found else "",
        )
        for task, found in zip(tasks, best.values(), strict=True)
    ]
