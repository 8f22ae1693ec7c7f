"""Waiting for a tuner: it ends, it answers, it dies, it takes too long."""

import threading
import time

import pytest

from autotune_nb.errors import TuningFailed
from autotune_nb.run import events as ev
from autotune_nb.run import follow
from autotune_nb.run.directory import RunDirectory, RunWriter


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(follow, "_POLL_S", 0.01)


@pytest.fixture
def later():
    """Run a function a moment later, in a thread that is over when the test is."""
    timers = []

    def start(function, delay_s=0.1):
        timers.append(threading.Timer(delay_s, function))
        timers[-1].start()

    yield start
    for timer in timers:
        timer.join()


@pytest.fixture
def writer(run):
    writer = RunWriter(run.path)
    writer.commit([run.teller.start(), *run.teller.round(0, [1e-3])])
    yield writer
    writer.close()


def test_the_last_state_is_that_after_the_tuner_stopped(run, writer, later):
    def end():
        writer.commit([run.teller.trial(1, 1e-3), run.teller.stop("finished", "budget spent")])
        writer.close()

    later(end)
    seen = []
    state = follow.until_stopped(
        RunDirectory(run.path), on_change=lambda s, h: seen.append((s.trials, h.alive))
    )
    assert state == writer.state
    assert state.phase == "finished"
    assert seen[0] == (1, True)
    assert seen[-1] == (2, False)


def test_a_tuner_that_goes_on_is_left_after_the_timeout(run, writer):
    start = time.monotonic()
    state = follow.until_stopped(RunDirectory(run.path), timeout_s=0.05)
    assert time.monotonic() - start < 2
    assert state == writer.state
    with pytest.raises(TuningFailed, match=r"has not stopped within 0\.05 s"):
        follow.until_idle(RunDirectory(run.path), 0.05)


def test_a_tuner_that_died_is_told(run, writer):
    writer.close()
    with pytest.raises(TuningFailed, match=r"died without a word.*autotune-nb resume"):
        follow.until_stopped(RunDirectory(run.path))


def test_a_tuner_that_failed_is_told_why(run, writer):
    writer.commit([run.teller.stop("failed", "all 64 trials failed")])
    writer.close()
    with pytest.raises(TuningFailed, match="all 64 trials failed"):
        follow.until_stopped(RunDirectory(run.path))


def test_a_run_that_was_never_tuned_is_over_at_once(run):
    assert follow.until_stopped(RunDirectory(run.path)).phase == "new"
    follow.until_idle(RunDirectory(run.path), 0.0)


def test_idle_once_the_lock_is_free(run, writer, later):
    later(writer.close)
    follow.until_idle(RunDirectory(run.path), 10.0)
    assert not RunDirectory(run.path).holder().alive


def test_a_request_is_done_when_the_journal_says_so(run, writer, later):
    writer.commit([ev.RequestTaken(time=1.0, request="a", wish="pause")])
    later(lambda: writer.commit([ev.RequestDone(time=2.0, request="a", refused="no")]))
    found = follow.until_done(RunDirectory(run.path), "a", 10.0)
    assert found is not None
    assert found.refused == "no"


def test_a_request_nobody_takes_is_given_up(run, writer):
    assert follow.until_done(RunDirectory(run.path), "a", 0.05) is None
    writer.close()
    start = time.monotonic()
    assert follow.until_done(RunDirectory(run.path), "a", 30.0) is None
    assert time.monotonic() - start < 5
