"""Signals to every part of a tuner at random moments, and a machine that goes away altogether."""

import json
import os
import random
import signal
import subprocess
import sys
import time

import psutil
import pytest

from autotune_nb.errors import TuningFailed
from autotune_nb.run import events as ev
from autotune_nb.run import follow
from autotune_nb.run.directory import RunDirectory
from tests.faults import stub_run
from tests.faults.chaos import Chaos
from tests.faults.stub_run import gone, processes_of, wait_for

pytestmark = [pytest.mark.faults, pytest.mark.timeout(240)]
SLOW = {"build_s": 0.004, "measure_s": 0.004, "search_s": 0.01}


@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
def test_killed_at_random_moments_no_trial_is_lost_or_counted_twice(make, device):
    run = make(device=device, default=SLOW)
    chaos = Chaos()
    state = chaos.torment(run, strikes=14, seed=7)
    assert state.phase == "finished"
    assert state.trials == state.budget.trials
    assert sum(chaos.strikes.values()) == 14
    assert chaos.sessions > 1, "the tuner itself was never hit: choose another seed"
    assert chaos.left == []
    assert chaos.slowest_stop_s < 10  # 0.3 s on an idle machine
    run.check(lost=chaos.lost)
    assert state.failed_trials <= chaos.lost  # nobody but those hit pays
    assert all(task.state == "tuning" for task in state.tasks)


def test_a_search_that_is_killed_finds_nothing_again_that_is_under_way(make):
    run = make(device="cuda:0", default=SLOW | {"build_s": 0.05})
    process = run.start(120)
    for _ in range(4):
        time.sleep(0.3)
        for part in processes_of(process.pid):
            if part.ppid() != process.pid and part.is_running():
                part.kill()
    process.wait(60)
    assert run.state.trials == 120
    run.check(lost=20)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_stops_it_in_order(make, number):
    run = make(default=SLOW)
    process = run.start(5000)
    wait_for(lambda: run.state.trials > 5, "trials")
    family = processes_of(process.pid)
    assert len(family) >= 4  # fork server, its tracker, a searcher, two builders
    process.send_signal(number)
    assert process.wait(30) == 0
    assert (run.state.phase, run.state.message) == ("stopped", number.name)
    assert gone(family) == []
    assert not (run.path / "scratch").exists()
    run.check(lost=0)


@pytest.mark.parametrize("delay_s", [0.0, 0.05, 0.15])
def test_a_signal_during_the_start_stops_it_in_order_too(make, delay_s):
    run = make(default=SLOW)
    process = run.start(5000)  # it holds the run, and has started no worker yet
    time.sleep(delay_s)
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 0
    assert (run.state.phase, run.state.message) == ("stopped", "SIGTERM")


def test_after_a_restart_of_the_machine_the_run_goes_on(make):
    run = make(default=SLOW)
    process = run.start(300)
    wait_for(lambda: run.state.trials > 20, "trials")
    everything = [psutil.Process(process.pid), *processes_of(process.pid)]
    for part in everything:
        if part.is_running():
            part.kill()
    process.wait()
    assert gone(everything) == []
    directory = RunDirectory(run.path)
    with pytest.raises(TuningFailed, match=r"died without a word .*resume .*goes on"):
        follow.until_stopped(directory, timeout_s=5)
    # what was left says that a process, which by now is another one, holds the run
    note = run.path / "lock.holder"
    note.write_text(json.dumps({"pid": os.getpid(), "host": "elsewhere", "started": time.time()}))
    (run.path / "scratch").mkdir(exist_ok=True)
    (run.path / "scratch" / "old.so").write_bytes(b"built by the tuner before")
    assert not directory.holder().alive
    before = run.state.trials
    state = run.tune(before + 50)
    assert (state.phase, state.trials) == ("finished", before + 50)
    run.check(lost=1)


def test_whoever_started_it_may_be_killed(make):
    run = make(default=SLOW)
    run.ask("budget", trials=200)
    code = (
        "import os, pathlib, signal, sys\n"
        "from autotune_nb.tuning import launch\n"
        f"launch._COMMAND = {stub_run.COMMAND!r}\n"
        "print(launch.start(pathlib.Path(sys.argv[1])), flush=True)\n"
        "os.killpg(0, signal.SIGKILL)\n"
    )
    starter = subprocess.run(
        [sys.executable, "-c", code, str(run.path)],
        env=os.environ | {"PYTHONPATH": str(stub_run.ROOT)},
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert starter.returncode == -signal.SIGKILL
    tuner = psutil.Process(int(starter.stdout))
    state = follow.until_stopped(RunDirectory(run.path), timeout_s=60)
    assert (state.phase, state.trials) == ("finished", 200)
    assert gone([tuner]) == []
    run.check(lost=0)


def test_a_worker_that_never_started_is_not_signalled(make, monkeypatch):
    # its process id would be 0, which means everything in the tuner's process group
    from autotune_nb.tuning import process

    sent = []
    monkeypatch.setattr(process.os, "kill", lambda *what: sent.append(what))
    worker = object.__new__(process.Worker)
    worker._process = type("Unborn", (), {"pid": None})()
    worker._signal(signal.SIGKILL)
    assert sent == []


def test_workers_that_cannot_be_started_end_the_run_with_the_reason(make, monkeypatch):
    from autotune_nb.tuning import process

    monkeypatch.setattr(process.time, "sleep", lambda s: None)
    workers = process.Workers({}, "tests.faults.stub_jobs")

    class Refused:
        def __init__(self, **_):
            self.pid = None

        def start(self):
            raise EOFError("unexpected EOF")

    monkeypatch.setattr(workers, "_fork", type("Context", (), {"Process": Refused})())
    with pytest.raises(TuningFailed, match=r"a build process cannot be started \(EOFError"):
        workers.add("build")


def test_the_journal_told_each_search_what_was_measured(make):
    run = make(default=SLOW)
    chance = random.Random(3)
    for _ in range(4):
        process = run.start(10_000)
        wait_for(lambda p=process, n=run.state.trials: run.state.trials > n + 10, "trials")
        time.sleep(chance.uniform(0, 0.2))
        process.kill()
        process.wait()
    budget = run.state.trials + 50
    assert run.tune(budget).trials == budget
    assert len(run.events(ev.TunerStarted)) == 5
    run.check(lost=4)
