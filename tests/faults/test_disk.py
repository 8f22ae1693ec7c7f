"""Full disks, directories that cannot be written, and clocks that jump."""

import contextlib
import os
import resource
import signal
import subprocess
import time
from pathlib import Path
from unittest import mock

import pytest

from autotune_nb.errors import RunError
from autotune_nb.run import events as ev
from autotune_nb.run.directory import RunDirectory, RunWriter
from autotune_nb.tuning import launch
from tests.faults.stub_run import gone, processes_of, wait_for

pytestmark = [pytest.mark.faults, pytest.mark.timeout(120)]


@contextlib.contextmanager
def small_disk(path, size):
    """Mount a file system of so many bytes at `path`, or skip where that is not allowed."""
    path.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(path)], capture_output=True
    )
    if done.returncode:
        pytest.skip("mounting a small disk is not allowed here")
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


def test_a_disk_that_fills_up_stops_the_tuner_and_is_named(make, tmp_path):
    with small_disk(tmp_path / "disk", 400 << 10) as disk:
        run = make(disk / "run", default={"padding": 900})
        process = run.start(100_000)
        family = processes_of(process.pid)
        assert process.wait(60) == 1
        assert gone(family) == []
        full = run.state
        assert full.phase == "failed"
        assert "cannot be written to (No space left on device); free some space and resume" in (
            full.message
        )
        assert full.trials > 20
        run.check(lost=2, ahead=1)  # that without room, and that under way
        # nothing can be done while it is full, and nothing is damaged by trying
        ballast = disk / "ballast"
        with contextlib.suppress(OSError), ballast.open("wb") as file:
            while True:
                file.write(bytes(4096))
        again = run.tune(100_000)
        assert full.trials <= again.trials <= full.trials + 1
        run.check(lost=2, ahead=1)
        ballast.unlink()
        subprocess.run(["mount", "-o", "remount,size=4m", str(disk)], check=True)
        state = run.tune(full.trials + 200)
        assert (state.phase, state.trials) == ("finished", full.trials + 200)
        run.check(lost=2)
        run.close()


def test_there_is_room_for_the_reason_even_on_a_disk_with_no_byte_left(make, tmp_path, monkeypatch):
    class Filler:
        """Stands for a tuner: fills the disk, and the last page of the journal."""

        def __init__(self, writer, pipeline, clock):
            self.writer = writer

        def interrupt(self, reason):
            raise AssertionError(reason)

        def run(self):
            ballast = tmp_path / "disk" / "ballast"
            with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
                while file.write(bytes(4096)):
                    pass
            while True:
                self.writer.commit([ev.PhaseChanged(time=1.0, used_s=0.0, phase="tuning")])

    for name in ("Pipeline", "Workers"):
        monkeypatch.setattr(launch, name, mock.MagicMock())
    monkeypatch.setattr(launch, "Tuner", Filler)
    monkeypatch.setattr(launch.signal, "signal", lambda *_: None)
    with small_disk(tmp_path / "disk", 1 << 20) as disk:
        run = make(disk / "run")
        assert launch.serve(str(run.path)) == 1
        assert run.state.phase == "failed"
        assert "journal.jsonl: cannot be written to (No space left on device)" in run.state.message
        assert not (run.path / "scratch").exists()


def test_a_file_that_may_not_grow_stops_the_tuner_in_the_same_way(make):
    # without root: the limit cuts a write off in the middle, as a full disk does
    run = make(default={"padding": 900})
    run.ask("budget", trials=100_000)
    pid = os.fork()
    if pid == 0:
        with (run.path / "tuner.log").open("ab") as log:
            os.dup2(log.fileno(), 2)
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (150_001, 150_001))
        os.execve(
            launch.sys.executable,
            [launch.sys.executable, "-m", "tests.faults.stub_tuner", str(run.path)],
            os.environ | {"PYTHONPATH": str(launch.Path(__file__).parents[2])},
        )
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 1
    state = run.state
    assert state.phase == "failed"
    assert "database_tuning_record.json: cannot be written to (File too large)" in state.message
    assert state.message in run.log
    run.check(lost=2, ahead=1)
    assert run.tune(state.trials + 100).phase == "finished"
    run.check(lost=2)


def test_a_read_only_directory_is_refused_and_can_be_read(make, tmp_path):
    with small_disk(tmp_path / "disk", 4 << 20) as disk:
        run = make(disk / "run")
        tuned = run.tune(40)
        remount = ["mount", "-o", "remount,ro", str(disk)]
        # the fork server, which has the log open, ends a moment after the tuner
        wait_for(lambda: subprocess.run(remount, capture_output=True).returncode == 0, "remount")
        with pytest.raises(RunError, match=r"Read-only file system\).*copy"):
            launch.start(run.path)
        with pytest.raises(RunError, match=r"Read-only file system\)"):
            RunWriter(run.path)
        with pytest.raises(RunError, match=r"the stop cannot be asked for \(Read-only file system"):
            run.ask("stop")
        directory = RunDirectory(run.path)
        assert directory.poll() == tuned
        assert not directory.holder().alive


def test_records_are_on_the_disk_before_the_journal_that_speaks_of_them(make, monkeypatch):
    run = make()
    run.tune(10)
    synced = []
    real = os.fsync

    def fsync(descriptor):
        synced.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)
        real(descriptor)

    with RunWriter(run.path) as writer:
        monkeypatch.setattr(os, "fsync", fsync)
        event = ev.PhaseChanged(time=1.0, used_s=writer.state.used_s, phase="tuning")
        writer.commit([event])
        assert synced == []
        writer.commit([event], sync=True)
    assert synced == ["database_tuning_record.json", "journal.jsonl"]


def test_a_clock_that_is_put_back_changes_nothing(make):
    run = make(default={"measure_s": 0.004})
    run.environment["STUB_CLOCK_JUMPS_AFTER_S"] = "0.7"
    process = run.start(100_000)
    started = run.state.started or time.time()
    wait_for(lambda: run.state.time < started - 3000, "the clock to be put back")
    before = run.state
    wait_for(lambda: run.state.trials > before.trials + 20, "more trials")
    assert run.state.used_s > before.used_s
    # what is asked now was asked an hour before this tuner began, says the clock; it counts
    request = run.ask("stop")
    path = run.path / "requests.jsonl"
    path.write_text(path.read_text().replace(f"{request.time}", f"{request.time - 3600}"))
    assert process.wait(30) == 0
    state = run.state
    assert (state.phase, state.message) == ("stopped", "stopped on request")
    assert state.used_s < 60
    run.check()
    run.environment.clear()
    assert run.tune(state.trials + 20).phase == "finished"
    run.check()
