"""The text table: what it says, and that it stays within its width and its characters."""

import dataclasses

import pytest

from autotune_nb.run.lock import Holder
from autotune_nb.run.state import initial
from autotune_nb.view import sanitise, status, text, units

ALIVE = Holder(alive=True, pid=1, host="h", heartbeat=1000.0)
GONE = Holder(alive=False)


def test_table_of_a_run_under_way(told):
    shown = text.render_task_table(told.state, ALIVE, width=80, now=1003.0)
    assert shown.splitlines() == [
        "ID  Name                   Latency (ms)  Speed (GFLOPS)  Trials  Weight  Share",
        "-" * 78,
        ">0  fused_conv2d_add_relu         2.000            1000       3       2   89 %",
        " 1  max_pool2d                   0.5000           2.000       2       1   11 %",
        " 2  reshape                           -               -       0       1      -",
        "-" * 78,
        "Estimated total latency: 4.500 ms (partial: 1 of 3 tasks have no result)",
        "5/20 trials  [#########-----------------------------] 25 %",
        "Used time: 9 s   0.556 trials/s   Time left: 27 s",
        "Next task: 0 fused_conv2d_add_relu",
        "Failed trials: 1; most often build (1): no room",
        "State: tuning, last sign of life 3 s ago",
    ]


@pytest.mark.parametrize("width", [20, 30, 40, 60, 79, 80, 120, 200])
def test_no_line_is_wider_than_the_terminal(told, width):
    shown = text.render_task_table(told.state, ALIVE, width=width, now=1003.0)
    assert max(map(sanitise.width, shown.splitlines())) <= width


def test_a_narrow_terminal_keeps_latency_and_trials(told):
    head = text.render_task_table(told.state, width=55).splitlines()[0]
    assert head.split() == ["ID", "Name", "Latency", "(ms)", "Trials", "Weight"]


def test_many_tasks_show_the_largest_and_say_so(told):
    shown = text.render_task_table(told.state, width=80, max_rows=1)
    assert "fused_conv2d_add_relu" in shown
    assert "max_pool2d" not in shown
    assert "and 2 more tasks" in shown


def test_a_finished_total_is_not_called_partial(story):
    story.start()
    for task in range(3):
        story.round(task, [1e-3])
    shown = text.render_task_table(story.state, width=80)
    assert "Estimated total latency: 4.000 ms\n" in shown


def test_before_any_result_the_total_is_unknown(story):
    assert "total latency: unknown" in text.render_task_table(initial(story.tasks), width=80)


def test_ascii_only(story):
    task = dataclasses.replace(story.tasks[0], name="Größe×日本" * 10)
    story.tasks = (task,)
    shown = text.render_task_table(story.state, width=60, ascii_only=True)
    assert shown.isascii()


@pytest.mark.parametrize(
    "evil",
    [
        "\x1b[31mred\x1b[0m",
        "\x1b]0;title\x07x",
        "\x9b2Jx",
        "a\rb\nc\td",
        "a\u202eb\u2066c",
        "\x1b",
        "a\x00\x08b",
        "\ud800x",
        "\x1b[",
        "\x1b]52;c;aGk=",
    ],
)
def test_escape_sequences_of_names_and_errors_do_not_reach_the_terminal(story, evil):
    story.tasks = (dataclasses.replace(story.tasks[0], name=f"a{evil}z"),)
    story.start(trials=5).round(0, [1e-3]).trial(0, None, error=f"b{evil}y")
    for shown in (
        text.render_task_table(story.state, ALIVE, width=150, now=1003.0),
        text.render_line(story.state),
    ):
        assert all(line.isprintable() for line in shown.split("\n")), repr(shown)
        shown.encode()  # no lone surrogate is left
    assert "title" not in text.render_task_table(story.state)


def test_clean_keeps_words_apart_and_combining_letters():
    assert sanitise.clean("a\r\n  b\x1b[1mc") == "a bc"
    assert sanitise.clean("e\u0301") == "e\u0301"
    assert sanitise.width("e\u0301日") == 3


def test_escape_leaves_no_markup():
    assert sanitise.escape("<b a=\"x\" c='y'>&") == "&lt;b a=&quot;x&quot; c=&#x27;y&#x27;&gt;&amp;"


@pytest.mark.parametrize(
    ("holder", "phase", "state"),
    [
        (None, "tuning", "tuning"),
        (ALIVE, "tuning", "tuning"),
        (ALIVE, "paused", "paused"),
        (ALIVE, "stopped", "starting"),
        (GONE, "tuning", "lost"),
        (GONE, "paused", "lost"),
        (GONE, "stopped", "stopped"),
        (GONE, "new", "new"),
    ],
)
def test_status(story, holder, phase, state):
    run = dataclasses.replace(initial(story.tasks), phase=phase)
    where = status.status(run, holder, now=1001.0)
    assert where.state == state
    assert where.heartbeat_age_s == (1.0 if holder is ALIVE else None)


def test_a_silent_tuner_is_told(told):
    assert "stuck" in status.status(told.state, ALIVE, now=1100.0).text


def test_status_json_has_the_promised_keys(told):
    value = status.to_json(told.state, status.status(told.state, ALIVE, now=1003.0))
    promised = (
        "state trials failed_trials used_s trials_per_s estimated_total_latency_s partial "
        "next_task tasks"
    )
    assert set(promised.split()) <= set(value)
    task = value["tasks"][0]
    keys = "id name weight flops latency_s gflops trials failures state"
    assert set(task) == set(keys.split())
    assert task["latency_s"] == 2e-3
    assert value["partial"] is True


def test_error_totals_over_tasks(story):
    story.start().round(0, [None]).round(1, [None, None])
    story.trial(2, None, error="slow", kind="build_timeout")
    first, second = status.error_totals(story.state)
    assert (first.kind, first.count, first.tasks, first.first_message) == ("build", 3, 2, "no room")
    assert (second.kind, second.count) == ("build_timeout", 1)


def test_progress_is_the_budget_nearer_to_its_end(story):
    story.start(trials=10, seconds=4.0).trial(0, 1e-3).trial(0, 1e-3)
    assert status.progress(story.state) == 0.5
    assert status.progress(initial(story.tasks)) is None


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "-"),
        (float("nan"), "-"),
        (float("inf"), "inf"),
        (0.0, "0"),
        (0.00012345, "0.0001234"),
        (1.23456, "1.235"),
        (12.3456, "12.35"),
        (4909.4, "4909"),
        (123456.7, "123457"),
    ],
)
def test_significant(value, shown):
    assert units.significant(value) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(None, "-"), (float("inf"), "-"), (0.4, "0 s"), (59.6, "1 min 00 s"), (11220, "3 h 07 min")],
)
def test_duration(seconds, shown):
    assert units.duration(seconds) == shown


@pytest.mark.parametrize(
    ("fraction", "shown"), [(0.0, "0 %"), (0.00034, "0.03 %"), (0.012, "1.2 %"), (0.8889, "89 %")]
)
def test_percent(fraction, shown):
    assert units.percent(fraction) == shown
