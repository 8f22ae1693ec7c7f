"""The journal: appended by one, followed by many, whatever happens to the file meanwhile."""

import dataclasses
import threading
import time

import pytest

from autotune_nb.errors import RunError
from autotune_nb.run import checkpoint, journal, lines
from autotune_nb.run import events as ev
from autotune_nb.run.state import fold


@pytest.fixture
def path(tmp_path):
    return tmp_path / journal.FILE


@pytest.fixture
def events(teller):
    return [
        teller.start(),
        *teller.round(0, [2e-3, None, 1e-3]),
        *teller.round(1, [5e-4]),
        teller.stop(),
    ]


def test_what_is_appended_is_read(path, events):
    assert journal.read(path) == ([], 0)
    middle = journal.append(path, events[:3])
    end = journal.append(path, events[3:], sync=True)
    assert end == path.stat().st_size
    assert journal.read(path) == (events, end)
    assert journal.read(path, middle) == (events[3:], end)


def test_read_names_file_and_line_of_what_is_no_event(path, events):
    end = journal.append(path, events[:2])
    lines.append(path, ["oops"])
    with pytest.raises(RunError, match=r"journal\.jsonl, line 3: not a journal event: 'oops'"):
        journal.read(path)
    with pytest.raises(RunError, match=f"line 1 after byte {end}"):
        journal.read(path, end)


def test_following_byte_by_byte_gives_the_state_of_each_whole_line(path, blank, events):
    follower = journal.Follower(path, blank)
    assert follower.poll() is blank
    data = b"".join(ev.encode(event).encode() + b"\n" for event in events)
    whole = 0
    with path.open("ab", buffering=0) as file:
        for byte in data:
            file.write(bytes([byte]))
            whole += byte == ord("\n")
            assert follower.poll() == fold(blank, events[:whole])


def test_a_poll_without_news_gives_the_same_state(path, blank, events):
    follower = journal.Follower(path, blank)
    journal.append(path, events)
    assert follower.poll() is follower.poll()


def test_news_are_read_from_where_the_last_poll_ended(path, blank, events, monkeypatch):
    follower = journal.Follower(path, blank)
    journal.append(path, events[:-1])
    follower.poll()
    read = []
    monkeypatch.setattr(journal, "decode", lambda line: read.append(line) or ev.decode(line))
    journal.append(path, events[-1:])
    assert follower.poll() == fold(blank, events)
    assert len(read) == 1


def test_a_journal_that_was_mended_is_read_anew(path, blank, events):
    follower = journal.Follower(path, blank)
    journal.append(path, events)
    follower.poll()
    for kept in (events[:3], events[:6], events):  # shorter, longer, and as long as before
        data = "".join(ev.encode(event) + "\n" for event in kept)
        lines.replace(path, data.encode())
        assert follower.poll() == fold(blank, kept)


def test_an_append_that_was_taken_back_is_forgotten(path, blank, teller):
    """A full disk: whole lines were there to read, then were cut off, then others came."""
    follower = journal.Follower(path, blank)
    first = [teller.start(), teller.open(0)]
    size = journal.append(path, first)
    journal.append(path, [teller.trial(0, 1e-3)])
    assert follower.poll().trials == 1
    with path.open("rb+") as file:
        file.truncate(size)
    teller.trials = 0
    later = [teller.trial(1, 5e-3, record="another"), teller.trial(1, 4e-3)]
    journal.append(path, later)
    assert follower.poll() == fold(blank, first + later)


def test_a_journal_that_vanishes_leaves_a_new_run(path, blank, events):
    follower = journal.Follower(path, blank)
    journal.append(path, events)
    follower.poll()
    path.unlink()
    assert follower.poll() == blank
    journal.append(path, events)
    assert follower.poll() == fold(blank, events)


def test_damage_is_passed_over_told_and_changes_nothing(path, blank, events):
    raw = [ev.encode(event).encode() for event in events]
    raw[4] = b"\x00garbage"  # the second trial
    data = b"\n".join(raw) + b"\n"
    path.write_bytes(data)
    follower = journal.Follower(path, blank)
    state = follower.poll()
    assert state.trials == 4
    assert state.tasks[0].best_latency_s == 1e-3
    assert [e.kind for e in state.tasks[0].errors] == ["lost"]
    (note,) = state.recovered
    assert note == (
        "journal.jsonl: 1 damaged lines passed over, 1 trials counted as lost; open the run for "
        "tuning to mend it"
    )
    assert path.read_bytes() == data
    assert follower.poll() is state


def test_following_goes_on_after_damage(path, blank, teller):
    follower = journal.Follower(path, blank)
    journal.append(path, [teller.start(), *teller.round(0, [1e-3])])
    lines.append(path, ["oops"])
    assert follower.poll().recovered
    journal.append(path, teller.round(1, [2e-3]))
    state = follower.poll()
    assert state.trials == 2
    assert len(state.recovered) == 1


def test_a_journal_that_cannot_be_read_is_told(tmp_path, blank):
    (tmp_path / "journal.jsonl").mkdir()
    with pytest.raises(RunError, match=r"journal\.jsonl: cannot be read"):
        journal.Follower(tmp_path / "journal.jsonl", blank).poll()


def test_threads_may_share_a_follower(path, blank, teller, monkeypatch):
    follower = journal.Follower(path, blank)
    seen, over = [], threading.Event()
    chunks = lines.chunks

    def slow(file):
        for part in chunks(file):
            time.sleep(0.002)  # lets another thread read the same lines
            yield part

    def poll():
        while not over.is_set():
            seen.append(follower.poll())

    monkeypatch.setattr(lines, "chunks", slow)
    threads = [threading.Thread(target=poll) for _ in range(3)]
    for thread in threads:
        thread.start()
    for i in range(40):
        journal.append(path, teller.round(i % 3, [1e-3]))
        time.sleep(0.001)
    over.set()
    for thread in threads:
        thread.join()
    assert follower.poll().trials == 40
    assert not any(state.recovered for state in seen)


@pytest.fixture
def kept(path, blank, events):
    """Write a journal whose first half has a checkpoint; return all of its events."""
    half = len(events) // 2
    journal.append(path, events[:half])
    checkpoint.write(path, fold(blank, events[:half]))
    assert path.with_name(checkpoint.FILE).exists()
    journal.append(path, events[half:])
    return events


def decoded(path, blank, monkeypatch):
    """Return the state a new reader sees, and how many lines it had to decode."""
    read = []
    monkeypatch.setattr(journal, "decode", lambda line: read.append(line) or ev.decode(line))
    state = journal.Follower(path, blank).poll()
    return state, len(read)


def test_a_checkpoint_saves_decoding_what_it_covers(path, blank, kept, monkeypatch):
    state, count = decoded(path, blank, monkeypatch)
    assert state == fold(blank, kept)
    assert count == len(kept) - len(kept) // 2


def test_a_checkpoint_holds_every_field_of_a_state(path, blank, teller):
    events = [
        teller.start(),
        ev.BudgetSet(time=1.0, trials=5, seconds=9.5),
        ev.FocusSet(time=1.0, tasks=(0, 1)),
        ev.RequestTaken(time=1.0, request="a", wish="pause"),
        ev.RequestDone(time=2.0, request="a", refused="no"),
        ev.PhaseChanged(time=1.0, phase="tuning"),
        ev.Recovered(time=1.0, what='a " line \n\x85'),
        *teller.round(0, [1e-3, None]),
        *teller.round(1, [None, None]),
        ev.TaskSetAside(time=1.0, task=1, state="failed", reason="é"),
        teller.open(2),
    ]
    journal.append(path, events)
    state = fold(blank, events)
    checkpoint.write(path, state)
    with path.open("rb") as file:
        assert checkpoint.load(file, path, blank) == (state, path.stat().st_size)
    more = teller.searched(2)
    assert fold(state, [more]) == fold(blank, [*events, more])


def _flip(data, at):
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


@pytest.mark.parametrize("where", ["head", "state", "cut", "empty", "journal", "code", "tasks"])
def test_a_checkpoint_that_does_not_fit_is_not_used(
    path, blank, kept, monkeypatch, where, tmp_path
):
    file = path.with_name(checkpoint.FILE)
    data = file.read_bytes()
    if where == "head":
        file.write_bytes(_flip(data, 25))
    elif where == "state":
        file.write_bytes(data.replace(b'"trials":3', b'"trials":4'))
        assert file.read_bytes() != data
    elif where == "cut":
        file.write_bytes(data[:-40])
    elif where == "empty":
        file.write_bytes(b"")
    elif where == "journal":
        text = path.read_bytes()
        path.write_bytes(text.replace(b'"build_s":0.25', b'"build_s":0.75', 1))
        kept, _ = journal.read(path)
    elif where == "code":
        other = tmp_path / "state.py"
        other.write_text("another fold")
        monkeypatch.setattr(checkpoint.state, "__file__", str(other))
    else:
        blank = renamed(blank)
    state, count = decoded(path, blank, monkeypatch)
    assert state == fold(blank, kept)
    assert count == len(kept)


def renamed(state):
    tasks = [
        dataclasses.replace(t, info=dataclasses.replace(t.info, flops=2e9)) for t in state.tasks
    ]
    return dataclasses.replace(state, tasks=tuple(tasks))


def test_a_checkpoint_that_cannot_be_written_is_done_without(path, blank, events, monkeypatch):
    journal.append(path, events)

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(lines, "replace", full)
    checkpoint.write(path, fold(blank, events))
    assert not path.with_name(checkpoint.FILE).exists()
    assert journal.Follower(path, blank).poll() == fold(blank, events)


def test_checkpoints_come_rarely():
    mb = 1 << 20
    assert not checkpoint.due(mb, 0)
    assert checkpoint.due(2 * mb, 0)
    assert not checkpoint.due(100 * mb, 95 * mb)
    assert checkpoint.due(100 * mb, 93 * mb)
