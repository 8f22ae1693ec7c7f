"""Several tuners and readers on one run, and requests at awkward moments."""

import threading
import time

import pytest

from autotune_nb.errors import RunLockedError
from autotune_nb.run.directory import RunDirectory, RunWriter
from tests.faults.stub_run import wait_for

pytestmark = [pytest.mark.faults, pytest.mark.timeout(120)]
SLOW = {"build_s": 0.004, "measure_s": 0.004}


def test_of_tuners_started_at_once_one_tunes(make):
    run = make(default=SLOW)
    run.ask("budget", trials=100_000)
    threads = [threading.Thread(target=run.start) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with pytest.raises(RunLockedError, match="is tuning this run"):
        RunWriter(run.path)
    run.ask("stop")
    codes = sorted(process.wait(60) for process in run.processes)
    assert codes == [0, 2, 2, 2]
    assert run.log.count("is tuning this run; watch it with") == 3
    assert run.state.message == "stopped on request"
    run.check()


def test_ten_readers_see_a_run_that_only_grows(make):
    run = make(default=SLOW)
    process = run.start(300)
    wrong, seen = [], []

    def read():
        directory = RunDirectory(run.path)
        last = directory.poll()
        polls = 0
        while process.poll() is None:
            directory.holder()
            state = directory.poll()
            polls += state != last
            if state.trials < last.trials or state.used_s < last.used_s or state.recovered:
                wrong.append((last, state))
            last = state
            time.sleep(0.005)
        seen.append((polls, directory.poll()))

    readers = [threading.Thread(target=read) for _ in range(10)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join(60)
    assert process.wait(60) == 0
    assert wrong == []
    assert len(seen) == 10
    assert all(polls > 5 for polls, _ in seen)
    assert all(state == run.state for _, state in seen)
    assert run.state.trials == 300
    run.check()


def test_a_stop_asked_at_once_is_not_taken_for_an_old_one(make):
    run = make(default=SLOW)
    process = run.start(100_000)  # it holds the run, but has not said that it started
    run.ask("stop")
    assert process.wait(30) == 0
    assert (run.state.phase, run.state.message) == ("stopped", "stopped on request")


def test_a_stop_meant_for_a_tuner_that_died_does_not_stop_the_next(make):
    run = make(default=SLOW)
    process = run.start(100_000)
    wait_for(lambda: run.state.trials > 5, "trials")
    process.kill()
    process.wait()
    run.ask("stop")
    budget = run.state.trials + 40
    state = run.tune(budget)
    assert (state.phase, state.trials) == ("finished", budget)
    refused = [request.refused for request in state.requests if request.wish == "stop"]
    assert refused == ["it was meant for an earlier session"]
    run.check(lost=1)
