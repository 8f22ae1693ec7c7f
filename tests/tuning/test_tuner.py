"""The tuner as a process: budgets, pause, stop, kill and resume, on a real network."""

import os
import signal
import time

import psutil
import pytest

from autotune_nb.errors import BudgetError, RunError, RunLockedError, TuningFailed
from autotune_nb.run import database, journal
from autotune_nb.run import events as ev
from autotune_nb.session import TuningSession
from autotune_nb.tuning import launch

pytestmark = pytest.mark.timeout(180)


def trials_of(session):
    events, _ = journal.read(session.directory.journal)
    return [event for event in events if isinstance(event, ev.TrialDone)]


def descendants(pid):
    return {child.pid: child for child in psutil.Process(pid).children(recursive=True)}


def test_tunes_to_its_budget_and_accounts_for_every_trial(session):
    state = session.tune(trials=28).wait(on_change=lambda *_: None)
    assert (state.phase, state.message) == ("finished", "budget of 28 trials spent")
    assert state.trials == 28
    assert not state.partial
    trials = trials_of(session)
    assert [trial.trial for trial in trials] == list(range(1, 29))
    assert len({trial.candidate for trial in trials}) == 28
    records, bad = database.read_records(session.path)
    assert not bad
    assert [record.digest for record in records] == [trial.record for trial in trials]
    assert not (session.path / "scratch").exists()


def test_streams_trials_one_by_one_and_answers_requests_at_once(session, until):
    session.tune(trials=500)
    until(lambda: session.state.trials >= 3, "three trials")
    counts = set()
    until(lambda: counts.add(session.state.trials) or len(counts) >= 4, "trials to be told")
    assert any(count % 8 for count in counts)  # one by one, not by the batch of 8

    asked = time.monotonic()
    session.pause()
    until(lambda: session.state.phase == "paused", "the pause")
    assert time.monotonic() - asked < 5.0  # 2 s on an idle machine
    paused_at = session.state.trials
    used = session.state.used_s
    busy = [p.cpu_times().user for p in descendants(session.holder.pid).values()]
    time.sleep(1.0)
    assert session.state.trials == paused_at
    after = [p.cpu_times().user for p in descendants(session.holder.pid).values()]
    assert sum(after) - sum(busy) < 0.2  # paused means that nothing computes

    session.resume()
    until(lambda: session.state.trials > paused_at, "a trial after the pause")
    assert session.state.used_s - used < 30

    asked = time.monotonic()
    spent = session.state.trials
    session.set_budget(trials=spent + 10)
    until(lambda: session.state.budget.trials == spent + 10, "the new budget")
    assert time.monotonic() - asked < 5.0
    final = session.wait(on_change=lambda *_: None)
    assert final.trials == spent + 10
    assert all(request.done is not None for request in final.requests)


def test_stop_ends_within_two_seconds_and_leaves_no_process(session, until):
    session.tune(trials=500)
    pid = session.holder.pid
    until(lambda: session.state.trials >= 1, "a trial")
    children = descendants(pid)
    assert len(children) >= 4  # fork server, searcher, two builders
    asked = time.monotonic()
    session.stop()
    assert time.monotonic() - asked < 6.0
    assert session.state.phase == "stopped"
    until(lambda: not any(child.is_running() for child in children.values()), "the children", 5)


def test_kill_and_resume_lose_no_trial_and_measure_none_twice(session, until):
    session.tune(trials=60)
    for threshold in (5, 14, 29):
        until(lambda n=threshold: session.state.trials >= n, f"{threshold} trials")
        pid = session.holder.pid
        children = descendants(pid)
        before = session.state
        os.kill(pid, signal.SIGKILL)
        until(lambda: not session.running, "the lock to be free", 5)
        until(lambda c=children: not any(p.is_running() for p in c.values()), "the workers", 5)
        with pytest.raises(TuningFailed, match="died without a word"):
            session.wait(on_change=lambda *_: None)
        session.resume()
        after = session.state
        assert after.trials >= before.trials
        assert after.used_s >= before.used_s
        assert after.budget.trials == 60
    final = session.wait(on_change=lambda *_: None)
    trials = trials_of(session)
    assert final.trials == len(trials) == 60
    keys = [trial.candidate for trial in trials if trial.candidate]
    assert len(set(keys)) == len(keys)
    records, _ = database.read_records(session.path)
    assert len(records) == 60
    # the same schedule twice would be the same trace of the same task
    traces = {(r.task, r.line.split("],[")[0], r.digest) for r in records}
    assert len(traces) == 60
    totals = [p.estimated_total_latency_s for p in final.curve if not p.partial]
    assert totals == sorted(totals, reverse=True)


def test_a_crashed_worker_costs_its_candidate_and_not_the_run(session, until):
    session.tune(trials=24)
    until(lambda: session.state.trials >= 1, "a trial")
    for child in descendants(session.holder.pid).values():
        # the fork server has the same command line; what it forked has it as a parent
        if child.ppid() != session.holder.pid and child.is_running():
            child.kill()
    final = session.wait(on_change=lambda *_: None)
    assert final.trials == 24
    assert final.phase == "finished"


def test_the_same_seed_gives_the_same_first_candidates(session, untuned_run, tmp_path):
    import shutil

    other = tmp_path / "other"
    shutil.copytree(untuned_run, other)
    again = TuningSession.open(other)
    for one in (session, again):
        one.tune(trials=16).wait(on_change=lambda *_: None)
    first, second = (
        sorted((t.task, t.candidate) for t in trials_of(one) if t.round <= 2)
        for one in (session, again)
    )
    assert first == second


def test_a_second_tuner_is_refused(session, until):
    session.tune(trials=500)
    with pytest.raises(RunLockedError, match="is tuning this run already"):
        launch.start(session.path)
    session.stop()


def test_focus_spends_trials_on_the_chosen_task_only(session):
    session.focus([1])
    state = session.tune(trials=12).wait(on_change=lambda *_: None)
    assert [task.trials for task in state.tasks] == [0, 12, 0][: len(state.tasks)]
    assert state.partial


@pytest.mark.parametrize("budget", [{"trials": 0}, {"trials": -5}, {"seconds": 0}, {"trials": 1.5}])
def test_impossible_budgets_change_nothing(session, budget):
    before = sorted(path.name for path in session.path.iterdir())
    with pytest.raises(BudgetError, match="is not possible; pass a number"):
        session.tune(**budget)
    assert sorted(path.name for path in session.path.iterdir()) == before
    assert not session.running


def test_a_spent_budget_is_an_error_that_says_what_to_do(session):
    session.tune(trials=8).wait(on_change=lambda *_: None)
    with pytest.raises(BudgetError, match=r"spent already \(8 trials, .*pass a larger one"):
        session.tune(trials=8)
    with pytest.raises(RunError, match="is not being tuned, there is nothing to pause"):
        session.pause()


def test_a_run_of_another_tvm_is_refused(session):
    text = (session.path / "manifest.json").read_text()
    (session.path / "manifest.json").write_text(text.replace("0.27.0.post1", "0.26.0"))
    other = TuningSession.open(session.path)
    with pytest.raises(RunError, match=r"made with apache-tvm 0\.26\.0, this environment has"):
        other.tune(trials=8)
    assert not other.running
