"""Recovery: after any cut or damage a run opens, and accounts for every trial once."""

import dataclasses
import json
import shutil

import pytest

from autotune_nb.run import checkpoint, database, lines
from autotune_nb.run import events as ev
from autotune_nb.run.directory import RunDirectory, RunWriter
from autotune_nb.run.lines import read as read_lines
from autotune_nb.run.salvage import salvage
from autotune_nb.run.state import fold


def reopen(run):
    """Mend a run; return its state, which a reader and a second opening must see as well."""
    with RunWriter(run.path) as writer:
        state = writer.state
    before = {p.name: p.read_bytes() for p in run.path.iterdir() if p.name != "lock.holder"}
    assert RunDirectory(run.path).poll() == state
    with RunWriter(run.path) as writer:
        assert writer.state == state
    after = {p.name: p.read_bytes() for p in run.path.iterdir() if p.name != "lock.holder"}
    assert after == before  # what is mended stays mended
    return state


def spent(state):
    """Return the account of a run: what the budget, the tables and the compiler go by."""
    return (
        state.trials,
        [(t.trials, t.best_latency_s, t.best_record) for t in state.tasks],
    )


def cut(path, end):
    data = path.read_bytes()
    path.write_bytes(data[:end])
    return data[end:]


def starts(path):
    """Return the offset of each line."""
    found, offset = [], 0
    for line in read_lines(path)[0]:
        found.append(offset)
        offset += len(line) + 1
    return found


def replace_line(path, number, new):
    """Replace line `number` by the given lines."""
    found = read_lines(path)[0]
    found[number : number + 1] = new
    path.write_bytes(b"".join(line + b"\n" for line in found))


def line_of_trial(path, trial):
    for number, line in enumerate(read_lines(path)[0]):
        value = json.loads(line)
        if value["event"] == "trial" and value["trial"] == trial:
            return number
    raise LookupError(trial)


def test_a_sound_run_is_not_touched(run):
    state = run.write()
    before = run.journal.read_bytes(), run.records.read_bytes()
    assert reopen(run) == state
    assert (run.journal.read_bytes(), run.records.read_bytes()) == before
    assert run.aside() == []


def test_an_empty_run_opens(run, blank):
    assert reopen(run) == blank
    run.journal.touch()
    assert reopen(run) == blank


@pytest.fixture
def whole(run):
    """Return a run that ends with two trials, and its state."""
    state = run.write(rounds=[(0, (4e-3, None)), (1, (5e-4,))])
    with RunWriter(run.path) as writer:
        writer.commit([run.teller.start(), run.teller.open(2)])
        run.trial(writer, 2, 3e-4)
        run.trial(writer, 2, None)
        return run, state, writer.state


def copy(run):
    """Return a run with the same files; only what is read from disk matters of it."""
    number = len(list(run.path.parent.iterdir()))
    path = shutil.copytree(run.path, run.path.with_name(f"copy{number}"))
    return dataclasses.replace(run, path=path)


def test_the_journal_cut_at_every_byte_of_its_last_two_lines(whole):
    """The records are whole: no trial is lost, whatever the journal has of it."""
    run, _, state = whole
    last_two = starts(run.journal)[-2]
    size = run.journal.stat().st_size
    for end in range(last_two, size + 1):
        other = copy(run)
        cut(other.journal, end)
        found = reopen(other)
        assert spent(found) == spent(state)
        assert found.failed_trials == 2
        if end >= size - 1:
            assert found.tasks == state.tasks  # nothing but the newline was missing
        else:
            assert any("added" in what for what in found.recovered)


def test_the_records_cut_at_every_byte_of_their_last_two_lines(whole):
    """The journal is whole: each trial stays counted, a result without a schedule is none."""
    run, before, state = whole
    third, fourth = starts(run.records)[-2:]
    size = run.records.stat().st_size
    for end in range(third, size + 1):
        other = copy(run)
        cut(other.records, end)
        found = reopen(other)
        assert found.trials == state.trials
        assert [t.trials for t in found.tasks] == [t.trials for t in state.tasks]
        kept = end >= fourth - 1
        assert found.tasks[2].best_latency_s == (3e-4 if kept else None)
        assert found.partial == (not kept)
        assert [t.best_record for t in found.tasks[:2]] == [t.best_record for t in before.tasks[:2]]
        stored, bad = database.read_records(other.path)
        assert bad == []
        assert len(stored) == 5 - (end < size - 1) - (end < fourth - 1)


def test_both_cut_in_the_trial_in_flight(whole):
    run, _, state = whole
    journal_at, records_at = starts(run.journal)[-1], starts(run.records)[-1]
    for back in range(1, 60, 7):
        other = copy(run)
        cut(other.journal, journal_at + back)
        cut(other.records, records_at + back)
        found = reopen(other)
        assert found.trials == state.trials - 1  # the one in flight, and no other
        assert spent(found)[1][:2] == spent(state)[1][:2]
        assert len(other.aside()) == 2
        assert len(found.recovered) == 2


def test_what_was_cut_off_lies_beside_the_file(run):
    run.write()
    end = starts(run.journal)[-1] + 20
    with run.journal.open("rb") as file:
        torn = file.read()[end - 20 : end]
    cut(run.journal, end)
    state = reopen(run)
    (name,) = run.aside()
    assert (run.path / name).read_bytes() == torn
    assert state.recovered == (f"journal.jsonl: its last line was cut off; moved to {name}",)


def test_a_record_without_its_event_is_counted(run):
    run.write()
    with RunWriter(run.path) as writer:
        line = database.record_line(0, [["new"]], [1e-4], {}, [])
        writer.append_record(line)  # killed here
    state = reopen(run)
    assert state.trials == 6
    assert state.tasks[0].best_latency_s == 1e-4
    assert state.tasks[0].best_record == database.digest(line)
    assert state.recovered == ("1 measured trials were not in the journal yet; added",)


def test_a_failed_record_without_its_event_is_counted_as_failed(run):
    run.write()
    with RunWriter(run.path) as writer:
        writer.append_record(database.record_line(2, [["new"]], [], {}, []))
    state = reopen(run)
    assert (state.trials, state.failed_trials) == (6, 2)
    assert state.tasks[2].errors[0].kind == "lost"


def test_a_record_that_stands_twice_is_counted_once(run):
    state = run.write()
    line = read_lines(run.records)[0][0]
    with run.records.open("ab") as file:
        file.write(line + b"\n")
        new = database.record_line(0, [["new"]], [1e-4], {}, []).encode()
        file.write(new + b"\n" + new + b"\n")
    assert reopen(run).trials == state.trials + 1


def test_the_best_record_lost_falls_back_to_the_next_best(run):
    run.write(rounds=[(0, (4e-3, 2e-3, 3e-3))])
    second = read_lines(run.records)[0][1]
    replace_line(run.records, 1, [])
    state = reopen(run)
    assert state.trials == 3
    assert state.tasks[0].best_latency_s == 3e-3
    assert state.tasks[0].best_trial == 3
    assert state.estimated_total_latency_s == 3e-3
    # once more: the next best goes too, then the last
    replace_line(run.records, 1, [])
    assert reopen(run).tasks[0].best_trial == 1
    run.records.unlink()
    state = reopen(run)
    assert state.tasks[0].best_latency_s is None
    assert state.tasks[0].trials == 3
    assert state.estimated_total_latency_s is None
    # a record that comes back is known, and counts no second time
    run.records.write_bytes(second + b"\n")
    assert reopen(run).trials == 3


def test_a_record_that_is_not_the_best_is_not_missed(run):
    state = run.write(rounds=[(0, (2e-3, 4e-3))])
    replace_line(run.records, 1, [])
    assert reopen(run) == state


def test_orphans_may_be_better_than_what_was_lost(run):
    run.write(rounds=[(0, (2e-3, 4e-3))])
    replace_line(run.records, 0, [database.record_line(0, [["new"]], [1e-3], {}, []).encode()])
    state = reopen(run)
    assert state.trials == 3
    assert (state.tasks[0].best_trial, state.tasks[0].best_latency_s) == (3, 1e-3)


GARBAGE = [
    [b"garbage"],
    [b"\x00" * 50],
    [b"\xff\xfe{}"],
    [b""],
    [b"{}", b"[]", b"null"],
    [b'{"event":"trial","time":"yes"}'],
    [],
]


@pytest.mark.parametrize("garbage", GARBAGE)
@pytest.mark.parametrize("trial", [1, 3, 5])
def test_garbage_in_place_of_a_trial(run, garbage, trial):
    """Its record is there: only what the record does not hold is lost."""
    state = run.write()
    replace_line(run.journal, line_of_trial(run.journal, trial), garbage)
    damaged = run.journal.read_bytes()
    reader = RunDirectory(run.path).poll()
    assert reader.trials == (5 if trial < 5 else 4)  # nothing after the fifth tells of it
    assert bool(reader.recovered) == (trial < 5 or bool(garbage))
    assert run.journal.read_bytes() == damaged  # a reader changes nothing
    found = reopen(run)
    assert spent(found) == spent(state)
    assert found.failed_trials == 1
    assert [len(t.rounds) for t in found.tasks] == [1, 1, 0]
    assert found.recovered
    if garbage:
        (name,) = run.aside()
        assert (run.path / name).read_bytes() == b"\n".join(garbage) + b"\n"


def test_good_lines_are_kept_byte_by_byte(run):
    run.write()
    before = read_lines(run.journal)[0]
    # a field of a later version, and spaces that we would not write
    before[2] = before[2].replace(b'{"event"', b'{ "mood": "good", "event"')
    run.journal.write_bytes(b"\n".join([*before[:4], b"garbage", *before[4:]]) + b"\n")
    reopen(run)
    assert read_lines(run.journal)[0][: len(before)] == before


@pytest.mark.parametrize("name", ["round_started", "round_searched", "round_finished"])
def test_a_lost_line_of_a_round_loses_no_trial(run, name):
    state = run.write()
    for number, line in enumerate(read_lines(run.journal)[0]):
        if json.loads(line)["event"] == name:
            replace_line(run.journal, number, [b"garbage"])
            break
    found = reopen(run)
    assert spent(found) == spent(state)
    assert found.rounds == 2
    assert len(found.tasks[0].rounds) == (0 if name == "round_finished" else 1)
    assert len(found.tasks[1].rounds) == 1


def edit(run, trial, changes):
    number = line_of_trial(run.journal, trial)
    value = json.loads(read_lines(run.journal)[0][number])
    value.update(changes)
    replace_line(run.journal, number, [json.dumps(value).encode()])


@pytest.mark.parametrize("trial", [1, 2, 5])
@pytest.mark.parametrize(
    "changes", [{"trial": 93}, {"trial": 0}, {"trial": -7}, {"task": 9}, {"latency_s": -1.0}]
)
def test_one_damaged_number_does_no_harm_beyond_its_trial(run, trial, changes):
    state = run.write()
    edit(run, trial, changes)
    found = reopen(run)
    assert spent(found) == spent(state)
    assert found.recovered


def test_a_damaged_round_number_loses_no_trial(run):
    state = run.write()
    edit(run, 2, {"round": 71})
    found = reopen(run)
    assert spent(found) == spent(state)


def test_a_line_that_stands_twice_counts_once(run):
    state = run.write()
    number = line_of_trial(run.journal, 2)
    line = read_lines(run.journal)[0][number]
    replace_line(run.journal, number, [line, line])
    assert spent(reopen(run)) == spent(state)


def test_a_part_of_the_journal_gone_is_restored_from_the_records(run):
    state = run.write()
    found = read_lines(run.journal)[0]
    run.journal.write_bytes(b"".join(line + b"\n" for line in found[:2] + found[-3:]))
    after = reopen(run)
    assert spent(after) == spent(state)
    assert after.failed_trials == state.failed_trials


def test_the_whole_journal_gone_is_restored_from_the_records(run):
    state = run.write()
    run.journal.unlink()
    after = reopen(run)
    assert spent(after)[1] == [(t.trials, t.best_latency_s, t.best_record) for t in state.tasks]


def test_both_gone_in_the_middle_counts_the_trial_as_lost(run):
    state = run.write()
    replace_line(run.journal, line_of_trial(run.journal, 2), [b"garbage"])
    replace_line(run.records, 1, [b"garbage"])
    found = reopen(run)
    assert found.trials == state.trials
    assert {error.kind: error.count for error in found.tasks[0].errors} == {"build": 1, "lost": 1}
    assert found.tasks[0].best_latency_s == 4e-3
    assert len(run.aside()) == 2


@pytest.mark.parametrize("task", [3, -1, 10**12])
def test_a_record_of_no_task_is_moved_aside(run, task):
    state = run.write()
    stray = database.record_line(task, [["new"]], [1e-9], {}, []).encode()
    with run.records.open("ab") as file:
        file.write(stray + b"\n")
    replace_line(run.journal, line_of_trial(run.journal, 2), [b"garbage"])
    found = reopen(run)
    assert spent(found) == spent(state)
    kept, _ = database.read_records(run.path)
    assert len(kept) == 5
    assert any(stray in (run.path / name).read_bytes() for name in run.aside())


class Killed(BaseException):
    pass


def test_a_kill_before_each_write_of_mending(run, monkeypatch):
    state = run.write()
    replace_line(run.journal, line_of_trial(run.journal, 2), [b"garbage"])
    replace_line(run.records, 3, [b"garbage"])
    cut(run.journal, run.journal.stat().st_size - 30)
    real = {name: getattr(lines, name) for name in ("set_aside", "replace", "append")}
    left = 0

    def step(name):
        def call(*args, **fields):
            nonlocal left
            if left == 0:
                raise Killed
            left -= 1
            return real[name](*args, **fields)

        return call

    for limit in range(20):
        other = copy(run)
        left = limit
        with monkeypatch.context() as patch:
            for name in real:
                patch.setattr(lines, name, step(name))
            try:
                RunWriter(other.path).close()
            except Killed:
                killed = True
            else:
                killed = False
        found = reopen(other)
        assert found.trials == state.trials
        assert found.tasks[1].best_latency_s == 6e-4  # the record of 5e-4 is gone
        if not killed:
            break
    # holder; torn tail; records aside, rewritten; journal aside, rewritten; events appended
    assert limit == 7


def test_the_journal_tells_what_was_done(run):
    run.write()
    replace_line(run.journal, line_of_trial(run.journal, 2), [b"garbage"])
    replace_line(run.records, 0, [b"x", b"y"])
    cut(run.records, run.records.stat().st_size - 9)
    state = reopen(run)
    torn, damaged, journal_aside = (
        next(n for n in run.aside() if (run.path / n).read_bytes().startswith(start))
        for start in (b"[1,", b"x", b"garbage")
    )
    mended = "journal.jsonl: 1 missing trials restored or counted as lost; 1 damaged lines moved to"
    assert state.recovered == (
        f"database_tuning_record.json: its last line was cut off; moved to {torn}",
        f"database_tuning_record.json: 2 damaged lines moved to {damaged}",
        f"{mended} {journal_aside}",
    )


def test_tuning_goes_on_after_damage(run):
    run.write()
    replace_line(run.journal, line_of_trial(run.journal, 2), [b"garbage"])
    with RunWriter(run.path) as writer:
        assert writer.state.rounds == 2
        writer.commit([run.teller.start(), run.teller.open(2)])
        run.trial(writer, 2, 1e-4)
        writer.commit([run.teller.close(2, 1)])
        state = writer.state
    assert state.trials == 6
    assert not state.partial
    assert reopen(run) == state


@pytest.mark.parametrize("chunk_bytes", [64, 1 << 20])
def test_a_checkpoint_changes_no_recovery(run, monkeypatch, chunk_bytes):
    """Opening for writing decodes only what follows it, and still knows every record."""
    monkeypatch.setattr(lines, "_CHUNK_BYTES", chunk_bytes)
    run.write()
    size = run.journal.stat().st_size
    checkpoint.write(run.journal, RunDirectory(run.path).poll())
    with RunWriter(run.path) as writer:
        writer.commit([run.teller.start(), run.teller.open(2)])
        run.trial(writer, 2, 3e-4)
        writer.append_record(database.record_line(0, [["new"]], [1e-4], {}, []))
    replace_line(run.records, 3, [b"garbage"])
    without = copy(run)
    (without.path / checkpoint.FILE).unlink()
    assert (run.path / checkpoint.FILE).exists()
    assert (
        json.loads((run.path / checkpoint.FILE).read_text().splitlines()[0])["journal_bytes"]
        == size
    )
    found, expected = reopen(run), reopen(without)
    assert spent(found) == spent(expected)
    assert found.trials == 7
    assert found.tasks[0].best_latency_s == 1e-4
    assert found.tasks[1].best_latency_s == 6e-4


def test_many_tasks_may_lose_their_best_at_once(run):
    run.write(rounds=[(0, (4e-3, 2e-3)), (1, (2e-3, 1e-3)), (2, (5e-3,))])
    stored = read_lines(run.records)[0]
    run.records.write_bytes(stored[0] + b"\n" + stored[2] + b"\n")
    state = reopen(run)
    assert [t.best_latency_s for t in state.tasks] == [4e-3, 2e-3, None]
    assert state.recovered == (
        "database_tuning_record.json: the best schedules of 3 tasks are gone",
    )


def test_salvage_of_a_sound_journal_takes_nothing_out(teller, blank):
    events = [teller.start(), *teller.round(0, [1e-3, None]), teller.stop()]
    raw = [ev.encode(event).encode() for event in events]
    found = salvage(blank, raw)
    assert found.kept == raw
    assert (found.taken_out, found.filled, found.spare) == ([], 0, [])
    assert found.state == fold(blank, events)


def test_a_last_trial_may_claim_no_more_than_the_damage_explains(teller, blank):
    raw = [ev.encode(event).encode() for event in teller.round(0, [1e-3, 1e-3])]
    far = dataclasses.replace(teller.trial(0, 1e-4), trial=90)
    near = dataclasses.replace(far, trial=4)
    assert salvage(blank, [*raw, ev.encode(far).encode()]).state.trials == 2
    assert salvage(blank, [*raw, ev.encode(near).encode()]).state.trials == 2
    # one damaged line explains one missing trial
    found = salvage(blank, [*raw, b"garbage", ev.encode(near).encode()])
    assert (found.state.trials, found.filled) == (4, 1)
