"""Tuning on an NVIDIA GPU: small networks through all steps; skipped where there is none."""

import os
import signal

import psutil
import pytest

import autotune_nb as at
from autotune_nb.run import events as ev
from autotune_nb.run import journal

pytestmark = [pytest.mark.gpu, pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def tuned(tmp_path_factory):
    path = tmp_path_factory.mktemp("gpu") / "mlp"
    session = at.TuningSession.create(path, at.network("mlp"), "cuda", batch_size=16)
    session.tune(trials=64).wait(on_change=lambda *_: None)
    return session


def test_the_target_is_completed_from_the_device(tuned):
    target = tuned.manifest.target
    assert target["arch"].startswith("sm_")
    assert target["max_threads_per_block"] >= 512
    assert tuned.manifest.device == "cuda:0"
    assert tuned.manifest.device_name


def test_candidates_are_built_and_measured(tuned):
    state = tuned.state
    assert state.trials == 64
    assert state.failed_trials < 16
    assert not state.partial


def test_the_tuned_network_is_right(tuned):
    result = tuned.evaluate(baselines=["untuned"])
    assert result.correct
    assert result.to_json()["coverage"]["fallback"] == []


def test_the_death_of_the_process_that_owns_the_device_costs_one_candidate(tmp_path, until):
    session = at.TuningSession.create(tmp_path / "run", at.network("mlp"), "cuda", batch_size=16)
    session.tune(trials=96)
    until(lambda: session.state.trials >= 8, "trials", 120)
    tuner = psutil.Process(session.holder.pid)
    spawned = [p for p in tuner.children() if "spawn_main" in " ".join(p.cmdline())]
    assert len(spawned) == 1
    os.kill(spawned[0].pid, signal.SIGKILL)
    state = session.wait(on_change=lambda *_: None)
    assert state.trials == 96
    events, _ = journal.read(session.directory.journal)
    crashes = [e for e in events if isinstance(e, ev.TrialDone) and "crash" in e.error_kind]
    assert len(crashes) <= 1
