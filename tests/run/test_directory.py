"""The run directory: made once, read by anybody, written by one at a time."""

import dataclasses
import errno
import itertools
import multiprocessing
import os
import signal
import time

import pytest

from autotune_nb.errors import RunError, RunLockedError, TuningFailed
from autotune_nb.run import checkpoint, database, directory, journal, lines
from autotune_nb.run import events as ev
from autotune_nb.run.directory import RunDirectory, RunWriter, prepare
from autotune_nb.run.lock import RunLock
from autotune_nb.run.state import initial


def test_prepare_makes_parents_and_takes_an_empty_directory(tmp_path):
    assert prepare(str(tmp_path / "a" / "b")) == tmp_path / "a" / "b"
    (tmp_path / "empty").mkdir()
    assert prepare(tmp_path / "empty") == tmp_path / "empty"
    assert not RunLock(tmp_path / "empty").holder().alive


def test_of_two_that_make_a_run_at_once_one_goes_on(tmp_path, monkeypatch):
    """The second looked before the first wrote anything."""
    prepare(tmp_path / "run")
    monkeypatch.setattr(type(tmp_path), "iterdir", lambda _: iter(()))
    with pytest.raises(RunError, match="another process is making a run here"):
        prepare(tmp_path / "run")


def test_a_directory_that_cannot_be_looked_into_is_told(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError(errno.EACCES, "Permission denied")

    for name in ("exists", "mkdir", "iterdir", "touch"):
        with monkeypatch.context() as patch:
            patch.setattr(type(tmp_path), name, refuse)
            with pytest.raises(RunError, match=r"run: cannot be made \(Permission denied\)"):
                prepare(tmp_path / "run")


def test_prepare_refuses_what_is_there(tmp_path, run):
    with pytest.raises(RunError, match=r"holds a run already.*autotune-nb resume"):
        prepare(run.path)
    (tmp_path / "file").touch()
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(RunError, match="is a file"):
            prepare(path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").touch()
    with pytest.raises(RunError, match="is not empty"):
        prepare(tmp_path / "full")


def test_a_new_run_has_the_state_of_its_tasks(run, tasks):
    opened = RunDirectory(str(run.path))
    assert opened.poll() == initial(tasks)
    assert opened.journal == run.journal
    assert opened.artifacts.is_dir()
    assert not opened.holder().alive


def test_readers_see_what_the_writer_has(run):
    reader = RunDirectory(run.path)
    with RunWriter(run.path) as writer:
        for event in [run.teller.start(), *run.teller.round(0, [1e-3, None])]:
            state = writer.commit([event])
            assert reader.poll() == state
            assert RunDirectory(run.path).poll() == state
        assert reader.holder().alive
        assert reader.holder().pid == os.getpid()
        writer.beat()
    assert not reader.holder().alive


def test_resuming_goes_on_from_the_same_state(run):
    state = run.write()
    size = run.journal.stat().st_size
    with RunWriter(run.path) as writer:
        assert writer.state == state
        assert writer.commit([]) is writer.state
    assert run.journal.stat().st_size == size  # opening a sound run writes nothing


def test_an_event_that_cannot_be_is_not_written(run):
    with RunWriter(run.path) as writer:
        writer.commit([run.teller.start()])
        before, state = run.journal.read_bytes(), writer.state
        with pytest.raises(RunError, match="not under way"):
            writer.commit([run.teller.trial(0, 1e-3), run.teller.close(0)])
        assert run.journal.read_bytes() == before
        assert writer.state is state


def test_a_second_writer_is_refused_until_the_first_closes(run):
    first = RunWriter(run.path)
    with pytest.raises(RunLockedError):
        RunWriter(run.path)
    first.close()
    first.close()
    RunWriter(run.path).close()


def test_an_imported_run_is_not_written(make_run):
    run = make_run(read_only=True)
    with pytest.raises(RunError, match="was imported and is read-only"):
        RunWriter(run.path)
    assert not (run.path / "lock").exists()


def test_a_run_that_cannot_be_mended_is_left_unlocked(run, monkeypatch):
    run.write()
    with run.journal.open("ab") as file:
        file.write(b"torn")

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(lines, "set_aside", full)
    with pytest.raises(RunError, match=r"cannot be mended \(No space left"):
        RunWriter(run.path)
    monkeypatch.undo()
    with RunWriter(run.path) as writer:
        assert writer.state.trials == 5


def test_a_broken_invariant_leaves_the_lock_free_too(run, monkeypatch):
    def fail(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(directory, "mend", fail)
    with pytest.raises(KeyboardInterrupt):
        RunWriter(run.path)
    assert not RunDirectory(run.path).holder().alive


@pytest.mark.faults
def test_a_disk_that_fills_up_ends_with_what_was_measured(run, monkeypatch):
    state = run.write()
    real = os.write

    def full(fd, data):
        monkeypatch.setattr(os, "write", fail)
        return real(fd, data[:10])

    def fail(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with RunWriter(run.path) as writer:
        monkeypatch.setattr(os, "write", full)
        with pytest.raises(
            TuningFailed, match=r"tuning_record\.json: cannot be written to \(No sp"
        ):
            writer.append_record("[0,[[],[1.0],{},[]]]")
        monkeypatch.setattr(os, "write", full)
        with pytest.raises(TuningFailed, match=r"journal\.jsonl: cannot be written to \(No space"):
            writer.commit([run.teller.trial(0, 1e-4)])
        assert writer.state == state
        monkeypatch.undo()
        run.teller.trials -= 1
        run.trial(writer, 0, 1e-4)  # there is room again
        state = writer.state
    with RunWriter(run.path) as writer:
        assert writer.state == state
    assert run.aside() == []


def _tune_until_killed(run, done):
    with RunWriter(run.path) as writer:
        teller = dataclasses.replace(
            run.teller,
            clock=writer.state.used_s,
            trials=writer.state.trials,
            rounds=writer.state.rounds,
        )
        run = dataclasses.replace(run, teller=teller, _traces=itertools.count(teller.trials))
        writer.commit([teller.start()])
        while True:
            task = teller.rounds % 3
            writer.commit([teller.open(task), teller.searched(task)])
            for _ in range(4):
                run.trial(writer, task, 1e-3 / (1 + teller.trials))
                done.value = writer.state.trials
            writer.commit([teller.close(task, 4)])


@pytest.mark.faults
def test_a_tuner_killed_at_any_moment_loses_no_trial(run, monkeypatch):
    """Checkpoints included: they are written often here."""
    monkeypatch.setattr(checkpoint, "_MIN_BYTES", 3000)
    context = multiprocessing.get_context("fork")
    done = context.Value("i", 0)
    for delay_s in (0.0, 0.01, 0.03, 0.02, 0.05, 0.04, 0.06, 0.08):
        before = done.value
        tuner = context.Process(target=_tune_until_killed, args=(run, done))
        tuner.start()
        while done.value == before:  # it has begun
            time.sleep(0.001)
        time.sleep(delay_s)
        os.kill(tuner.pid, signal.SIGKILL)
        tuner.join()
        reader = RunDirectory(run.path)
        assert not reader.holder().alive
        assert reader.poll().trials >= done.value
        with RunWriter(run.path) as writer:
            state = writer.state
        records, bad = database.read_records(run.path)
        assert bad == []
        assert done.value <= state.trials <= done.value + 1  # the one in flight
        assert len({record.digest for record in records}) == len(records) == state.trials
        assert reader.poll() == state == RunDirectory(run.path).poll()
        assert min(t.best_latency_s for t in state.tasks if t.trials) == 1e-3 / state.trials
        done.value = state.trials


def test_a_long_journal_gets_a_checkpoint_that_readers_use(run, monkeypatch):
    monkeypatch.setattr(checkpoint, "_MIN_BYTES", 2000)
    with RunWriter(run.path) as writer:
        writer.commit([run.teller.start()])
        for i in range(30):
            writer.commit(run.teller.round(i % 3, [1e-3 / (i + 1)]))
            assert RunDirectory(run.path).poll() == writer.state
        assert (run.path / checkpoint.FILE).exists()
        decoded = []
        monkeypatch.setattr(journal, "decode", lambda line: decoded.append(line) or ev.decode(line))
        assert RunDirectory(run.path).poll() == writer.state
        assert 0 <= len(decoded) < 20  # of 121
    before = run.journal.read_bytes()
    (run.path / checkpoint.FILE).unlink()
    assert RunDirectory(run.path).poll() == writer.state
    assert run.journal.read_bytes() == before
