"""State: what each event does to it, exactly, and which events cannot be."""

import dataclasses
import math

import pytest

from autotune_nb.errors import BudgetError, RunError
from autotune_nb.run import events as ev
from autotune_nb.run.records import Budget, CurvePoint, ErrorCount, RequestState
from autotune_nb.run.state import Draft, fold, initial


def changed(before, after):
    """Return the fields of a state or task that differ."""
    return {
        f.name: getattr(after, f.name)
        for f in dataclasses.fields(after)
        if getattr(after, f.name) != getattr(before, f.name)
    }


def test_a_new_run(blank):
    assert [t.state for t in blank.tasks] == ["waiting"] * 3
    assert blank.phase == "new"
    assert blank.partial
    assert blank.estimated_total_latency_s is None
    assert blank.trials_per_s is None
    assert blank.time_left_s is None
    assert blank.next_task is None
    assert fold(blank, []) == blank


def test_a_run_of_no_tasks_has_no_total():
    assert initial([]).estimated_total_latency_s is None
    assert not initial([]).partial


def test_tuner_started(blank, teller):
    event = dataclasses.replace(teller.start(), pid=42)
    assert changed(blank, fold(blank, [event])) == {
        "phase": "starting",
        "pid": 42,
        "started": 1001.0,
        "time": 1001.0,
        "used_s": 1.0,
        "versions": {"tvm": "0.27"},
    }


def test_a_tuner_that_starts_ends_the_rounds_of_a_killed_one(blank, teller):
    state = fold(blank, [teller.start(), teller.open(1), teller.open(2)])
    assert state.open_rounds == ((1, 1), (2, 2))
    assert state.next_task == 2
    state = fold(state, [teller.start()])
    assert state.open_rounds == ()
    assert state.next_task is None
    assert state.rounds == 2


def test_phase(blank):
    event = ev.PhaseChanged(time=5.0, used_s=2.0, phase="paused")
    assert changed(blank, fold(blank, [event])) == {
        "phase": "paused",
        "recent": ((2.0, 0),),
        "time": 5.0,
        "used_s": 2.0,
    }


def test_budget_and_focus(blank):
    state = fold(
        blank,
        [
            ev.BudgetSet(time=1.0, trials=100, seconds=60.0),
            ev.FocusSet(time=2.0, tasks=(0, 2)),
        ],
    )
    assert changed(blank, state) == {
        "budget": Budget(trials=100, seconds=60.0),
        "focus": (0, 2),
        "time": 2.0,
    }
    state = fold(state, [ev.FocusSet(time=3.0), ev.BudgetSet(time=3.0)])
    assert state.focus is None
    assert state.budget == Budget()


def test_a_good_trial(blank, teller):
    events = [teller.open(1), teller.trial(1, 2e-3)]
    state = fold(blank, events)
    assert changed(blank.tasks[1], state.tasks[1]) == {
        "trials": 1,
        "best_latency_s": 2e-3,
        "best_trial": 1,
        "best_record": "r1",
        "state": "tuning",
    }
    assert state.tasks[0] is blank.tasks[0]
    assert state.trials == 1
    assert state.failed_trials == 0
    assert state.build_s == 0.25
    assert state.measure_s == 0.5
    assert state.estimated_total_latency_s == 4e-3  # weight 2
    assert state.partial
    assert state.tasks[1].gflops == 1e9 / 2e-3 / 1e9
    assert state.curve == (
        CurvePoint(
            trial=1,
            used_s=2.0,
            task=1,
            latency_s=2e-3,
            estimated_total_latency_s=4e-3,
            partial=True,
        ),
    )


def test_a_slower_trial_or_an_equal_one_counts_and_changes_no_best(blank, teller):
    state = fold(blank, [teller.trial(0, 1e-3), teller.trial(0, 2e-3), teller.trial(0, 1e-3)])
    assert state.tasks[0].best_trial == 1
    assert state.tasks[0].trials == 3
    assert len(state.curve) == 1


def test_the_total_is_whole_when_each_task_has_a_result(blank, teller):
    state = fold(blank, [teller.trial(i, 1e-3) for i in (0, 1, 2)] + [teller.trial(2, 5e-4)])
    assert not state.partial
    assert [point.partial for point in state.curve] == [True, True, False, False]
    assert state.curve[-1].estimated_total_latency_s == math.fsum([1e-3, 2e-3, 3 * 5e-4])
    assert state.estimated_total_latency_s == state.curve[-1].estimated_total_latency_s


def test_failed_trials(blank, teller):
    state = fold(
        blank,
        [
            teller.trial(0, None, error="first", kind="build"),
            teller.trial(0, None, error="second", kind="build"),
            teller.trial(0, None, error="slow", kind="measure_timeout"),
        ],
    )
    assert state.failed_trials == 3
    assert state.tasks[0].failures == 3
    assert state.tasks[0].errors == (
        ErrorCount(kind="build", count=2, first_message="first"),
        ErrorCount(kind="measure_timeout", count=1, first_message="slow"),
    )
    assert state.tasks[0].best_latency_s is None
    assert state.curve == ()


def test_a_round(blank, teller):
    state = fold(blank, [teller.open(2)])
    assert (state.rounds, state.next_task) == (1, 2)
    state = fold(state, [teller.searched(2, 2, search_s=0.5)])
    assert state.search_s == 0.5
    state = fold(state, [teller.trial(2, 1e-3), teller.trial(2), teller.close(2)])
    assert state.next_task is None
    assert state.tasks[2].rounds == ((2, 1e-3),)
    assert state.recent == ((5.0, 2),)


def test_rounds_overlap(blank, teller):
    first = teller.open(0)
    second = teller.open(1)
    done = ev.RoundFinished(
        time=9.0, used_s=9.0, round=1, task=0, trials=0, build_s=0.0, measure_s=0.0
    )
    state = fold(blank, [first, second, done])
    assert state.open_rounds == ((2, 1),)
    assert state.tasks[0].rounds == ((0, None),)


def test_the_rate_is_that_of_the_last_rounds(blank, teller):
    state = fold(blank, [ev.PhaseChanged(time=1.0, used_s=0.0, phase="tuning")])
    for _ in range(40):
        state = fold(state, teller.round(0, [1e-3] * 4))  # 7 s a round
    assert state.trials == 160
    assert state.trials_per_s == pytest.approx(4 / 7)
    assert len(state.recent) <= 64 / 4 + 2


def test_a_pause_does_not_slow_the_rate(blank, teller):
    state = fold(blank, teller.round(0, [1e-3] * 4))
    pause = ev.PhaseChanged(time=1e6, used_s=state.used_s, phase="tuning")
    state = fold(state, [pause, *teller.round(0, [1e-3] * 4)])
    assert state.recent[0] == (7.0, 4)
    assert state.trials_per_s == pytest.approx(4 / 7)


def test_time_left(blank, teller):
    events = [
        ev.BudgetSet(time=1.0, trials=12),
        ev.PhaseChanged(time=1.0, phase="tuning"),
        *teller.round(0, [1e-3] * 4),
    ]
    state = fold(blank, events)
    assert state.time_left_s == pytest.approx(8 / (4 / 7))
    state = fold(state, [ev.BudgetSet(time=1.0, used_s=7.0, trials=12, seconds=10.0)])
    assert state.time_left_s == pytest.approx(3.0)
    state = fold(state, [ev.BudgetSet(time=1.0, used_s=7.0, seconds=5.0)])
    assert state.time_left_s == 0.0


@pytest.mark.parametrize(
    ("budget", "trials", "used_s", "reached", "text"),
    [
        (Budget(), 10**9, 1e9, False, "no limit"),
        (Budget(trials=5), 4, 1e9, False, "5 trials"),
        (Budget(trials=5), 5, 0.0, True, "5 trials"),
        (Budget(seconds=1.5), 10**9, 1.4, False, "1.5 s"),
        (Budget(seconds=1.5), 0, 1.5, True, "1.5 s"),
        (Budget(trials=5, seconds=60), 1, 61.0, True, "5 trials or 60 s"),
    ],
)
def test_budgets(budget, trials, used_s, reached, text):
    assert budget.reached(trials, used_s) is reached
    assert str(budget) == text


@pytest.mark.parametrize(
    ("trials", "seconds", "budget"),
    [
        (None, None, Budget()),
        (1, 0.5, Budget(trials=1, seconds=0.5)),
        (64.0, None, Budget(trials=64)),
        (None, 60, Budget(seconds=60.0)),
    ],
)
def test_a_budget_that_a_person_may_pass(trials, seconds, budget):
    assert Budget.checked(trials, seconds) == budget


@pytest.mark.parametrize(
    ("trials", "seconds", "shown"),
    [
        (0, None, "0 trials"),
        (-1, None, "-1 trials"),
        (1.5, None, r"1\.5 trials"),
        (math.inf, None, "inf trials"),
        (math.nan, None, "nan trials"),
        (True, None, "True trials"),
        (None, 0, "0 seconds"),
        (None, -1.0, r"-1\.0 seconds"),
        (None, math.inf, "inf seconds"),
        (None, math.nan, "nan seconds"),
    ],
)
def test_a_budget_that_cannot_be(trials, seconds, shown):
    with pytest.raises(BudgetError, match=f"{shown} is not possible"):
        Budget.checked(trials, seconds)


def test_a_task_set_aside(blank, teller):
    aside = ev.TaskSetAside(time=1.0, task=0, state="failed", reason="no candidate builds")
    state = fold(blank, [aside, teller.trial(0, 1e-3)])
    assert (state.tasks[0].state, state.tasks[0].note) == ("failed", "no candidate builds")
    assert state.tasks[0].trials == 1  # one already in flight still counts


def test_requests(blank):
    taken = ev.RequestTaken(time=1.0, request="a", wish="pause")
    state = fold(blank, [taken])
    assert state.requests == (RequestState(id="a", wish="pause", taken=1.0),)
    # a tuner that was killed before it acted on it takes it again
    state = fold(state, [dataclasses.replace(taken, time=2.0)])
    state = fold(state, [ev.RequestDone(time=3.0, request="a", refused="no")])
    assert state.requests == (
        RequestState(id="a", wish="pause", taken=2.0, done=3.0, refused="no"),
    )


def test_recovered(blank):
    events = [ev.Recovered(time=1.0, what="x"), ev.Recovered(time=1.0, what="y")]
    assert fold(blank, events).recovered == ("x", "y")


def test_a_lost_record_gives_way_to_the_next_best(blank, teller):
    state = fold(blank, [teller.trial(0, 2e-3), teller.trial(0, 1e-3), teller.trial(1, 5e-3)])
    lost = ev.RecordLost(
        time=9.0, trial=2, task=0, best_trial=1, best_latency_s=2e-3, best_record="r1"
    )
    after = fold(state, [lost])
    assert changed(state.tasks[0], after.tasks[0]) == {
        "best_latency_s": 2e-3,
        "best_trial": 1,
        "best_record": "r1",
    }
    assert after.trials == state.trials  # what was spent stays spent
    assert after.estimated_total_latency_s == 2e-3 + 2 * 5e-3
    after = fold(after, [ev.RecordLost(time=9.0, trial=1, task=0), teller.trial(2, 1e-3)])
    assert after.tasks[0].best_latency_s is None
    assert after.partial
    assert after.curve[-1].partial
    assert after.curve[-1].estimated_total_latency_s == math.fsum([2 * 5e-3, 3 * 1e-3])


def test_tuner_stopped(blank, teller):
    state = fold(blank, [teller.start(), teller.open(0), teller.stop("failed", "no room")])
    assert (state.phase, state.message, state.pid) == ("failed", "no room", None)
    assert state.open_rounds == ()
    state = fold(state, [teller.start()])
    assert (state.phase, state.message) == ("starting", "")


def test_used_time_never_goes_back_but_the_clock_may(blank):
    state = fold(
        blank,
        [
            ev.PhaseChanged(time=100.0, used_s=5.0, phase="tuning"),
            ev.PhaseChanged(time=50.0, used_s=1.0, phase="paused"),
        ],
    )
    assert state.used_s == 5.0
    assert state.time == 50.0


def told(teller):
    return [teller.start(), *teller.round(0, [1e-3]), teller.open(1)]


@pytest.mark.parametrize(
    ("event", "message"),
    [
        ({"trial": 1}, "trial 1 after trial 1"),
        ({"trial": 3}, "trial 3 after trial 1"),
        ({"task": 3}, "task 3, the run has 3"),
        ({"task": -1}, "task -1"),
        ({"round": 3}, "round 3 before its start"),
        ({"latency_s": 0.0}, "0.0 seconds"),
        ({"latency_s": -1e-3}, "-0.001 seconds"),
        ({"latency_s": math.nan}, "nan seconds"),
        ({"latency_s": math.inf}, "inf seconds"),
    ],
)
def test_trials_that_cannot_be(blank, teller, event, message):
    state = fold(blank, told(teller))
    trial = {"trial": 2, "round": 2, "task": 0, "candidate": "x", "latency_s": 1e-3}
    fold(state, [ev.TrialDone(time=1.0, **trial)])
    with pytest.raises(RunError, match=message):
        fold(state, [ev.TrialDone(time=1.0, **{**trial, **event})])


@pytest.mark.parametrize(
    "event",
    [
        ev.RoundStarted(time=1.0, round=2, task=0),
        ev.RoundStarted(time=1.0, round=1, task=0),
        ev.RoundStarted(time=1.0, round=3, task=9),
        ev.RoundSearched(time=1.0, round=1, task=0, candidates=1, search_s=0.0),
        ev.RoundSearched(time=1.0, round=2, task=0, candidates=1, search_s=0.0),
        ev.RoundFinished(time=1.0, round=1, task=0, trials=1, build_s=0.0, measure_s=0.0),
        ev.RoundFinished(time=1.0, round=3, task=1, trials=1, build_s=0.0, measure_s=0.0),
        ev.TaskSetAside(time=1.0, task=3, state="failed", reason=""),
        ev.RequestDone(time=1.0, request="unknown"),
        ev.RecordLost(time=1.0, trial=7, task=0),
        ev.RecordLost(time=1.0, trial=1, task=1),
        ev.RecordLost(time=1.0, trial=1, task=5),
    ],
)
def test_events_that_cannot_be_leave_a_draft_as_it_was(blank, teller, event):
    draft = Draft(blank)
    for good in told(teller):
        draft.apply(good)
    before = draft.freeze()
    with pytest.raises(RunError, match="the journal"):
        draft.apply(dataclasses.replace(event, used_s=99.0))
    assert draft.freeze() == before


def test_a_request_is_answered_once(blank):
    taken = ev.RequestTaken(time=1.0, request="a", wish="stop")
    done = ev.RequestDone(time=1.0, request="a")
    state = fold(blank, [taken, done])
    for event in (taken, done):
        with pytest.raises(RunError, match="request a"):
            fold(state, [event])


def test_an_event_of_no_kind_is_refused(blank):
    with pytest.raises(RunError, match="unknown kind"):
        fold(blank, [ev.Event(time=1.0)])


def test_every_event_has_its_handler():
    assert all(hasattr(Draft, f"_on_{kind}") for kind in ev.EVENT_TYPES)


def test_folding_changes_no_earlier_state(blank, teller):
    first = fold(blank, teller.round(0, [1e-3]))
    copy = dataclasses.replace(first)
    fold(first, teller.round(0, [5e-4, None]))
    assert first == copy
    assert blank == initial([task.info for task in blank.tasks])
