"""Plots of the machine and of the whole network: timeline, roofline, measured totals, profile."""

import dataclasses
import json
import math

import numpy as np
import pandas as pd
import pytest
from pandas.testing import assert_frame_equal

from autotune_nb.errors import InputError
from autotune_nb.run import database
from autotune_nb.run import events as ev
from autotune_nb.view import plots
from autotune_nb.view.plots.roofline import buffer_bytes

# Timeline.


def round_of(story, number, searched_s, trials):
    """Search for two seconds until `searched_s`; then trials of (done at, build, measure)."""
    story.used_s = searched_s - 2.0
    story.add(ev.RoundStarted, round=number, task=0)
    story.used_s = searched_s
    story.add(ev.RoundSearched, round=number, task=0, candidates=len(trials), search_s=2.0)
    for done, build_s, measure_s in trials:
        story.used_s = done
        story.trials += 1
        story.add(
            ev.TrialDone,
            trial=story.trials,
            round=number,
            task=0,
            candidate=f"c{story.trials}",
            latency_s=1e-3,
            build_s=build_s,
            measure_s=measure_s,
        )


@pytest.fixture
def timed(story, run_of):
    """Ten seconds: search 0-2, builds of two builders 2-4 and 2-5, a third one 4-6, measuring
    5-6, 6-7 and 7-8, learning 9-10, nothing at 8-9.
    """
    story.add(ev.TunerStarted, pid=1, host="h", versions={}, workers={"search": 1, "build": 2})
    round_of(story, 1, 2.0, [(6.0, 2.0, 1.0), (7.0, 3.0, 1.0), (8.0, 2.0, 1.0)])
    story.used_s = 10.0
    story.add(ev.RoundFinished, round=1, task=0, trials=3, build_s=7.0, measure_s=3.0, learn_s=1.0)
    return run_of(story)


def test_timeline_data_is_exact(timed):
    expected = pd.DataFrame(
        {
            "start (s)": np.arange(10.0),
            "end (s)": np.arange(1.0, 11.0),
            "search": [1.0, 1.0, 0, 0, 0, 0, 0, 0, 0, 0],
            "learn": [0.0, 0, 0, 0, 0, 0, 0, 0, 0, 1.0],
            "build": [0.0, 0, 2.0, 2.0, 2.0, 1.0, 0, 0, 0, 0],
            "measure": [0.0, 0, 0, 0, 0, 1.0, 1.0, 1.0, 0, 0],
            "idle (%)": [0.0, 0, 0, 0, 0, 0, 0, 0, 100.0, 0],
        }
    )
    assert_frame_equal(plots.timeline_data(timed, bins=10), expected)


def test_the_timeline_keeps_the_sums(timed):
    for bins in (1, 3, 7, 120):
        table = plots.timeline_data(timed, bins=bins)
        width = table["end (s)"] - table["start (s)"]
        sums = {step: (table[step] * width).sum() for step in ("search", "build", "measure")}
        assert sums == pytest.approx({"search": 2.0, "build": 7.0, "measure": 3.0})
        assert (table["idle (%)"] * width).sum() == pytest.approx(100.0)


def test_a_build_ends_before_its_measurement(story, run_of):
    story.add(ev.TunerStarted, pid=1, host="h", versions={}, workers={"build": 1})
    round_of(story, 1, 2.0, [(4.0, 1.0, 1.0), (4.5, 1.5, 0.5)])
    table = plots.timeline_data(run_of(story), bins=1)
    assert (table["build"] * 4.5).iloc[0] == pytest.approx(2.5)


def test_timeline_of_a_run_without_times(story, run_of):
    assert plots.timeline_data(run_of(story)).empty
    assert all(len(trace.x) == 0 for trace in plots.timeline(run_of(story)).data)


def test_timeline_draws_the_steps(timed):
    fig = plots.timeline(timed, bins=10)
    assert [trace.name for trace in fig.data] == ["search", "learn", "build", "measure", "idle"]
    assert fig.data[2].y.tolist() == [0, 0, 2, 2, 2, 1, 0, 0, 0, 0]
    assert fig.layout.yaxis.title.text == "processes at it"
    assert fig.layout.yaxis2.title.text == "idle (%)"
    assert fig.layout.xaxis2.title.text == "tuning time (s)"


def test_timeline_says_what_it_needs(told, timed):
    with pytest.raises(InputError, match="a state holds no single trials"):
        plots.timeline(told.state)
    with pytest.raises(InputError, match="number from 1"):
        plots.timeline_data(timed, bins=0)


# Roofline.


@pytest.mark.parametrize(
    ("shape", "size"),
    [
        ("float32[1, 56, 56, 64]", 802816),
        ("float16[3]", 6),
        ("int8[2, 5]", 10),
        ("bfloat16[4]", 8),
        ("float8_e4m3fn[4]", 4),
        ("bool[7]", 7),
        ("float64[]", 8),
        ("int4[6]", 3),
    ],
)
def test_bytes_of_buffers(shape, size):
    assert buffer_bytes(shape) == size


@pytest.mark.parametrize("shape", ["", "float32[?, 3]", "handle[3]", "float32", "<b>[1]"])
def test_unknown_buffers_have_no_size(shape):
    assert math.isnan(buffer_bytes(shape))


@pytest.fixture
def machine(story):
    """Return a run of a task bound by compute and one bound by memory."""
    story = type(story)()
    conv = dataclasses.replace(story.tasks[0], flops=4e9, shapes=("float32[1000000]",) * 2)
    pool = dataclasses.replace(story.tasks[1], flops=1e6, shapes=("float32[250000]",) * 2)
    story.tasks = (conv, pool, story.tasks[2])
    story.start()
    story.round(0, [40e-3])
    story.round(1, [200e-6])
    story.round(2, [1e-4])
    return story


def test_roofline_data_is_exact(machine):
    table = plots.roofline_data(machine.state, peak_gflops=200, bandwidth_gbs=20)
    assert table["ID"].tolist() == [0, 1]  # a copy has no arithmetic
    conv, pool = table.to_dict("records")
    assert conv["intensity (FLOP/byte)"] == 500
    assert conv["traffic (MB)"] == 8
    assert (conv["speed (GFLOPS)"], conv["limit (GFLOPS)"]) == (pytest.approx(100), 200)
    assert conv["attained (%)"] == pytest.approx(50)
    assert conv["bound"] == "compute"
    assert pool["intensity (FLOP/byte)"] == 0.5
    assert pool["limit (GFLOPS)"] == 10
    assert pool["speed (GFLOPS)"] == pytest.approx(5)
    assert pool["bound"] == "memory"
    assert conv["share (%)"] == pytest.approx(100 * 80 / 80.3)


def test_roofline_draws_roof_and_tasks(machine):
    roof, compute, memory = plots.roofline(machine.state, 200, 20).data
    assert roof.y.tolist() == [5, 200, 200]
    assert roof.x.tolist() == [0.25, 10, 1000]
    assert compute.x.tolist() == [500]
    assert memory.y.tolist() == pytest.approx([5])
    assert "50.00 % of what compute allows" in compute.hovertext[0]


def test_roofline_of_a_run_without_results(story):
    (roof,) = plots.roofline(story.state, 200, 20).data
    assert roof.y.tolist() == [100, 200, 200]


def test_roofline_takes_what_was_measured(machine, run_of):
    path = run_of(machine)
    with pytest.raises(InputError, match="measure them once"):
        plots.roofline(path)
    (path / "artifacts").mkdir()
    stored = path / "artifacts" / "roofline.json"
    stored.write_text(json.dumps({"peak_gflops": 200, "bandwidth_gbs": 20}))
    assert_frame_equal(plots.roofline_data(path), plots.roofline_data(machine.state, 200, 20))
    assert plots.roofline_data(path, peak_gflops=100)["attained (%)"][0] == pytest.approx(100)
    stored.write_text("{}")
    with pytest.raises(InputError, match="measure them once"):
        plots.roofline(path)


@pytest.mark.parametrize("peak", [0, -1, math.inf, math.nan])
def test_an_impossible_machine_is_refused(machine, peak):
    with pytest.raises(InputError, match="above 0"):
        plots.roofline(machine.state, peak, 20)


def with_records(story, traces):
    """Give the tasks of a story these traces as their best records."""
    texts = {
        task: database.record_line(task, trace, [1e-3], {}, []) for task, trace in traces.items()
    }
    story.events = [
        dataclasses.replace(e, record=database.digest(texts[e.task]))
        if isinstance(e, ev.TrialDone) and e.task in texts
        else e
        for e in story.events
    ]
    return texts.values()


def test_hover_tells_the_schedule(machine, run_of):
    trace = [[["GetSBlock", [], ["x", "main"], ["b0"]], ["GetLoops", ["b0"], [], ["l1"]],
              ["Split", ["l1", 4, 8], [], ["l2", "l3"]]], []]  # fmt: skip
    texts = with_records(machine, {0: trace, 1: ["another TVM"]})
    path = run_of(machine)
    for text in texts:
        database.append_record(path, text)
    _, compute, memory = plots.roofline(path, 200, 20).data
    assert compute.hovertext[0].endswith("<br>tiles 4×8")
    assert memory.hovertext[0].endswith("of the total")


# Estimated against measured.


def evaluation(mean, std=1e-4, correct=True, estimate=4e-3):
    latency = {"mean": mean, "median": mean, "std": std} if mean else None
    return {"correct": correct, "latency_s": latency, "estimated_total_latency_s": estimate}


def test_estimated_against_measured_is_exact(told):
    table = plots.estimated_against_measured_data(
        [told.state] * 4,
        [evaluation(5e-3), evaluation(5e-3, correct=False), None, evaluation(6e-3, estimate=None)],
        ["a", "b", "c", "d"],
    )
    nan = math.nan
    expected = pd.DataFrame(
        {
            "run": pd.Series(["a", "b", "c", "d"], dtype="str"),
            "estimated (ms)": [4.0, 4.0, 4.5, 4.5],
            "partial": [True] * 4,
            "measured (ms)": [5.0, nan, nan, 6.0],
            "deviation (ms)": [0.1, nan, nan, 0.1],
            "ratio": [1.25, nan, nan, 6 / 4.5],
        }
    )
    assert_frame_equal(table, expected)


def test_the_stored_evaluation_is_taken(told, run_of):
    path = run_of(told)
    assert math.isnan(plots.estimated_against_measured_data([path])["measured (ms)"][0])
    (path / "artifacts").mkdir()
    stored = path / "artifacts" / "evaluation.json"
    stored.write_text(json.dumps(evaluation(5e-3)))
    fig = plots.estimated_against_measured(path)
    assert [trace.x.tolist() for trace in fig.data] == [[4.0], [5.0]]
    assert list(fig.data[1].text) == ["1.25 × the estimate"]
    for broken in ("{", "[]", '{"latency_s": 3, "correct": false}'):
        stored.write_text(broken)
        assert math.isnan(plots.estimated_against_measured_data([path])["measured (ms)"][0])


def test_runs_and_evaluations_must_fit(told):
    with pytest.raises(InputError, match="1 runs, 2 evaluations"):
        plots.estimated_against_measured(told.state, evaluations=[None, None])


# Operator profile.

PROFILE = [
    {"name": "conv", "calls": 2, "duration_s": 3e-3, "estimated_s": 2e-3},
    {"name": "pool", "calls": 1, "duration_s": 1e-3, "estimated_s": None},
    {"name": "conv", "calls": 1, "duration_s": 1e-3, "estimated_s": 1e-3},
    {"name": "copy", "calls": 4, "duration_s": 0.0, "estimated_s": 0.0},
]


def test_operator_profile_data_is_exact():
    expected = pd.DataFrame(
        {
            "name": pd.Series(["conv", "pool", "copy"], dtype="str"),
            "calls": [3, 1, 4],
            "time (ms)": [4.0, 1.0, 0.0],
            "share (%)": [80.0, 20.0, 0.0],
            "estimated (ms)": [3.0, math.nan, 0.0],
        }
    )
    assert_frame_equal(plots.operator_profile_data(PROFILE), expected)
    assert_frame_equal(plots.operator_profile_data(pd.DataFrame(PROFILE)), expected)


def test_operator_profile_sums_up_small_functions():
    table = plots.operator_profile_data(PROFILE, limit=1)
    assert table["name"].tolist() == ["conv", "2 other functions"]
    assert table["calls"].tolist() == [3, 5]
    assert table["share (%)"].tolist() == [80.0, 20.0]
    assert math.isnan(table["estimated (ms)"][1])


def test_operator_profile_draws_times_and_estimates():
    bars, marks = plots.operator_profile(PROFILE).data
    assert bars.x.tolist() == [4.0, 1.0, 0.0]
    assert bars.y[0] == "1 conv"
    assert marks.x[0] == 3.0
    (only,) = plots.operator_profile([{"name": "conv", "duration_s": 1e-3}]).data
    assert only.x.tolist() == [1.0]
    assert len(plots.operator_profile([]).data[0].x) == 0


def test_a_profile_must_be_whole():
    with pytest.raises(InputError, match="has no duration_s"):
        plots.operator_profile([{"name": "conv"}])
    for bad in (-1.0, math.nan):
        with pytest.raises(InputError, match="negative or none"):
            plots.operator_profile([{"name": "conv", "duration_s": bad}])


# All of them.


def test_names_cannot_inject_markup(machine, run_of):
    evil = "<img src=x onerror=alert(1)>"
    machine.tasks = tuple(dataclasses.replace(t, name=evil) for t in machine.tasks)
    trace = [[["GetSBlock", [], [evil, "main"], ["b0"]], ["Tensorize", ["b0"], [f'"{evil}"'], []]],
             []]  # fmt: skip
    (text,) = with_records(machine, {0: trace})
    path = run_of(machine)
    database.append_record(path, text)
    assert "tensorise" in plots.roofline(path, 200, 20).data[1].hovertext[0]
    for fig in (
        plots.timeline(path),
        plots.roofline(path, 200, 20),
        plots.estimated_against_measured(path, names=[evil]),
        plots.operator_profile([{"name": evil, "duration_s": 1.0}]),
    ):
        assert "<img" not in fig.to_json().replace("\\u003c", "<")


@pytest.mark.parametrize("theme", ["light", "dark", "auto"])
def test_every_axis_has_a_title_and_every_plot_a_theme(timed, machine, theme):
    for fig in (
        plots.timeline(timed, theme=theme),
        plots.roofline(machine.state, 200, 20, theme=theme),
        plots.estimated_against_measured(machine.state, theme=theme),
        plots.operator_profile(PROFILE, theme=theme),
    ):
        assert fig.layout.title.text
        assert fig.layout.template.layout.paper_bgcolor is not None
        assert all(axis.title.text for axis in fig.select_yaxes())
        # of axes above each other only the lowest is labelled
        assert list(fig.select_xaxes())[-1].title.text
