"""The lock: one writer, any number of readers that do not disturb it, free when it dies."""

import fcntl
import json
import multiprocessing
import os
import signal
import threading
import time

import pytest

from autotune_nb.errors import RunError, RunLockedError
from autotune_nb.run import lines
from autotune_nb.run.lock import Holder, RunLock

fork = multiprocessing.get_context("fork")


def _hold(path, ready):
    lock = RunLock(path)
    lock.acquire()
    ready.set()
    time.sleep(60)


@pytest.fixture
def holder(tmp_path):
    """Return a process that holds the lock."""
    ready = fork.Event()
    process = fork.Process(target=_hold, args=(tmp_path, ready))
    process.start()
    assert ready.wait(10)
    yield process
    process.kill()
    process.join()


def test_nobody_holds_a_new_run(tmp_path):
    assert RunLock(tmp_path).holder() == Holder(alive=False)
    assert list(tmp_path.iterdir()) == []  # asking leaves no trace


def test_the_holder_writes_itself_down(tmp_path):
    lock = RunLock(tmp_path)
    before = time.time()
    lock.acquire()
    for asked in (lock, RunLock(tmp_path)):
        found = asked.holder()
        assert found.alive
        assert found.pid == os.getpid()
        assert found.heartbeat == pytest.approx(before, abs=5)
    lock.release()
    assert not RunLock(tmp_path).holder().alive
    assert RunLock(tmp_path).holder().pid == os.getpid()  # who held it last


def test_a_beat_is_seen(tmp_path):
    lock = RunLock(tmp_path)
    lock.acquire()
    os.utime(tmp_path / "lock.holder", (1.0, 1.0))
    assert lock.holder().heartbeat == 1.0
    lock.beat()
    assert lock.holder().heartbeat > 1e9
    (tmp_path / "lock.holder").unlink()
    lock.beat()  # a vanished file ends nothing
    assert lock.holder() == Holder(alive=True)
    lock.release()


def test_a_second_process_is_refused_with_the_pid_of_the_first(tmp_path, holder):
    lock = RunLock(tmp_path)
    with pytest.raises(RunLockedError, match=rf"process {holder.pid} on .*'autotune-nb stop"):
        lock.acquire()
    assert RunLock(tmp_path).holder().pid == holder.pid
    lock.release()  # releasing what one does not hold changes nothing
    assert RunLock(tmp_path).holder().alive


def test_a_second_lock_of_the_same_process_is_refused(tmp_path):
    lock = RunLock(tmp_path)
    lock.acquire()
    with pytest.raises(RunLockedError, match=f"process {os.getpid()}"):
        RunLock(tmp_path).acquire()
    lock.release()
    other = RunLock(tmp_path)
    other.acquire()
    other.release()


@pytest.mark.faults
def test_a_killed_holder_leaves_the_lock_free(tmp_path, holder):
    os.kill(holder.pid, signal.SIGKILL)
    holder.join()
    lock = RunLock(tmp_path)
    assert lock.holder().alive is False
    assert lock.holder().pid == holder.pid
    lock.acquire()
    assert lock.holder().pid == os.getpid()
    lock.release()


@pytest.mark.faults
def test_a_stopped_holder_still_holds_it(tmp_path, holder):
    os.kill(holder.pid, signal.SIGSTOP)
    with pytest.raises(RunLockedError):
        RunLock(tmp_path).acquire()
    assert RunLock(tmp_path).holder().alive


def test_a_lock_file_left_by_another_boot_is_no_lock(tmp_path):
    (tmp_path / "lock").touch()
    (tmp_path / "lock.holder").write_text('{"pid": 1, "host": "h"}')
    assert RunLock(tmp_path).holder().alive is False
    lock = RunLock(tmp_path)
    lock.acquire()
    lock.release()


def _probe(path, over, wrong):
    while not over.is_set():
        if RunLock(path).holder().alive:
            wrong.value += 1


def test_readers_disturb_neither_the_tuner_nor_each_other(tmp_path):
    (tmp_path / "lock").touch()
    over, wrong = fork.Event(), fork.Value("i", 0)
    readers = [fork.Process(target=_probe, args=(tmp_path, over, wrong)) for _ in range(3)]
    for reader in readers:
        reader.start()
    try:
        time.sleep(0.5)
        assert wrong.value == 0  # they do not take each other for a tuner
        for _ in range(20):
            lock = RunLock(tmp_path)
            lock.acquire()
            assert lock.holder().alive
            assert RunLock(tmp_path).holder().alive
            lock.release()
    finally:
        over.set()
        for reader in readers:
            reader.join()


def test_a_reader_in_the_midst_of_asking_is_no_holder(tmp_path):
    """What `holder` does for an instant, held for longer."""
    path = tmp_path / "lock"
    path.touch()
    with path.open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_SH)
        assert not RunLock(tmp_path).holder().alive  # nor does it keep a second one from asking
        timer = threading.Timer(0.1, fcntl.flock, (other, fcntl.LOCK_UN))
        timer.start()
        lock = RunLock(tmp_path)
        lock.acquire()  # the tuner waits for it
        timer.join()
        assert RunLock(tmp_path).holder().alive
        lock.release()


def test_another_thread_may_release_it(tmp_path):
    lock = RunLock(tmp_path)
    lock.acquire()
    thread = threading.Thread(target=lock.release)
    thread.start()
    thread.join()
    assert not RunLock(tmp_path).holder().alive


def test_a_child_that_was_forked_does_not_give_it_back(tmp_path):
    lock = RunLock(tmp_path)
    lock.acquire()
    child = fork.Process(target=lock.release)
    child.start()
    child.join()
    assert RunLock(tmp_path).holder().alive
    lock.release()


@pytest.mark.faults
def test_a_child_that_outlives_a_killed_holder_does_not_keep_it(tmp_path):
    ready = fork.Event()
    pids = fork.Queue()
    process = fork.Process(target=_hold_with_child, args=(tmp_path, ready, pids))
    process.start()
    child = pids.get(timeout=10)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    try:
        os.kill(child, 0)  # it lives
        lock = RunLock(tmp_path)
        lock.acquire()
        lock.release()
    finally:
        os.kill(child, signal.SIGKILL)


def _hold_with_child(path, ready, pids):
    lock = RunLock(path)
    lock.acquire()
    child = os.fork()
    if child == 0:
        time.sleep(60)
        os._exit(0)
    pids.put(child)
    time.sleep(60)
    lock.release()


@pytest.mark.parametrize("content", ["", "{", "null", "[]", '{"pid": 3}', "\x00" * 9])
def test_a_damaged_note_of_the_holder_is_no_error(tmp_path, content):
    lock = RunLock(tmp_path)
    lock.acquire()
    (tmp_path / "lock.holder").write_text(content)
    assert RunLock(tmp_path).holder() == Holder(alive=True)
    with pytest.raises(RunLockedError, match="another process"):
        RunLock(tmp_path).acquire()
    lock.release()


def test_a_full_disk_leaves_the_lock_free(tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(lines, "replace", full)
    lock = RunLock(tmp_path)
    with pytest.raises(RunError, match=r"lock\.holder: cannot be written \(No space left"):
        lock.acquire()
    assert not RunLock(tmp_path).holder().alive
    monkeypatch.undo()
    lock.acquire()
    lock.release()


def test_a_directory_that_cannot_be_written_to_is_told(tmp_path):
    (tmp_path / "lock").mkdir()  # stands for a read-only directory, which root does not mind
    with pytest.raises(RunError, match=rf"{tmp_path.name}: cannot lock the run") as caught:
        RunLock(tmp_path).acquire()
    assert not isinstance(caught.value, RunLockedError)


def test_the_note_is_what_it_says(tmp_path):
    lock = RunLock(tmp_path)
    lock.acquire()
    note = json.loads((tmp_path / "lock.holder").read_text())
    assert note["pid"] == os.getpid()
    assert note["started"] == pytest.approx(time.time(), abs=5)
    lock.release()
