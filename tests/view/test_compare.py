"""Runs side by side: tables, totals, and the cost of reaching the same latency."""

import dataclasses
import json
import math

import numpy as np
import pandas as pd
import pytest
from pandas.testing import assert_frame_equal

from autotune_nb.errors import InputError
from autotune_nb.view.compare import compare, reach


@pytest.fixture
def other(story):
    """Return what makes another story."""
    return type(story)


@pytest.fixture
def slow(story):
    story.start(trials=9)
    story.round(0, [4e-3, 2e-3])
    story.round(1, [5e-4])
    story.round(2, [1e-4])
    return story


@pytest.fixture
def fast(other):
    story = other()
    story.start(trials=9)
    story.round(0, [8e-3, None])
    story.round(1, [25e-5])
    story.round(2, [1e-4])
    story.round(0, [1e-3, 5e-4])
    return story


def test_tasks_are_exact(slow, fast):
    tasks = compare([slow.state, fast.state], ["a", "b"]).tasks
    expected = pd.DataFrame(
        {
            "task": [0, 0, 1, 1, 2, 2],
            "name": ["fused_conv2d_add_relu"] * 2 + ["max_pool2d"] * 2 + ["reshape"] * 2,
            "run": ["a", "b"] * 3,
            "ID": [0, 0, 1, 1, 2, 2],
            "weight": [2, 2, 1, 1, 1, 1],
            "latency (ms)": [2.0, 0.5, 0.5, 0.25, 0.1, 0.1],
            "speed (GFLOPS)": [1000.0, 4000.0, 2.0, 4.0, math.nan, math.nan],
            "trials": [2, 4, 1, 1, 1, 1],
            "state": ["tuning"] * 6,
            "ratio": [1.0, 0.25, 1.0, 0.5, 1.0, 1.0],
        }
    ).astype({"name": "str", "run": "str", "state": "str"})
    assert_frame_equal(tasks, expected)


def test_totals_and_the_same_latency(slow, fast):
    found = compare([slow.state, fast.state], ["a", "b"])
    runs = found.runs.set_index("run")
    assert runs["total (ms)"].to_dict() == pytest.approx({"a": 4.6, "b": 1.35})
    assert runs["ratio"].to_dict() == pytest.approx({"a": 1.0, "b": 1.35 / 4.6})
    assert found.reached_s == pytest.approx(4.6e-3)
    assert runs["trials to same"].to_dict() == {"a": 4, "b": 5}
    assert runs["time to same (s)"].to_dict() == {"a": 10.0, "b": 13.0}
    assert runs["failures"].to_dict() == {"a": 0, "b": 1}


def test_a_latency_can_be_chosen(slow, fast):
    runs = compare([slow.state, fast.state], ["a", "b"], latency_s=1.4e-3).runs
    assert runs["trials to same"].isna().tolist() == [True, False]
    assert runs["trials to same"][1] == 6
    assert math.isnan(runs["time to same (s)"][0])


def test_the_table_is_wide(slow, fast):
    table = compare([slow.state, fast.state], ["a", "b"]).table
    assert list(table.columns) == ["name", "weight", "a (ms)", "b (ms)", "b / a"]
    assert table["b (ms)"].tolist() == [0.5, 0.25, 0.1]
    assert table["b / a"].tolist() == [0.25, 0.5, 1.0]


def test_a_partial_run_is_compared_over_what_it_has(slow, other):
    part = other()
    part.start().round(0, [1e-3])
    found = compare([slow.state, part.state], ["a", "b"])
    runs = found.runs.set_index("run")
    assert runs["partial"].to_dict() == {"a": False, "b": True}
    assert runs["common total (ms)"].to_dict() == pytest.approx({"a": 4.0, "b": 2.0})
    assert runs["ratio"]["b"] == pytest.approx(0.5)
    assert found.reached_s == pytest.approx(4.6e-3)
    assert runs["trials to same"].isna().to_dict() == {"a": False, "b": True}
    assert math.isnan(found.table["b (ms)"][1])


def test_runs_without_results_are_compared_too(story, other):
    found = compare([story.state, other().state], ["a", "b"])
    assert found.reached_s is None
    assert found.runs["trials to same"].isna().all()
    assert "-" in str(found)
    json.dumps(found.to_json(), allow_nan=False)


def retold(story, **changes):
    """The same story with the tasks hashed and named by another version."""
    story.tasks = tuple(
        dataclasses.replace(t, workload_hash=f"9{t.workload_hash}", name=f"new_{t.name}", **changes)
        for t in story.tasks
    )
    return story


def test_tasks_with_other_hashes_are_matched_by_buffers_and_work(slow, fast):
    tasks = compare([slow.state, retold(fast).state], ["a", "b"]).tasks
    assert tasks.groupby("task")["run"].count().tolist() == [2, 1, 1, 1, 1]
    assert tasks[tasks["task"] == 0]["ID"].tolist() == [0, 0]


def test_what_could_be_two_tasks_is_not_matched(slow, fast):
    for story in (slow, fast):
        twin = dataclasses.replace(story.tasks[0], id=3, workload_hash="77")
        story.tasks = (*story.tasks, twin)
    tasks = compare([slow.state, retold(fast).state], ["a", "b"]).tasks
    assert tasks.groupby("task")["run"].count().max() == 1


def test_other_networks_stand_beside_each_other(slow, fast):
    fast.tasks = tuple(
        dataclasses.replace(t, workload_hash=f"9{t.workload_hash}", shapes=(f"float32[{t.id}]",))
        for t in fast.tasks
    )
    found = compare([slow.state, fast.state], ["a", "b"])
    assert len(found.table) == 6
    assert found.table["b / a"].isna().all()
    assert found.runs["ratio"].isna().all()


def test_three_runs(slow, fast, told):
    found = compare([slow.state, fast.state, told.state], ["a", "b", "c"])
    assert list(found.table.columns)[-2:] == ["b / a", "c / a"]
    np.testing.assert_allclose(found.table["c / a"][:2], [1.0, 1.0])


def test_weights_are_those_of_the_first_run(slow, fast):
    fast.tasks = tuple(dataclasses.replace(t, weight=1) for t in fast.tasks)
    runs = compare([slow.state, fast.state], ["a", "b"]).runs
    assert runs["common total (ms)"].tolist() == pytest.approx([4.6, 1.35])


def test_json_has_seconds(slow, fast):
    value = compare([slow.state, fast.state], ["a", "b"]).to_json()
    assert json.loads(json.dumps(value, allow_nan=False)) == value
    assert value["runs"][1]["estimated_total_latency_s"] == pytest.approx(1.35e-3)
    assert value["runs"][1]["trials_to_reach"] == 5
    assert value["tasks"][0]["runs"]["b"] == {
        "id": 0,
        "latency_s": pytest.approx(5e-4),
        "trials": 4,
        "ratio": 0.25,
    }


def test_runs_on_disk_say_what_they_are(slow, run_of):
    a = run_of(slow, "a")
    b = run_of(slow, "b", device_name="another CPU")
    runs = compare([a, b]).runs
    assert runs["run"].tolist() == ["a", "b"]
    assert runs["network"].tolist() == ["toy", "toy"]
    assert runs["target"].tolist() == ["llvm znver3"] * 2
    assert runs["device"].tolist() == ["a CPU", "another CPU"]


def test_what_cannot_be_compared_is_told(slow):
    with pytest.raises(InputError, match="two or more"):
        compare([slow.state])
    with pytest.raises(InputError, match="different names"):
        compare([slow.state, slow.state], ["a", "a"])


def test_names_are_harmless(slow):
    evil = "<img src=x>\x1b[31m"
    slow.tasks = (dataclasses.replace(slow.tasks[0], name=evil), *slow.tasks[1:])
    found = compare([slow.state, slow.state], [evil, "b"])
    assert "<img" not in found._repr_html_()
    assert "\x1b" not in found.to_text()


@pytest.mark.parametrize("columns", [40, 80, 200])
def test_text_fits_the_terminal(slow, fast, columns):
    text = compare([slow.state, fast.state], ["a", "b"]).to_text(columns, ascii_only=True)
    assert max(map(len, text.splitlines())) <= columns
    assert text.isascii()


def test_reach_wants_a_whole_total(told):
    assert reach(told.state, 1.0) is None
