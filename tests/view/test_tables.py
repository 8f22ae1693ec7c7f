"""Tables hold exactly what the journal says."""

import math

import pandas as pd
from pandas.testing import assert_frame_equal

from autotune_nb.run.state import initial
from autotune_nb.view import tables

NAN = math.nan


def test_task_table_is_exact(told):
    expected = pd.DataFrame(
        {
            "ID": [0, 1, 2],
            "name": ["fused_conv2d_add_relu", "max_pool2d", "reshape"],
            "latency (ms)": [2.0, 0.5, NAN],
            "speed (GFLOPS)": [1000.0, 2.0, NAN],
            "trials": [3, 2, 0],
            "failures": [1, 0, 0],
            "weight": [2, 1, 1],
            "weighted latency (ms)": [4.0, 0.5, NAN],
            "share (%)": [100 * 4 / 4.5, 100 * 0.5 / 4.5, NAN],
            "best trial": pd.Series([2, 4, None], dtype="Int64"),
            "state": ["tuning", "tuning", "waiting"],
            "note": ["", "", ""],
        }
    )
    assert_frame_equal(tables.task_table(told.state), expected)


def test_task_table_before_any_trial_keeps_its_types(story):
    table = tables.task_table(initial(story.tasks))
    assert table["latency (ms)"].isna().all()
    assert table["share (%)"].isna().all()
    assert table["latency (ms)"].dtype == "float64"


def test_tables_of_nothing_have_their_columns():
    assert list(tables.task_table(initial(()))) == list(tables.task_table(initial(())).columns)
    assert tables.trial_table([]).empty
    assert tables.round_table([]).columns.tolist()[:2] == ["round", "task"]
    assert tables.error_table(initial(())).columns.tolist() == [
        "ID",
        "name",
        "kind",
        "count",
        "first message",
    ]


def test_trial_table_is_exact(told):
    table = tables.trial_table(told.events, told.tasks)
    assert table["trial"].tolist() == [1, 2, 3, 4, 5]
    assert table["round"].tolist() == [1, 1, 1, 2, 2]
    assert table["task"].tolist() == [0, 0, 0, 1, 1]
    assert table["name"].tolist()[3] == "max_pool2d"
    assert table["latency (ms)"].tolist()[:2] == [4.0, 2.0]
    assert math.isnan(table["latency (ms)"][2])
    assert table["speed (GFLOPS)"].tolist()[:2] == [500.0, 1000.0]
    assert table["best"].tolist() == [True, True, False, True, False]
    assert table["result"].tolist() == ["ok", "ok", "build", "ok", "ok"]
    assert table["error"].tolist() == ["", "", "no room", "", ""]
    assert table["used time (s)"].tolist() == [3.0, 4.0, 5.0, 8.0, 9.0]
    assert table["time (UTC)"][0] == pd.Timestamp(1003.0, unit="s", tz="UTC")


def test_trial_table_without_tasks_has_no_speeds(told):
    table = tables.trial_table(told.events)
    assert table["speed (GFLOPS)"].isna().all()
    assert set(table["name"]) == {""}


def test_round_table_shows_the_round_under_way(told):
    table = tables.round_table(told.events)
    assert table["task"].tolist() == [0, 1, 0]
    assert table["start (s)"].tolist() == [0.0, 5.0, 9.0]
    assert table["end (s)"].tolist()[:2] == [5.0, 9.0]
    assert math.isnan(table["end (s)"][2])
    assert table["search (s)"].tolist()[:2] == [2.0, 2.0]


def test_error_table_orders_by_count(story):
    story.start()
    story.round(0, [None])
    story.round(1, [None, None])
    table = tables.error_table(story.state)
    assert table["ID"].tolist() == [1, 0]
    assert table["count"].tolist() == [2, 1]
    assert table["first message"].tolist() == ["no room", "no room"]


def test_info_table(story):
    table = tables.info_table(story.tasks)
    assert table["work (MFLOP)"].tolist() == [2000.0, 1.0, 0.0]
    assert table["operators"][0] == "conv2d, add, relu"
    assert table["trivial"].tolist() == [False, False, True]
