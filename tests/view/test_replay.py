"""Replay: the recorded run happens again, in the same order, at the chosen speed."""

import dataclasses
import time

import pytest

from autotune_nb.errors import InputError
from autotune_nb.run import events as ev
from autotune_nb.view.replay import Replay, replay


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def test_events_happen_at_their_time(told, run_of, clock):
    run = Replay(run_of(told), speed=2.0, clock=clock)
    trials = []
    for _ in range(6):
        trials.append(run.poll().trials)
        clock.now += 1.0
    assert trials == [0, 0, 2, 3, 4, 5]  # trials at 3, 4, 5, 8, 9 s; seen at 0, 2, 4, 6, 8, 10 s
    assert run.done
    assert run.poll() == told.state


def test_pauses_are_left_out(told, run_of, clock):
    told.add(ev.PhaseChanged, phase="paused")
    told.time += 10_000
    told.add(ev.PhaseChanged, phase="tuning").trial(0, 1e-3)
    run = Replay(run_of(told), speed=1.0, clock=clock)
    assert run.length_s == 10.0


def test_standing_still_other_speeds_and_seeking(told, run_of, clock):
    run = Replay(run_of(told), speed=1.0, clock=clock)
    clock.now += 4.0
    assert run.poll().trials == 2
    run.speed = 0.0
    clock.now += 100.0
    assert run.poll().trials == 2
    run.speed = 100.0
    clock.now += 1.0
    assert run.poll().trials == 5
    run.speed = 0.0
    run.seek(3.0)
    assert run.poll().trials == 1
    run.seek(8.0)
    assert run.poll().trials == 4
    run.seek(-5.0)
    assert run.poll().trials == 0


def test_a_recording_without_times_plays_trial_by_trial(told, run_of, clock):
    told.events = [dataclasses.replace(event, used_s=0.0) for event in told.events]
    run = Replay(run_of(told), speed=2.0, clock=clock)
    clock.now += 0.51
    assert run.poll().trials == 4


@pytest.mark.parametrize("speed", [-1.0, float("nan"), float("inf")])
def test_what_is_no_speed(told, run_of, speed):
    with pytest.raises(InputError, match="not a speed"):
        Replay(run_of(told), speed=speed)


def test_a_state_cannot_be_replayed(told):
    with pytest.raises(InputError, match="run directory"):
        Replay(told.state)


def test_replay_through_the_view_shows_no_controls(browser, told, run_of):
    path = run_of(told)
    view = replay(path, speed=50.0)
    end = time.monotonic() + 5.0
    while "5 of 20 trials" not in view._head.value and time.monotonic() < end:
        time.sleep(0.05)
    assert "5 of 20 trials" in view._head.value
    assert "lost" not in view._head.value
    shown = [view.widget]
    for widget in shown:
        shown += getattr(widget, "children", ())
    shown = {widget.model_id for widget in shown}
    assert view._table.model_id in shown
    controls = [*view.controls.buttons.values(), view.controls.slider]
    assert not {control.model_id for control in controls} & shown
    assert not (path / "requests.jsonl").exists()
