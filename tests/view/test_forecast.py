"""The forecast: follows the scheduler's rule, claims no more than it may, and meets a real run."""

import dataclasses
import time
from pathlib import Path

import numpy as np
import pytest

from autotune_nb.run.imports import import_database
from autotune_nb.run.state import initial
from autotune_nb.tuning.scheduler import DEFAULT, next_task
from autotune_nb.view import forecast as fc
from autotune_nb.view.guess import moved_bytes
from autotune_nb.view.history import History
from autotune_nb.view.outlook import Outlook

DATA = Path(__file__).parent.parent / "data" / "h200-resnet18"
WEIGHTS = [1, 2, 1, 1, 1, 1, 2, 2, 1, 2, 1, 1, 2, 1, 1, 1, 1, 1, 1]


@pytest.fixture(scope="module")
def history(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "h200"
    run = import_database(DATA, path, weights=WEIGHTS)
    return History(run.journal, initial(run.manifest.tasks))


@pytest.mark.parametrize("trials", [64, 500, 888, 1190, 1254, 1318, 1509, 1776])
def test_picks_the_task_that_the_scheduler_picks(history, trials):
    state = history.at(trials)
    tasks = fc._Tasks(state, 3, np.random.default_rng(0))
    assert tasks.pick(DEFAULT).tolist() == [next_task(state)] * 3


def test_picks_as_the_scheduler_does_with_focus_and_tasks_set_aside(history):
    state = history.at(1776)
    state = dataclasses.replace(state, focus=(3, 4, 5))
    tasks = fc._Tasks(state, 2, np.random.default_rng(0))
    assert tasks.pick(DEFAULT).tolist() == [next_task(state)] * 2
    none = dataclasses.replace(state, focus=())
    assert fc._Tasks(none, 2, np.random.default_rng(0)).pick(DEFAULT) is None


def test_begins_at_the_present_and_never_rises(history):
    state = history.at(1776)
    made = fc.forecast(state, 5000)
    assert made.trials[0] == 1776
    assert made.trials[-1] == 5000
    for line in (made.low_s, made.median_s, made.high_s):
        assert line[0] == pytest.approx(state.estimated_total_latency_s)
        assert (np.diff(line) <= 1e-12).all()
    assert (made.low_s <= made.median_s).all()
    assert (made.median_s <= made.high_s).all()


def test_half_of_a_real_run_forecasts_the_rest(history):
    truth = history.at(1776).estimated_total_latency_s
    expected = fc.forecast(history.at(888), 1776).at(1776)
    assert expected.median_s == pytest.approx(truth, rel=0.1)
    assert expected.low_s <= truth <= expected.high_s


def test_same_state_same_forecast(history):
    state = history.at(888)
    one, two = fc.forecast(state, 2000), fc.forecast(state, 2000)
    assert np.array_equal(one.median_s, two.median_s)


def test_no_forecast_before_the_first_result(story):
    assert fc.forecast(initial(story.tasks), 100) is None
    story.start(trials=8).round(0, [None, None])
    assert fc.forecast(story.state, 100) is None


def test_a_spent_budget_is_the_present(told):
    made = fc.forecast(told.state, 3)
    assert made.at(3).median_s > 0
    assert made.trials.tolist() == [5.0]


def test_time_follows_the_speed_of_the_run(told):
    made = fc.forecast(told.state, 100)
    rate = told.state.trials_per_s
    assert made.at(100).used_s == pytest.approx(told.state.used_s + 95 / rate)


def test_unknown_tasks_are_guessed_and_named(told):
    made = fc.forecast(told.state, 10)
    assert made.guessed == (2,)
    assert made.median_s[0] > told.state.estimated_total_latency_s


def test_a_task_given_up_is_in_no_total(story):
    story.start().round(0, [1e-3, 1e-3]).round(1, [None, None])
    state = story.state
    failed = dataclasses.replace(state.tasks[1], state="failed")
    tasks = (state.tasks[0], failed, dataclasses.replace(state.tasks[2], state="exhausted"))
    made = fc.forecast(dataclasses.replace(state, tasks=tasks), 20)
    assert made.at(2).median_s <= 2e-3 + 1e-12


def test_no_task_gets_faster_than_the_machine_has_shown(story):
    story.tasks = (story.tasks[0], dataclasses.replace(story.tasks[0], id=1))
    story.start().round(0, [1e-3]).round(1, [1e-3])
    made = fc.forecast(story.state, 100_000)
    assert made.low_s[-1] >= 4e-3 / fc._HEADROOM


def test_diminishing_returns(history):
    made = fc.forecast(history.at(1776), 60_000)
    turn = made.diminishing(1000, 0.01)
    assert 1776 <= turn < 59_000
    assert made.gain(turn, turn + 1000) < 0.01
    assert made.diminishing(1000, 0.0) is None


def test_a_long_forecast_is_quick(history):
    state = history.at(1776)
    began = time.perf_counter()
    fc.forecast(state, 100_000)
    assert time.perf_counter() - began < 2.0


def test_bytes_of_shapes():
    assert moved_bytes(["float32[2, 3]", "int8[4]", "float16[]"]) == 24 + 4 + 2


def test_words_beside_the_slider(history):
    state = history.at(1776)
    outlook = Outlook()
    assert "No forecast" in outlook.words(state, 2000)
    assert outlook.update(state, 4000)
    assert not outlook.update(state, 4000)
    words = outlook.words(state, 3000)
    assert "At <b>3000 trials</b>" in words
    assert "80 %" in words
    assert "1000 trials after that are expected to gain" in words
    band = outlook.band(state, 3000)
    assert band.trials[0] == 1776
    assert band.trials[-1] >= 3000 - 64
    assert outlook.band(state, 1000) is None
