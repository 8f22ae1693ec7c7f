"""The live view, driven without a browser: what it shows, asks for, sends and leaves behind."""

import dataclasses
import gc
import threading
import time

import ipywidgets
import numpy as np
import plotly.graph_objects as go
import pytest

from autotune_nb.run import events as ev
from autotune_nb.run import requests
from autotune_nb.run.lock import Holder, RunLock
from autotune_nb.run.records import TaskInfo
from autotune_nb.run.state import fold, initial
from autotune_nb.view import curve, markup, registry, widgets
from autotune_nb.view.history import History
from autotune_nb.view.widgets import View

EVIL = "<script>alert(1)</script><img src=x onerror='alert(2)'>"


def until(condition, seconds=5.0):
    """Wait for the poller; tell whether it did what was expected."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.02)
    return condition()


def asked(path):
    return requests.read(path / "requests.jsonl")[0]


@pytest.fixture
def held(monkeypatch):
    """Let the lock say that a tuner is alive."""

    def holder(self):
        return Holder(alive=True, pid=1, host="h", heartbeat=time.time())

    monkeypatch.setattr(RunLock, "holder", holder)


def test_first_paint_shows_everything(browser, told, run_of, held):
    view = View(run_of(told))
    assert "tuning" in view._head.value
    assert "partial: 1 of 3 tasks have no result" in view._head.value
    assert "5 of 20 trials" in view._head.value
    assert "fused_conv2d_add_relu" in view._table.value
    assert "build: 1 in 1 task" in view._failures.value
    np.testing.assert_allclose(view._curve.widget.data[0].y, [8.0, 4.0, 4.5, 4.5])


def test_view_follows_the_journal(browser, told, run_of, held):
    path = run_of(told)
    view = View(path)
    told.trial(0, 1e-3)
    run_of(told)
    assert until(lambda: "6 of 20 trials" in view._head.value)
    assert until(lambda: view._curve.widget.data[0].y[-1] == 2.5)
    assert "▾ 1.000" in view._table.value  # the new best is marked
    assert not view._error.value


def test_mark_of_a_new_best_goes_away(browser, told, run_of, held, monkeypatch):
    monkeypatch.setattr(widgets, "_MARK_S", 0.3)
    path = run_of(told)
    view = View(path)
    told.trial(0, 1e-3)
    run_of(told)
    assert until(lambda: "▾" in view._table.value)
    assert until(lambda: "▾" not in view._table.value)


def test_a_dead_tuner_is_shown_as_lost(browser, told, run_of):
    view = View(run_of(told))
    assert "lost" in view._head.value
    assert "resume" in view._head.value


def test_a_damaged_journal_is_shown_and_survived(browser, told, run_of, held):
    path = run_of(told)
    view = View(path)
    with (path / "journal.jsonl").open("ab") as file:
        file.write(b"<b>not json\n")
    told.trial(0, 1e-3)
    run_of(told)
    assert until(lambda: "6 of 20 trials" in view._head.value)
    assert "1 damaged lines passed over" in view._failures.value
    view.past.value = 3
    assert "4.000" not in view._table.value
    assert "2.000" in view._table.value
    assert not view._error.value


def test_an_error_of_the_poller_is_shown_and_survived(browser, told, run_of, held, monkeypatch):
    path = run_of(told)
    view = View(path)
    with monkeypatch.context() as patch:
        patch.setattr(markup, "summary", lambda *a, **k: 1 / 0)
        assert until(lambda: "ZeroDivisionError" in view._error.value)
    assert until(lambda: not view._error.value)


# Controls ----------------------------------------------------------------------------------


@pytest.mark.parametrize("wish", ["pause", "stop"])
def test_buttons_ask_once(browser, told, run_of, held, wish):
    path = run_of(told)
    view = View(path)
    view.controls.buttons[wish].click()
    view.controls.buttons[wish].click()
    assert [r.wish for r in asked(path)] == [wish]
    assert f"{wish} was asked for already" in view.controls.message.value


def test_a_request_shows_when_it_was_taken_and_took_effect(browser, told, run_of, held):
    path = run_of(told)
    view = View(path)
    view.controls.buttons["pause"].click()
    assert "pause: asked" in view.controls.message.value
    assert "not taken yet" in view.controls.message.value
    request = asked(path)[0]
    told.time = request.time + 0.5
    told.add(ev.RequestTaken, request=request.id, wish="pause")
    run_of(told)
    assert until(lambda: "taken after 0.5 s, not in effect yet" in view.controls.message.value)
    told.time += 1.0
    told.add(ev.PhaseChanged, phase="paused").add(ev.RequestDone, request=request.id)
    run_of(told)
    assert until(lambda: "in effect after 1.5 s" in view.controls.message.value)
    view.controls.buttons["pause"].click()
    assert len(asked(path)) == 1
    assert "paused already" in view.controls.message.value
    view.controls.buttons["resume"].click()
    assert [r.wish for r in asked(path)] == ["pause", "resume"]


def test_a_refused_request_says_why(browser, told, run_of, held):
    path = run_of(told)
    view = View(path)
    told.add(ev.RequestTaken, request="other", wish="budget")
    told.add(ev.RequestDone, request="other", refused=f"too small {EVIL}")
    run_of(told)
    assert until(lambda: "refused: too small" in view.controls.message.value)
    assert "<script" not in view.controls.message.value


def test_nothing_is_asked_of_a_dead_tuner(browser, told, run_of):
    path = run_of(told)
    view = View(path)
    for wish in ("pause", "resume", "stop"):
        view.controls.buttons[wish].click()
        assert "no tuner is at work" in view.controls.message.value
    assert asked(path) == []


def test_start_is_called_once(browser, told, run_of):
    calls = []
    view = View(run_of(told), start=lambda: calls.append(1))
    view.controls.buttons["start"].click()
    view.controls.buttons["start"].click()
    assert calls == [1]
    assert "being started" in view.controls.message.value


def test_start_takes_the_budget_of_the_slider(browser, told, run_of):
    calls = []

    def tune(trials=None, seconds=None):
        calls.append((trials, seconds))

    path = run_of(told)
    view = View(path, start=tune)
    view.controls.slider.value = 90
    view.controls.buttons["start"].click()
    time.sleep(1.0)
    assert calls == [(90, None)]
    assert asked(path) == []


def test_start_does_nothing_beside_a_living_tuner(browser, told, run_of, held):
    calls = []
    view = View(run_of(told), start=lambda: calls.append(1))
    view.controls.buttons["start"].click()
    assert calls == []
    assert "at work already" in view.controls.message.value


def test_a_start_that_fails_is_told_and_may_be_tried_again(browser, told, run_of):
    calls = []

    def start():
        calls.append(1)
        raise OSError(28, EVIL)

    view = View(run_of(told), start=start)
    for _ in range(2):
        view.controls.buttons["start"].click()
    assert calls == [1, 1]
    assert "&lt;script&gt;" in view.controls.message.value


def test_focus_on_selected_tasks_or_without_them(browser, told, run_of, held):
    path = run_of(told)
    view = View(path)
    view.controls.buttons["focus"].click()
    assert "select tasks first" in view.controls.message.value
    view.controls.tasks.value = (2, 0)
    view.controls.buttons["focus"].click()
    view.controls.tasks.value = (0,)
    view.controls.buttons["skip"].click()
    view.controls.buttons["all"].click()
    expected = [("focus", (0, 2)), ("focus", (1, 2)), ("focus", None)]
    assert [(r.wish, r.tasks) for r in asked(path)] == expected
    view.controls.tasks.value = (0, 1, 2)
    view.controls.buttons["skip"].click()
    assert "no task would be left" in view.controls.message.value


def test_slider_asks_for_the_budget_once_it_rests(browser, told, run_of, held):
    path = run_of(told)
    view = View(path)
    assert view.controls.slider.value == 20
    for value in (40, 60, 80):
        view.controls.slider.value = value
    assert until(lambda: asked(path))
    time.sleep(0.5)
    assert [(r.wish, r.trials) for r in asked(path)] == [("budget", 80)]


def test_slider_never_goes_below_what_is_spent(browser, told, run_of, held):
    path = run_of(told)
    view = View(path)
    view.controls.slider.value = 2
    assert until(lambda: asked(path))
    assert asked(path)[0].trials == 5
    assert view.controls.slider.value == 5
    assert until(lambda: "5 trials are spent already" in view.controls.message.value)


def test_slider_keeps_the_budget_of_seconds(browser, story, run_of, held):
    story.start(trials=10, seconds=99.0)
    path = run_of(story)
    view = View(path)
    view.controls.slider.value = 50
    assert until(lambda: asked(path))
    assert asked(path)[0].seconds == 99.0


def test_slider_follows_a_budget_set_elsewhere(browser, told, run_of, held):
    view = View(run_of(told))
    told.add(ev.BudgetSet, trials=1000)
    run_of(told)
    assert until(lambda: view.controls.slider.value == 1000)
    assert view.controls.slider.max > 1000
    assert asked(view._run.path) == []


def test_poller_never_writes_to_buttons(browser, told, run_of, held):
    path = run_of(told)
    view = View(path)
    ids = {b.model_id for b in view.controls.buttons.values()}
    sent = []
    for button in view.controls.buttons.values():
        button.comm.publish_msg = lambda *a, **k: sent.append(a)
    told.trial(0, 1e-3)
    run_of(told)
    assert until(lambda: "6 of 20" in view._head.value)
    assert len(ids) == 7
    assert sent == []


# What is chosen to be shown ------------------------------------------------------------------


def test_order_of_the_table(browser, told, run_of, held):
    view = View(run_of(told))
    view.order.value = "latency"
    view.descending.value = True
    table = view._table.value
    assert table.index("fused_conv2d") < table.index("max_pool2d") < table.index("reshape")
    view.descending.value = False
    table = view._table.value
    assert table.index("reshape") < table.index("max_pool2d") < table.index("fused_conv2d")


def test_axis_and_lines_of_tasks(browser, told, run_of, held):
    view = View(run_of(told))
    view.x.value = "time"
    figure = view._curve.widget
    assert figure.layout.xaxis.title.text == "tuning time (s)"
    assert figure.data[0].x.tolist() == [3.0, 4.0, 8.0, 9.0]
    view.controls.tasks.value = (1,)
    assert figure.data[2].name == "1 max_pool2d"
    assert figure.data[2].y.tolist() == [0.5, 0.5]
    view.controls.tasks.value = ()
    assert not figure.data[2].visible


def test_history_slider_shows_the_table_after_any_trial(browser, told, run_of, held):
    view = View(run_of(told))
    view.past.value = 1
    assert not view.follow.value
    assert "4.000" in view._table.value
    assert "0.5000" not in view._table.value
    view.follow.value = True
    assert "2.000" in view._table.value
    assert view.past.value == 5


def test_history_slider_grows_with_the_run(browser, story, run_of, held):
    story.start(trials=50)
    view = View(run_of(story))
    story.round(0, [1e-3] * 10)
    run_of(story)
    assert until(lambda: view.past.max == 10)
    assert view.past.value == 10
    assert view.follow.value


def test_history_equals_the_fold_at_every_trial(told, run_of, monkeypatch):
    monkeypatch.setattr("autotune_nb.view.history._STEP_BYTES", 300)
    path = run_of(told)
    history = History(path / "journal.jsonl", initial(told.tasks))
    history.read()
    assert history.trials == 5
    for trials in (5, 0, 3, 1, 4, 2):
        state = history.at(trials)
        assert state.trials == trials
        events = told.events
        ends = [i + 1 for i, e in enumerate(events) if isinstance(e, ev.TrialDone)]
        end = ends[trials - 1] if trials else 0
        assert state == fold(initial(told.tasks), events[:end])
    assert history.at(99).trials == 5


# What is sent --------------------------------------------------------------------------------


def test_text_from_outside_cannot_inject_markup(browser, story, run_of, held):
    story.tasks = (dataclasses.replace(story.tasks[0], name=EVIL),)
    story.start().round(0, [1e-3]).trial(0, None, error=EVIL, kind=EVIL)
    story.add(ev.TaskSetAside, task=0, state=EVIL, reason=EVIL)
    story.add(ev.RequestTaken, request="r", wish=EVIL)
    path = run_of(story, name="x", device_name=EVIL)
    view = View(path)
    view.controls.tasks.value = (0,)
    shown = [view._head, view._table, view._failures, view.controls.message]
    text = "".join(w.value for w in shown) + view._curve.widget.to_json()
    assert "<script" not in text.replace("\\u003c", "<")
    assert "<img" not in text.replace("\\u003c", "<")


def test_arrays_go_to_the_browser_in_binary(told):
    for line in curve.lines(told.state, tasks=(0, 1)):
        assert line.x.dtype == np.float64
        assert line.y.dtype == np.float64


def _long_story(tasks, trials):
    """Return a state as after many trials, each of which improved its task."""
    infos = tuple(
        TaskInfo(id=i, name=f"fused_conv2d{i}_add_relu", weight=1, flops=1e9, workload_hash="h")
        for i in range(tasks)
    )
    events = [
        ev.TrialDone(
            time=float(n),
            used_s=float(n),
            trial=n + 1,
            round=1,
            task=n % tasks,
            candidate=str(n),
            latency_s=1.0 / (n + 1),
            record=str(n),
        )
        for n in range(trials)
    ]
    return infos, events


def test_a_redraw_of_a_long_run_stays_under_100_kB(browser, story, run_of, held):
    story.tasks, story.events = _long_story(1000, 10_000)
    path = run_of(story)
    view = View(path)
    view.controls.tasks.value = (0, 1, 2, 3, 4, 5)
    mark = len(browser.messages)
    story.trials = 10_000
    story.time = story.used_s = 1e4
    story.trial(0, 1e-9)
    run_of(story)
    assert until(lambda: "10001 trials" in view._head.value)
    time.sleep(1.0)
    assert 0 < browser.bytes_since(mark) < 100_000


def test_messages_are_throttled(browser, told, run_of, held):
    path = run_of(told)
    view = View(path)
    mark = len(browser.messages)
    for _ in range(40):
        told.trial(0, 1e-3)
        run_of(told)
        time.sleep(0.025)
    assert until(lambda: "45 of 20" in view._head.value)
    tables = [m for m in browser.messages[mark:] if "<table" in str(m[1])]
    assert 0 < len(tables) <= 8


def test_an_idle_view_sends_next_to_nothing(browser, told, run_of):
    View(run_of(told))
    time.sleep(0.6)
    mark = len(browser.messages)
    time.sleep(1.0)
    assert browser.messages[mark:] == []


def test_traces_are_given_to_the_constructor(told):
    drawn = curve.lines(told.state)
    widget = curve.Curve(drawn).widget
    assert isinstance(widget, go.FigureWidget)
    assert len(widget._data) == len(drawn)


# Ending --------------------------------------------------------------------------------------


def test_a_hundred_views_leave_nothing_behind(browser, told, run_of):
    path = run_of(told)
    View(path).close()  # what plotly and ipywidgets keep once and for all
    gc.collect()
    threads = threading.active_count()
    before = set(ipywidgets.widgets.widget._instances)
    for number in range(100):
        view = View(path)
        if number % 2:
            view.close()
    view.close()
    assert threading.active_count() == threads
    assert registry.live() == []
    left = [type(w) for key, w in ipywidgets.widgets.widget._instances.items() if key not in before]
    assert left == []


def test_a_new_view_of_a_run_ends_the_old_one(browser, told, run_of):
    path = run_of(told)
    old = View(path)
    new = View(path / ".." / path.name)  # the same place by another path
    assert old.closed
    assert not new.closed
    assert not old._thread.is_alive()


def test_views_of_two_cells_live_side_by_side(browser, told, run_of, monkeypatch):
    path = run_of(told)
    views = []
    for cell in "abcde":
        monkeypatch.setattr(registry, "cell", lambda cell=cell: cell)
        views.append(View(path))
    assert [view.closed for view in views] == [True, False, False, False, False]


def test_close_twice_and_display_afterwards(browser, told, run_of):
    view = View(run_of(told))
    assert "application/vnd.jupyter.widget-view+json" in view._repr_mimebundle_()
    assert "fused_conv2d_add_relu" in view._repr_mimebundle_()["text/plain"]
    view.close()
    view.close()
    assert "This view was closed" in view._repr_mimebundle_()["text/plain"]


def test_without_anywidget_the_rest_of_the_view_works(browser, told, run_of, monkeypatch):
    def refuse(*args, **kwargs):
        raise ImportError("Please install anywidget")

    monkeypatch.setattr(go, "FigureWidget", refuse)
    view = View(run_of(told))
    assert view._curve is None
    text = "".join(w.value for w in view.widget.children if isinstance(w, ipywidgets.HTML))
    assert "pip install anywidget" in text


def test_route_of_a_vanished_page_is_forgotten():
    class Comm:
        pass

    class Widget:
        comm = Comm()

    Widget.comm._reply_subshell_id = "gone"
    registry.forget_route(Widget)
    assert not hasattr(Widget.comm, "_reply_subshell_id")
    registry.forget_route(object())  # what has none is left alone


def test_view_does_not_import_tvm(told, run_of):
    import subprocess
    import sys

    code = (
        "import sys; from autotune_nb.view.widgets import View; "
        f"View({str(run_of(told))!r}).close(); assert 'tvm' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


# The table as HTML ---------------------------------------------------------------------------


def test_many_tasks_keep_the_largest(story):
    infos, events = _long_story(500, 1000)
    state = fold(initial(infos), events)
    table = markup.task_table(state)
    assert table.count("<tr") == markup.MAX_ROWS + 1
    assert "and 380 more tasks" in table
    assert len(table) < 100_000


def test_orders_of_what_is_not_there():
    with pytest.raises(Exception, match="no such column"):
        markup.ordered(initial(()), "colour")
