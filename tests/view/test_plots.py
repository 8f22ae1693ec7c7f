"""Plots: their data exactly, and that the figures draw it, safely."""

import dataclasses

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pandas.testing import assert_frame_equal, assert_series_equal

from autotune_nb.errors import InputError, RunError
from autotune_nb.run import journal
from autotune_nb.run.directory import RunDirectory
from autotune_nb.run.state import initial
from autotune_nb.view import plots
from autotune_nb.view.compare import compare
from autotune_nb.view.downsample import m4
from autotune_nb.view.theme import COLOURS, template


@pytest.fixture
def whole(story):
    story.start(trials=20)
    story.round(0, [4e-3, 2e-3, None])
    story.round(1, [5e-4])
    story.round(2, [1e-4, 2e-4])
    story.round(0, [1e-3, 3e-3])
    return story


def test_convergence_data_is_exact(whole):
    expected = pd.DataFrame(
        {
            "trial": [1, 2, 4, 5, 7, 8],
            "used time (s)": [3.0, 4.0, 8.0, 11.0, 15.0, 16.0],
            "total (ms)": [8.0, 4.0, 4.5, 4.6, 2.6, 2.6],
            "partial": [True, True, True, False, False, False],
        }
    )
    assert_frame_equal(plots.convergence_data(whole.state), expected)


def test_convergence_draws_the_partial_total_apart(whole):
    fig = plots.convergence(whole.state, references={"ONNX Runtime": 2.5e-3})
    part, total = fig.data
    assert part.name.endswith("partial")
    assert part.x.tolist() == [1, 2, 4, 5]
    np.testing.assert_allclose(part.y, [8.0, 4.0, 4.5, 4.5])
    assert total.x.tolist() == [5, 7, 8]
    np.testing.assert_allclose(total.y, [4.6, 2.6, 2.6])
    assert total.line.shape == "hv"
    assert fig.layout.yaxis.title.text == "estimated total latency (ms)"
    assert fig.layout.xaxis.title.text == "trials"
    assert fig.layout.annotations[0].text == "ONNX Runtime 2.500 ms"


def test_convergence_against_time_and_of_several_runs(whole, told):
    fig = plots.convergence(whole.state, told.state, x="time", names=["a", "b"])
    assert [trace.name for trace in fig.data] == ["a, partial", "a", "b, partial"]
    assert fig.data[1].x.tolist() == [11.0, 15.0, 16.0]


def test_plots_of_a_run_without_trials_are_empty_but_there(story):
    state = initial(story.tasks)
    for plot in (plots.convergence, plots.latency_share, plots.task_convergence):
        assert all(len(trace.x) == 0 for trace in plot(state).data)
    assert plots.trials_per_task(state).data[0].x.tolist() == [0, 0, 0]
    assert plots.convergence_data(state).empty


def test_task_convergence_data_is_exact(whole):
    table = plots.task_convergence_data(whole.state, [0])
    assert table["trial"].tolist() == [1, 2, 7, 8]
    assert table["latency (ms)"].tolist() == [4.0, 2.0, 1.0, 1.0]
    assert table["speed (GFLOPS)"].tolist() == [500.0, 1000.0, 2000.0, 2000.0]


def test_task_convergence_draws_the_largest_first(whole):
    fig = plots.task_convergence(whole.state)
    assert [trace.name.split()[0] for trace in fig.data] == ["0", "1", "2"]


def test_latency_share_data_is_exact(whole):
    table = plots.latency_share_data(whole.state)
    assert table["ID"].tolist() == [0, 1, 2]
    np.testing.assert_allclose(table["weighted latency (ms)"], [2.0, 0.5, 0.1])
    np.testing.assert_allclose(table["share (%)"].sum(), 100)


def test_latency_share_sums_up_small_tasks(whole):
    table = plots.latency_share_data(whole.state, limit=1)
    assert table["ID"].tolist() == [0, -1]
    assert table["name"][1] == "2 other tasks"
    np.testing.assert_allclose(table["weighted latency (ms)"], [2.0, 0.6])
    assert table["trials"].tolist() == [5, 3]


@pytest.mark.parametrize("kind", ["bar", "treemap"])
def test_latency_share_draws_every_task(whole, kind):
    fig = plots.latency_share(whole.state, kind=kind)
    values = fig.data[0].x if kind == "bar" else fig.data[0]["values"]
    np.testing.assert_allclose(values, [2.0, 0.5, 0.1])


def test_trials_per_task(whole):
    table = plots.trials_per_task_data(whole.state)
    assert table["good"].tolist() == [4, 1, 2]
    assert table["failed"].tolist() == [1, 0, 0]
    good, failed = plots.trials_per_task(whole.state).data
    assert good.x.tolist() == [4, 1, 2]
    assert good.x.dtype == np.int32  # int64 goes to the browser as text
    assert failed.x.tolist() == [1, 0, 0]


def test_names_cannot_inject_markup(story):
    evil = "<img src=x onerror=alert(1)><a href='javascript:alert(1)'>"
    story.tasks = (dataclasses.replace(story.tasks[0], name=evil),)
    story.start().round(0, [1e-3, None])
    state = story.state
    figures = [
        plots.convergence(state, names=[evil], references={evil: 1e-3}),
        plots.task_convergence(state),
        plots.latency_share(state),
        plots.latency_share(state, kind="treemap"),
        plots.trials_per_task(state),
    ]
    for fig in figures:
        text = fig.to_json().replace("\\u003c", "<")
        assert "<img" not in text
        assert "<a" not in text


def test_a_run_can_be_given_in_every_form(told, tmp_path):
    told.manifest().write(tmp_path)
    journal.append(tmp_path / journal.FILE, told.events)
    directory = RunDirectory(tmp_path)

    @dataclasses.dataclass
    class Session:
        directory: RunDirectory

    expected = plots.convergence_data(told.state)
    for source in (tmp_path, str(tmp_path), directory, Session(directory)):
        assert_frame_equal(plots.convergence_data(source), expected)


def test_what_cannot_be_plotted_is_told(told, tmp_path):
    with pytest.raises(InputError, match="int cannot be plotted"):
        plots.convergence(3)
    with pytest.raises(RunError, match="not a run directory"):
        plots.convergence(tmp_path)
    with pytest.raises(InputError, match="no such axis"):
        plots.convergence(told.state, x="rounds")
    with pytest.raises(InputError, match="tasks 0 to 2"):
        plots.task_convergence(told.state, [7])
    with pytest.raises(InputError, match="no such plot"):
        plots.latency_share(told.state, kind="pie")


def test_plots_do_not_change_their_input(whole):
    before = whole.state
    plots.convergence(before)
    assert before == whole.state


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=300), st.integers(4, 64))
def test_thinned_lines_keep_ends_and_extremes(values, limit):
    y = np.array(values)
    x = np.arange(len(y), dtype=np.float64)
    kept = m4(x, y, limit)
    assert len(kept) <= max(limit, 4)
    assert kept[0] == 0
    assert kept[-1] == len(y) - 1
    assert y[kept].min() == y.min()
    assert y[kept].max() == y.max()


def _luminance(colour):
    def linear(c):
        return c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4

    channels = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    return sum(w * linear(c) for w, c in zip((0.2126, 0.7152, 0.0722), channels, strict=True))


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_can_be_read_on_its_background(theme):
    layout = template(theme).layout
    low, high = sorted([_luminance(layout.font.color), _luminance(layout.paper_bgcolor)])
    assert (high + 0.05) / (low + 0.05) >= 7


def test_grey_of_the_unknown_theme_can_be_read_on_both():
    grey = _luminance(template("auto").layout.font.color)
    assert 1.05 / (grey + 0.05) >= 3
    assert (grey + 0.05) / (_luminance("#111111") + 0.05) >= 3


def test_colours_differ():
    assert len(set(COLOURS)) == len(COLOURS) >= 7


@pytest.fixture
def recorded(whole, run_of):
    return run_of(whole)


def test_trial_results_data_is_exact(recorded):
    table = plots.trial_results_data(recorded)
    assert table["ID"].tolist() == [0, 0, 1, 2, 2, 0, 0]
    np.testing.assert_allclose(table["slowdown"], [4.0, 2.0, 1.0, 1.0, 2.0, 1.0, 3.0])


def test_trial_results_draws_quantiles(recorded):
    boxes = plots.trial_results(recorded).data
    assert [box.y[0].split()[0] for box in boxes] == ["0", "1", "2"]
    assert boxes[0].lowerfence[0] == 1.0
    assert boxes[0].upperfence[0] == 4.0
    assert boxes[0].median[0] == 2.5


def test_failures(recorded, whole):
    assert plots.failures_data(recorded)["count"].tolist() == [1]
    (bar,) = plots.failures(recorded).data
    assert bar.x.tolist() == [1]
    assert bar.name == "build"
    assert plots.failures(initial(whole.tasks)).data == ()


def test_trial_costs(recorded):
    table = plots.trial_costs_data(recorded)
    assert table["build (s)"].tolist() == [0.25] * 8
    build, measure = plots.trial_costs(recorded, x="time").data
    assert build.x.tolist() == [3.0, 4.0, 5.0, 8.0, 11.0, 12.0, 15.0, 16.0]
    assert set(measure.y.tolist()) == {0.5}


def test_allocation_data_is_exact(recorded):
    table = plots.allocation_data(recorded, tasks=1)
    mine, others = table[table["ID"] == 0], table[table["ID"] == -1]
    assert mine["trial"].tolist() == [3, 4, 6, 8]
    assert mine["trials"].tolist() == [3, 3, 3, 5]
    assert others["trials"].tolist() == [0, 1, 3, 3]
    assert [t.name.split()[0] for t in plots.allocation(recorded).data] == ["0", "2", "1"]


def test_forecast_plot_goes_on_where_the_run_is(recorded, whole):
    table = plots.forecast_data(recorded, 40)
    assert table["trial"].iloc[0] == 8
    assert table["trial"].iloc[-1] == 40
    assert table["median (ms)"].iloc[0] == pytest.approx(2.6)
    assert plots.forecast(recorded).data[-1].name == "forecast"
    with pytest.raises(InputError, match="no result yet"):
        plots.forecast(initial(whole.tasks))


def test_plots_of_trials_need_the_journal(whole):
    for plot in (plots.trial_results, plots.trial_costs, plots.allocation):
        with pytest.raises(InputError, match="holds no single trials"):
            plot(whole.state)


def test_compare_data_matches_tasks_by_what_they_compute(whole, told):
    conv = told.tasks[0]
    other = dataclasses.replace(conv, name="other", shapes=("float32[1]",), workload_hash="98")
    renamed = dataclasses.replace(conv, id=1, name="renamed", workload_hash="99")
    story = type(told)(tasks=(other, renamed))
    story.start().round(0, [9e-3]).round(1, [2e-3])
    table = plots.compare_data([whole.state, story.state], ["a", "b"])
    assert table["name"].tolist() == ["fused_conv2d_add_relu", "max_pool2d", "reshape", "other"]
    np.testing.assert_allclose(table["a (ms)"], [1.0, 0.5, 0.1, np.nan])
    np.testing.assert_allclose(table["b (ms)"], [2.0, np.nan, np.nan, 9.0])
    np.testing.assert_allclose(table["ratio b"], [2.0, np.nan, np.nan, np.nan])


def test_the_plot_and_the_table_match_the_same_tasks(whole, told):
    tables = compare([whole.state, told.state, whole.state], ["a", "b", "c"]).table
    drawn = plots.compare_data([whole.state, told.state, whole.state], ["a", "b", "c"])
    for name in ("a (ms)", "b (ms)", "c (ms)"):
        assert_series_equal(
            tables.set_index("name")[name].sort_index(), drawn.set_index("name")[name].sort_index()
        )
    twin = dataclasses.replace(whole.tasks[0], id=3, workload_hash="77")
    whole.tasks = (*whole.tasks, twin)  # what could be either of two is neither, in both
    told.tasks = (dataclasses.replace(told.tasks[0], workload_hash="78"), *told.tasks[1:])
    assert len(compare([whole.state, told.state], ["a", "b"]).table) == 5
    assert len(plots.compare_data([whole.state, told.state], ["a", "b"])) == 5


def test_totals_tell_when_the_same_was_reached(whole, told):
    fast = type(told)().start().round(0, [3e-3]).round(1, [1e-4]).round(2, [1e-4])
    fast.round(0, [2e-3, 1.2e-3, 1e-3])
    table = plots.totals_data([whole.state, fast.state, told.state], ["a", "b", "partial"])
    np.testing.assert_allclose(table["total (ms)"], [2.6, 2.2, 4.5])
    assert table["partial"].tolist() == [False, False, True]
    # 2.6 ms, the slowest of the whole totals: run a has it at trial 7, run b at its 5th
    np.testing.assert_allclose(table["trials to same"], [7, 5, np.nan])
    assert table["time to same (s)"].tolist()[:2] == [15.0, 13.0]


def test_compare_draws_curves_and_tasks(whole, told):
    fig = plots.compare([whole.state, told.state], names=["a", "b"])
    names = [trace.name for trace in fig.data]
    assert names == ["a, partial", "a", "b, partial", "a, tasks", "b, tasks"]
    np.testing.assert_allclose(fig.data[3].x, [1.0, 0.5, 0.1])
    assert plots.compare([whole.state]).data


def test_what_cannot_be_compared(whole):
    with pytest.raises(InputError, match="no runs"):
        plots.compare([])
    with pytest.raises(InputError, match="different one for each"):
        plots.compare([whole.state, whole.state], names=["a", "a"])
