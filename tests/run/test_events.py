"""Events: each goes to a line of JSON and back, and nothing else passes for one."""

import dataclasses
import json
import math
import types
import typing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune_nb.errors import RunError
from autotune_nb.run import events as ev

NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
TEXT = st.text(max_size=8)


def strategy(hint):
    """Return what a field with this annotation may hold."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return st.one_of(*map(strategy, args))
    if origin is tuple:
        return st.lists(strategy(args[0]), max_size=3).map(tuple)
    if origin is dict:
        return st.dictionaries(TEXT, strategy(args[1]), max_size=3)
    return {
        float: NUMBERS,
        int: st.integers(-(2**40), 2**40),
        bool: st.booleans(),
        str: TEXT,
        type(None): st.none(),
    }[hint]


def instances(cls):
    hints = typing.get_type_hints(cls)
    fields = {f.name: strategy(hints[f.name]) for f in dataclasses.fields(cls)}
    return st.builds(cls, **fields)


@pytest.mark.parametrize("cls", ev.EVENT_TYPES.values(), ids=ev.EVENT_TYPES)
@given(data=st.data())
def test_every_event_goes_there_and_back(cls, data):
    event = data.draw(instances(cls))
    line = ev.encode(event)
    assert "\n" not in line
    assert line.isascii()
    assert ev.decode(line) == event
    assert ev.decode(line.encode()) == event
    assert ev.encode(ev.decode(line)) == line


def test_the_line_of_a_failed_trial_is_exact():
    event = ev.TrialDone(
        time=1.5, used_s=0.5, trial=3, round=2, task=1, candidate="c", error_kind="build", error="é"
    )
    assert ev.encode(event) == (
        '{"event":"trial","time":1.5,"used_s":0.5,"trial":3,"round":2,"task":1,"candidate":"c",'
        '"error_kind":"build","error":"\\u00e9"}'
    )


def test_defaults_are_left_out_but_none_is_not_taken_for_one():
    assert ev.encode(ev.FocusSet(time=1.0)) == '{"event":"focus","time":1.0,"used_s":0.0}'
    assert ev.decode(ev.encode(ev.FocusSet(time=1.0, tasks=()))).tasks == ()


def test_fields_of_a_later_version_are_left_out():
    line = '{"event":"phase","time":1.0,"used_s":0.0,"phase":"paused","mood":{"good":[1]}}'
    assert ev.decode(line) == ev.PhaseChanged(time=1.0, phase="paused")


@pytest.mark.parametrize("latency_s", [math.nan, math.inf])
def test_what_json_has_no_number_for_is_not_written(latency_s):
    event = ev.TrialDone(time=1.0, trial=1, round=1, task=0, candidate="c", latency_s=latency_s)
    with pytest.raises(ValueError, match="JSON"):
        ev.encode(event)


PHASE = {"event": "phase", "time": 1.0, "phase": "paused"}
TRIAL = {"event": "trial", "time": 1, "trial": 1, "round": 1, "task": 0, "candidate": "c"}


@pytest.mark.parametrize(
    "line",
    [
        "",
        "null",
        "[]",
        "3",
        "{",
        "{}",
        '"phase"',
        "garbage",
        b"\xff\xfe",
        b"\x00" * 8,
        "[" * 100_000,
        json.dumps(PHASE) + "}",
        json.dumps(PHASE) + json.dumps(PHASE),
        json.dumps(PHASE)[:-1],
        json.dumps({**PHASE, "event": "no such event"}),
        json.dumps({**PHASE, "event": ["phase"]}),
        json.dumps({"event": "phase", "time": 1.0}),
        json.dumps({**PHASE, "time": "now"}),
        json.dumps({**PHASE, "time": None}),
        json.dumps({**PHASE, "time": True}),
        json.dumps({**PHASE, "phase": 3}),
        json.dumps({**PHASE, "phase": ["paused"]}),
        json.dumps({**TRIAL, "trial": 1.0}),
        json.dumps({**TRIAL, "trial": "1"}),
        json.dumps({**TRIAL, "latency_s": "fast"}),
        json.dumps({**TRIAL, "latency_s": math.nan}),
        json.dumps({**TRIAL, "latency_s": math.inf}),
        json.dumps({**TRIAL, "latencies_s": 1e-3}),
        json.dumps({**TRIAL, "latencies_s": [1e-3, "x"]}),
        json.dumps({**TRIAL, "latencies_s": {"a": 1e-3}}),
        json.dumps({"event": "focus", "time": 1.0, "tasks": [0, None]}),
    ],
)
def test_what_is_no_event_is_refused_with_the_line_in_the_message(line):
    with pytest.raises(RunError, match="journal event") as caught:
        ev.decode(line)
    assert len(str(caught.value)) < 300


def test_whole_numbers_pass_for_seconds():
    assert ev.decode(json.dumps(TRIAL)).time == 1
