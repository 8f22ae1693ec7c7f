"""Candidates, builders, searches and devices that fail in every way there is."""

import pytest

from autotune_nb.run import events as ev
from tests.faults.stub_run import wait_for

pytestmark = [pytest.mark.faults, pytest.mark.timeout(120)]
IMPOSSIBLE = r"impossible times \[.*\]"


@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
@pytest.mark.parametrize(
    ("how", "kind", "message"),
    [
        ("abort", "measure_crash", "the process was killed by SIGABRT"),
        ("out of bounds", "measure_crash", "the process was killed by SIGSEGV"),
        ("exit", "measure_crash", "the process exited with code 3"),
        ("raise", "measure", "ValueError: first line\nthe stub was told to fail\x1b[31m <b>&"),
        ("nan", "measure", "impossible times [nan]"),
        ("inf", "measure", "impossible times [inf]"),
        ("negative", "measure", "impossible times [-0.001]"),
        ("zero", "measure", "impossible times [0.0]"),
        ("nothing", "measure", "impossible times []"),
        ("far", "measure", "impossible times [10000000000.0]"),
    ],
)
def test_a_bad_measurement_costs_its_candidate_alone(make, device, how, kind, message):
    run = make(device=device, tasks=1, default={"measure": ["ok", "ok", how]})
    state = run.tune(48)
    assert (state.phase, state.trials) == ("finished", 48)
    trials = run.events(ev.TrialDone)
    bad = [t for t in trials if int(t.candidate[4:], 16) % 3 == 2]
    assert {(t.error_kind, t.error) for t in bad} == {(kind, message)}
    assert len(bad) == 16 == state.failed_trials  # those beside it in a worker are measured
    assert run.log == ""
    run.check()


@pytest.mark.parametrize(
    ("how", "kind", "message"),
    [
        ("abort", "build_crash", "the process was killed by SIGABRT"),
        ("raise", "build", "ValueError: first line\nthe stub was told to fail\x1b[31m <b>&"),
    ],
)
def test_a_bad_build_costs_its_candidate_alone(make, how, kind, message):
    run = make(tasks=1, default={"build": ["ok", "ok", "ok", how]})
    state = run.tune(48)
    assert (state.trials, state.failed_trials) == (48, 12)
    (error,) = state.tasks[0].errors
    assert (error.kind, error.count, error.first_message) == (kind, 12, message)
    run.check()


@pytest.mark.parametrize("how", ["hang", "spin"])
def test_what_hangs_is_killed(make, how):
    run = make(
        tasks=1,
        default={"measure": ["ok"] * 11 + [how], "build": [how] + ["ok"] * 11},
        options={"build_timeout_s": 1.0, "measure_timeout_s": 1.0},
    )
    state = run.tune(24)
    errors = {e.kind: (e.count, e.first_message) for e in state.tasks[0].errors}
    assert {kind: count for kind, (count, _) in errors.items()} == {
        "build_timeout": 2,
        "measure_timeout": 2,
    }
    assert all(message.startswith("killed after 1.") for _, message in errors.values())
    assert state.trials == 24
    run.check()


def test_a_build_that_eats_memory_is_killed_and_says_so(make):
    run = make(tasks=1, default={"build": ["ok"] * 11 + ["eat"]})
    run.environment["STUB_MEMORY_BYTES"] = str(300 << 20)
    state = run.tune(24)
    (error,) = state.tasks[0].errors
    assert (error.kind, error.count) == ("build_crash", 2)
    assert "GiB of memory; a build process may take 0.2 GiB here" in error.first_message
    run.check()


@pytest.mark.parametrize("tasks", [2, 9])  # with two, both are set aside before the run ends
def test_a_builder_that_always_fails_ends_the_run_soon_and_says_why(make, tasks):
    run = make(tasks=tasks, default={"build": ["raise"]})
    state = run.tune(100_000)
    assert state.phase == "failed"
    assert 96 <= state.trials <= 96 + 16
    assert state.message.startswith(
        f"the last {state.trials} trials all failed, most often build: "
    )
    assert "told to fail" in state.message
    assert "run 'autotune-nb doctor', and resume when the cause is gone" in state.message
    # cured and resumed, all of it is tuned: also what was given up before
    run.tell()
    state = run.tune(state.trials + 200)
    assert state.phase == "finished"
    assert not state.partial
    run.check()


def test_a_task_that_keeps_failing_is_set_aside_and_the_rest_goes_on(make):
    run = make(tasks=3, **{"1": {"build": ["raise"]}})
    state = run.tune(300)
    assert (state.phase, state.trials) == ("finished", 300)
    good, bad, other = state.tasks
    assert (bad.state, bad.best_latency_s) == ("failed", None)
    assert 48 <= bad.trials <= 48 + 16
    assert bad.note.startswith(f"none of {bad.trials} trials gave a result; most often build: ")
    assert "ValueError: first line" in bad.note
    assert good.best_latency_s
    assert other.best_latency_s
    # resumed, it gets one more round and not all of it again
    again = run.tune(400)
    assert again.tasks[1].state == "failed"
    assert again.tasks[1].trials - bad.trials <= 8
    run.check()


def test_all_tasks_failing_one_after_the_other_end_the_run(make):
    run = make(tasks=1, default={"measure": ["nan"]})
    state = run.tune(1000)
    assert state.phase == "failed"
    assert 48 <= state.trials <= 48 + 16
    assert "trials all failed, most often measure: impossible times [nan]" in state.message


@pytest.mark.parametrize("how", ["raise", "abort"])
def test_a_search_that_always_fails_sets_its_task_aside(make, how):
    run = make(tasks=2, **{"0": {"search": [how]}})
    state = run.tune(60)
    assert (state.phase, state.trials) == ("finished", 60)
    assert state.tasks[0].state == "failed"
    assert state.tasks[0].note.startswith("search ")
    assert state.tasks[1].trials == 60


def test_a_search_that_fails_now_and_then_does_not(make):
    run = make(tasks=1, default={"search": ["ok", "ok", "raise"]})
    state = run.tune(120)
    assert (state.phase, state.trials) == ("finished", 120)
    assert state.tasks[0].state == "tuning"


def test_searches_that_all_fail_end_the_run_and_say_why(make):
    run = make(tasks=2, default={"search": ["raise"]})
    state = run.tune(60)
    assert (state.phase, state.trials) == ("failed", 0)
    assert "no task gave a candidate to measure; the first: search error: ValueError" in (
        state.message
    )


@pytest.mark.parametrize(
    ("device", "space", "build_s"),
    [("cpu", 20, 0.0), ("cuda:0", 6, 0.5)],  # slow, so that there is no result yet at its end
)
def test_a_small_space_is_exhausted_and_that_is_no_failure(make, device, space, build_s):
    run = make(tasks=2, default={"space": space, "build_s": build_s}, device=device)
    state = run.tune(1000)
    assert (state.phase, state.trials) == ("finished", 2 * space)
    assert state.message == "no task is left to tune: each is exhausted or set aside"
    assert [task.state for task in state.tasks] == ["exhausted", "exhausted"]
    run.check()


def test_a_device_that_disappears_ends_the_run_and_it_goes_on_when_it_is_back(make):
    run = make(device="cuda:0", tasks=3, default={"measure_s": 0.002})
    process = run.start(100_000)
    wait_for(lambda: run.state.trials > 50, "trials")
    (run.path / "device-gone").touch()
    assert process.wait(60) == 1
    state = run.state
    assert state.phase == "failed"
    assert 96 <= state.failed_trials <= 96 + 16
    assert "trials all failed, most often measure: RuntimeError: CUDA_ERROR_DEVICE_UNAVAILABLE" in (
        state.message
    )
    (run.path / "device-gone").unlink()
    again = run.tune(state.trials + 100)
    assert (again.phase, again.failed_trials) == ("finished", state.failed_trials)
    run.check()
