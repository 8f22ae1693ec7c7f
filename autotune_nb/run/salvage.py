"""Salvage: what a damaged journal still says, as events that can follow each other; pure."""

from __future__ import annotations

import bisect
import collections
import dataclasses
import math
from collections.abc import Collection, Sequence

from autotune_nb.errors import RunError
from autotune_nb.run import events as ev
from autotune_nb.run.database import StoredRecord
from autotune_nb.run.records import State
from autotune_nb.run.state import Draft


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Salvaged:
    """A journal after its damaged lines were taken out.

    Attributes
    ----------
    state
        The state after the lines that were kept.
    kept
        Their text, in order; untouched where it was good.
    taken_out
        Lines that are no event, or one that cannot follow those before.
    filled
        How many trials were missing in between and are in `kept` now.
    spare
        Records that belong to no trial in `kept`, each once.
    """

    state: State
    kept: list[bytes]
    taken_out: list[bytes]
    filled: int
    spare: list[StoredRecord]


def salvage(initial: State, raw: Sequence[bytes], records: Sequence[StoredRecord] = ()) -> Salvaged:
    """Keep what can be kept of a journal's lines.

    A trial missing in the middle is restored from a record that has no event; where there is none
    left, the trial is counted as lost, so that nothing spent is forgotten.

    Parameters
    ----------
    initial
        The state before the first line.
    raw
        The lines.
    records
        The tuning records found beside the journal.
    """
    events = [_decode(line) for line in raw]
    chain = _chain(events, len(initial.tasks))
    known = {trial.record for trial in chain.values()}
    spare = collections.deque(without_event(records, known))
    draft = Draft(initial)
    kept: list[bytes] = []
    taken_out: list[bytes] = []

    def add(event: ev.Event) -> None:
        draft.apply(event)
        kept.append(ev.encode(event).encode())

    filled = 0
    for index, (line, event) in enumerate(zip(raw, events, strict=True)):
        if event is None or (isinstance(event, ev.TrialDone) and index not in chain):
            taken_out.append(line)
            continue
        try:
            if isinstance(event, (ev.TrialDone, ev.RoundSearched)) and event.round > draft.rounds:
                # its start was on a damaged line; what follows in the round needs it
                started = {"round": event.round, "task": event.task}
                add(ev.RoundStarted(time=event.time, used_s=event.used_s, **started))
            if isinstance(event, ev.TrialDone):
                for trial in range(draft.trials + 1, event.trial):
                    add(restored(spare.popleft() if spare else None, trial, event))
                    filled += 1
            draft.apply(event)
        except RunError:
            taken_out.append(line)
        else:
            kept.append(line)
    return Salvaged(
        state=draft.freeze(), kept=kept, taken_out=taken_out, filled=filled, spare=list(spare)
    )


def without_event(records: Sequence[StoredRecord], known: Collection[str]) -> list[StoredRecord]:
    """Return the records whose digest is not known to any event, each once."""
    return list({r.digest: r for r in records if r.digest not in known}.values())


def restored(record: StoredRecord | None, trial: int, near: ev.TrialDone) -> ev.TrialDone:
    """Return the event of a trial that only its record, if anything, still knows of.

    Parameters
    ----------
    record
        Its record, or None if that is gone as well.
    trial
        Its number.
    near
        A trial whose time, round and, without a record, task it takes over.
    """
    failed = record is None or record.latency_s is None
    if record is None:
        error = "its journal line was damaged and its record is gone"
    elif failed:
        error = "failed; its error text was lost with its journal line"
    else:
        error = ""
    return ev.TrialDone(
        time=near.time,
        used_s=near.used_s,
        trial=trial,
        round=near.round,
        task=near.task if record is None else record.task,
        candidate="",
        latency_s=None if record is None else record.latency_s,
        latencies_s=() if record is None or record.latency_s is None else (record.latency_s,),
        error_kind="lost" if failed else "",
        error=error,
        record="" if record is None else record.digest,
    )


def _decode(line: bytes) -> ev.Event | None:
    try:
        return ev.decode(line)
    except RunError:
        return None


def _chain(events: Sequence[ev.Event | None], tasks: int) -> dict[int, ev.TrialDone]:
    """Return, by index, the trials to believe: the longest chain of rising numbers.

    One damaged digit makes a trial 12 a trial 92. Taken at its word it would spend 80 trials that
    never were, and turn away all that come after it.
    """
    # patience: tails[k] ends the chain of length k+1 that has the lowest last number
    tails: list[int] = []
    numbers: list[int] = []
    before: dict[int, int | None] = {}
    trials = {
        index: event
        for index, event in enumerate(events)
        if isinstance(event, ev.TrialDone)
        and event.trial > 0
        and 0 <= event.task < tasks
        and (event.latency_s is None or 0 < event.latency_s < math.inf)
    }
    for index, event in trials.items():
        length = bisect.bisect_left(numbers, event.trial)
        before[index] = tails[length - 1] if length else None
        tails[length : length + 1] = [index]
        numbers[length : length + 1] = [event.trial]
    indices: list[int] = []
    at = tails[-1] if tails else None
    while at is not None:
        indices.append(at)
        at = before[at]
    indices.reverse()
    # nothing bears out the last one: it may not claim more trials than lines are damaged
    damaged = sum(event is None for event in events) + 1
    while indices:
        number = trials[indices[-1]].trial
        previous = trials[indices[-2]].trial if len(indices) > 1 else 0
        if number - previous <= damaged:
            break
        indices.pop()
    return {index: trials[index] for index in indices}
