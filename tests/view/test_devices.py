"""Who measures: what the text, the widgets and JSON say of it, from a journal's events."""

import pytest

from autotune_nb.run import events as ev
from autotune_nb.run.records import TaskInfo
from autotune_nb.run.state import fold, initial
from autotune_nb.view import devices
from autotune_nb.view.status import status, to_json
from autotune_nb.view.text import render_task_table

TASK = TaskInfo(
    id=0, name="matmul", weight=1, flops=1e6, workload_hash="0", operators=(), shapes=()
)


def trial(number, device, used_s, latency_s=1e-3, measure_s=0.1):
    return ev.TrialDone(
        time=used_s,
        used_s=used_s,
        trial=number,
        round=1,
        task=0,
        candidate=str(number),
        latency_s=latency_s,
        error_kind="" if latency_s else "measure",
        measure_s=measure_s,
        device=device,
    )


@pytest.fixture
def state():
    return fold(
        initial([TASK]),
        [
            ev.RoundStarted(time=0.0, round=1, task=0),
            ev.DevicesSeen(time=0.0, present=("a:1", "b:2")),
            ev.RoundSearched(time=0.0, round=1, task=0, candidates=8, search_s=1.0),
            trial(1, "a:1", 1.0),
            trial(2, "a:1", 2.0),
            ev.MeasurementLost(time=2.0, round=1, task=0, candidate="x", device="b:2"),
            trial(3, "a:1", 3.0, latency_s=None),
            trial(4, "b:2", 3.0),
            trial(5, "b:2", 3.0, latency_s=None, measure_s=0.0),  # its build failed
            ev.MeasurementLost(
                time=3.0, round=1, task=0, candidate="x", device="b:2", dropped=True
            ),
            ev.DevicesSeen(time=3.0, present=("a:1", "c:3")),
        ],
    )


def test_each_trial_counts_for_what_measured_it(state):
    found = {d.name: (d.trials, d.failures, d.lost, d.present) for d in state.devices}
    assert found == {
        "a:1": (3, 1, 0, True),
        "b:2": (1, 0, 2, False),
        "c:3": (0, 0, 0, True),
    }
    assert state.devices[0].trials_per_s == 1.0
    assert state.devices[1].trials_per_s is None
    assert state.queue == 2  # eight found, five trials, one dropped


def test_a_lost_measurement_is_no_trial_and_no_failure(state):
    assert (state.trials, state.failed_trials) == (5, 2)


def test_the_text_tells_who_measures(state):
    text = render_task_table(state)
    assert "Device a:1: 3 trials, 1.00 trials/s, 1 failed" in text
    assert "Device b:2: 1 trials, 2 lost and tried again, gone" in text
    assert "Queue: 2 candidates wait" in text


def test_the_table_tells_who_measures(state):
    html = devices.table(state)
    assert "<td>a:1</td><td>3</td><td>1.00</td><td>1</td><td>0</td><td>here</td>" in html
    assert "<td>b:2</td>" in html
    assert "gone" in html


def test_json_tells_who_measures(state):
    found = to_json(state, status(state))
    assert found["queue"] == 2
    assert [d["name"] for d in found["devices"]] == ["a:1", "b:2", "c:3"]
    assert found["devices"][1]["lost"] == 2


def test_one_device_is_not_worth_a_word():
    state = fold(
        initial([TASK]), [ev.RoundStarted(time=0.0, round=1, task=0), trial(1, "cpu", 1.0)]
    )
    assert devices.text_lines(state) == []
    assert devices.table(state) == ""


def test_a_new_tuner_starts_with_nothing_waiting(state):
    started = ev.TunerStarted(time=9.0, pid=1, host="h", versions={}, workers={})
    assert fold(state, [started]).queue == 0
    assert fold(state, [started]).devices[0].trials_per_s is None


def test_folding_in_parts_gives_the_same(state):
    more = [trial(6, "c:3", 4.0), trial(7, "c:3", 5.0)]
    assert fold(fold(state, more[:1]), more[1:]) == fold(state, more)
