"""Rounds through real workers where measuring does not exclude building, as on a GPU."""

import dataclasses
import json

import pytest

from autotune_nb.run import events as ev
from autotune_nb.run import requests as rq
from autotune_nb.run.directory import RunWriter
from autotune_nb.tuning.clock import Clock
from autotune_nb.tuning.pipeline import Pipeline
from autotune_nb.tuning.plan import build_timeout_s, make_plan
from autotune_nb.tuning.preload import TARGET_VARIABLE
from autotune_nb.tuning.process import Workers
from autotune_nb.tuning.tuner import Tuner


@pytest.mark.timeout(180)
def test_exported_candidates_are_measured_by_a_process_of_their_own(session):
    rq.append(session.directory.requests, "budget", trials=20)
    with RunWriter(session.path) as writer:
        manifest = writer.directory.manifest
        plan = dataclasses.replace(
            make_plan(manifest, 2), exclusive=False, searchers=2, owners={0: 0, 1: 1, 2: 0}
        )
        target = json.dumps(manifest.target)
        workers = Workers({TARGET_VARIABLE: target, "TVM_NUM_THREADS": "2"})
        scratch = session.path / "scratch"
        scratch.mkdir()
        try:
            pipeline = Pipeline(
                workers,
                plan,
                manifest.options,
                directory=str(session.path),
                target=target,
                device="cpu",
                scratch=str(scratch),
            )
            assert [w.role for w in workers] == ["search"] * 2 + ["build"] * 2 + ["measure"]
            outcome = Tuner(writer, pipeline, Clock(0.0)).run()
        finally:
            workers.close()
    assert outcome == "finished"
    state = session.state
    assert state.trials == 20
    assert state.failed_trials == 0
    assert not state.partial
    assert list(scratch.iterdir()) == []  # what was measured is removed


def test_a_plan_deals_the_work_out_evenly(session):
    manifest = session.manifest
    flops = [8e9, 1e6, 1e6, 4e9, 4e9, 1e6, 1e6, 1e6]
    tasks = tuple(
        dataclasses.replace(manifest.tasks[0], id=i, weight=1, flops=f) for i, f in enumerate(flops)
    )
    manifest = dataclasses.replace(manifest, tasks=tasks, device="cuda:0")
    plan = make_plan(manifest, 6)
    assert (plan.exclusive, plan.searchers, plan.builders) == (False, 2, 4)
    assert plan.owners[3] == plan.owners[4] == 1 - plan.owners[0]
    counts = [list(plan.owners.values()).count(s) for s in (0, 1)]
    assert max(counts) - min(counts) <= 2


def test_a_plan_for_a_cpu_measures_where_it_builds(session):
    plan = make_plan(session.manifest, 2)
    assert (plan.exclusive, plan.searchers, plan.builders) == (True, 2, 2)


def test_events_of_a_trial_carry_its_cost(session):
    session.tune(trials=8).wait(on_change=lambda *_: None)
    from autotune_nb.run import journal

    events, _ = journal.read(session.directory.journal)
    trials = [e for e in events if isinstance(e, ev.TrialDone)]
    assert all(t.build_s > 0 and t.measure_s > 0 and t.device == "cpu" for t in trials)
    finished = [e for e in events if isinstance(e, ev.RoundFinished)]
    assert sum(e.trials for e in finished) == 8


def test_build_time_outs_are_learnt():
    assert build_timeout_s([0.1] * 7, 20.0) == 20.0
    assert build_timeout_s([0.1] * 8, 20.0) == 3.0
    assert build_timeout_s([2.0] * 8, 20.0) == 10.0
    assert build_timeout_s([9.0] * 8, 20.0) == 20.0
