"""Any valid history: its prefixes open, its replay is its run, impossible orders are refused."""

import dataclasses
import itertools
import math
import shutil
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from autotune_nb.errors import RunError
from autotune_nb.run import checkpoint, database, journal
from autotune_nb.run import events as ev
from autotune_nb.run.directory import RunDirectory, RunWriter
from autotune_nb.run.manifest import Manifest, Options
from autotune_nb.run.records import TaskInfo
from autotune_nb.run.state import fold, initial

TASKS = tuple(
    TaskInfo(id=i, name=f"op{i}", weight=w, flops=f, workload_hash=str(i))
    for i, (w, f) in enumerate([(1, 1e9), (3, 0.0), (7, 2.5e6)])
)
BLANK = initial(TASKS)
INDEX = st.integers(0, len(TASKS) - 1)
LATENCY = st.floats(1e-7, 10.0)
STEPS = (
    *("session", "round", "round", "searched", "finished"),
    *("trial", "trial", "trial", "trial"),
    *("stop", "ask", "answer", "else"),
)


@st.composite
def histories(draw, max_steps=25):
    """Return events that a tuner may write, sessions, kills and requests included."""
    out = []
    trials = rounds = 0
    under_way = {}
    asked = {}
    least = draw(st.integers(0, max_steps))  # lists are short if left to themselves
    steps = draw(st.lists(st.sampled_from(STEPS), min_size=least, max_size=max_steps))
    for clock, step in enumerate(steps, 1):
        when = {"time": 1000.0 + clock, "used_s": clock / 7}
        if step == "session":
            out.append(ev.TunerStarted(pid=clock, host="h", versions={}, workers={}, **when))
            under_way.clear()
        elif step == "stop" and out:
            outcome = draw(st.sampled_from(["finished", "stopped", "failed"]))
            out.append(ev.TunerStopped(outcome=outcome, **when))
            under_way.clear()
        elif step == "round":
            rounds += 1
            under_way[rounds] = [draw(INDEX), False]
            out.append(ev.RoundStarted(round=rounds, task=under_way[rounds][0], **when))
        elif step == "searched" and (idle := [n for n, (_, seen) in under_way.items() if not seen]):
            number = draw(st.sampled_from(idle))
            under_way[number][1] = True
            task = under_way[number][0]
            out.append(
                ev.RoundSearched(round=number, task=task, candidates=1, search_s=0.1, **when)
            )
        elif step == "trial" and under_way:
            number = draw(st.sampled_from(sorted(under_way)))
            latency = draw(st.none() | LATENCY)
            trials += 1
            out.append(
                ev.TrialDone(
                    trial=trials,
                    round=number,
                    task=under_way[number][0],
                    candidate=str(trials),
                    latency_s=latency,
                    latencies_s=() if latency is None else (latency,),
                    error_kind="build" if latency is None else "",
                    error="" if latency else draw(st.text(max_size=3)),
                    build_s=0.1 * trials,
                    measure_s=0.7 / trials,
                    record=f"r{trials}",
                    **when,
                )
            )
        elif step == "finished" and under_way:
            number = draw(st.sampled_from(sorted(under_way)))
            task, _ = under_way.pop(number)
            out.append(
                ev.RoundFinished(
                    round=number, task=task, trials=0, build_s=0.1, measure_s=0.2, **when
                )
            )
        elif step == "ask":
            asked[str(clock)] = False
            out.append(ev.RequestTaken(request=str(clock), wish="pause", **when))
        elif step == "answer" and (waiting := [r for r, done in asked.items() if not done]):
            request = draw(st.sampled_from(waiting))
            asked[request] = True
            out.append(ev.RequestDone(request=request, **when))
        elif step == "else":
            out.append(
                draw(
                    st.sampled_from(
                        [
                            ev.PhaseChanged(phase="paused", **when),
                            ev.BudgetSet(trials=clock, **when),
                            ev.FocusSet(tasks=(0,), **when),
                            ev.TaskSetAside(task=1, state="failed", reason="x", **when),
                            ev.Recovered(what=str(clock), **when),
                        ]
                    )
                )
            )
    return out


def text(events):
    return "".join(ev.encode(event) + "\n" for event in events).encode()


@given(histories(), st.data())
def test_replay_in_any_batches_gives_the_state_while_running(history, data):
    running = BLANK
    for event in history:
        running = fold(running, [event])
    assert fold(BLANK, history) == running
    assert fold(BLANK, map(ev.decode, text(history).splitlines())) == running
    cuts = sorted(data.draw(st.lists(st.integers(0, len(history)), max_size=4)))
    batched = BLANK
    for start, end in itertools.pairwise([0, *cuts, len(history)]):
        batched = fold(batched, history[start:end])
    assert batched == running


@given(histories())
def test_the_account_adds_up(history):
    state = fold(BLANK, history)
    trials = [event for event in history if isinstance(event, ev.TrialDone)]
    assert state.trials == len(trials) == sum(t.trials for t in state.tasks)
    assert state.failed_trials == sum(t.failures for t in state.tasks)
    for task in state.tasks:
        assert sum(error.count for error in task.errors) == task.failures
        own = [t for t in trials if t.task == task.info.id and t.latency_s is not None]
        assert task.best_latency_s == min((t.latency_s for t in own), default=None)
        assert (task.best_trial is None) == (not own)
    known = [t.best_latency_s * t.info.weight for t in state.tasks if t.best_latency_s]
    assert state.estimated_total_latency_s == (math.fsum(known) if known else None)
    if state.curve:
        assert state.curve[-1].estimated_total_latency_s == state.estimated_total_latency_s
        assert state.curve[-1].partial == state.partial
    numbers = [point.trial for point in state.curve]
    assert numbers == sorted(set(numbers))
    assert state.used_s == max((event.used_s for event in history), default=0.0)


def possible(events):
    """Tell, rule by rule and not by folding, whether events may come in this order."""

    def at(kind, *names):
        found = [(i, e) for i, e in enumerate(events) if isinstance(e, kind)]
        return [(tuple(getattr(e, n) for n in names), i) for i, e in found]

    trials = [event.trial for event in events if isinstance(event, ev.TrialDone)]
    starts = [event.round for event in events if isinstance(event, ev.RoundStarted)]
    if trials != list(range(1, len(trials) + 1)) or starts != sorted(set(starts)):
        return False
    started = dict(at(ev.RoundStarted, "round", "task"))
    newest = {
        event.round: i for i, event in enumerate(events) if isinstance(event, ev.RoundStarted)
    }
    ends = [i for i, e in enumerate(events) if isinstance(e, (ev.TunerStarted, ev.TunerStopped))]
    finished = {}
    for key, i in at(ev.RoundFinished, "round", "task"):
        if key in finished:
            return False
        finished[key] = i
    for key, i in at(ev.RoundSearched, "round", "task") + list(finished.items()):
        begin = started.get(key, i)
        if begin >= i or i > finished.get(key, i) or any(begin < end < i for end in ends):
            return False
    for event, i in [(e, i) for i, e in enumerate(events) if isinstance(e, ev.TrialDone)]:
        # a trial restored before the first round names round 1
        if event.round > 1 and not any(n >= event.round and j < i for n, j in newest.items()):
            return False
    taken = dict(at(ev.RequestTaken, "request"))
    done = at(ev.RequestDone, "request")
    return len(dict(done)) == len(done) and all(taken.get(key, i) < i for key, i in done)


@given(histories())
def test_the_rules_allow_every_history(history):
    assert possible(history)


@settings(max_examples=200)
@given(histories(max_steps=16), st.data())
def test_an_order_that_cannot_be_is_refused_and_no_other(history, data):
    moved = list(history)
    for _ in range(data.draw(st.integers(1, 3))):
        if moved:
            event = moved.pop(data.draw(st.integers(0, len(moved) - 1)))
            moved.insert(data.draw(st.integers(0, len(moved))), event)
    try:
        fold(BLANK, moved)
    except RunError:
        assert not possible(moved)
    else:
        assert possible(moved)


@given(histories(max_steps=16), st.data())
def test_an_event_that_is_gone_or_there_twice_is_refused_where_it_matters(history, data):
    if not history:
        return
    index = data.draw(st.integers(0, len(history) - 1))
    changed = list(history)
    if data.draw(st.booleans()):
        changed.insert(data.draw(st.integers(index, len(history))), history[index])
    else:
        del changed[index]
    taken = [e.request for e in changed if isinstance(e, ev.RequestTaken)]
    if len(taken) != len(set(taken)):
        return  # a request may be taken again while it is not done
    try:
        fold(BLANK, changed)
    except RunError:
        assert not possible(changed)
    else:
        assert possible(changed)


def new_run(path):
    path.mkdir()
    Manifest(
        name="n",
        network_fingerprint="f",
        network={},
        target={},
        device="cpu",
        device_name="",
        versions={},
        options=Options(),
        tasks=TASKS,
        created=1.0,
    ).write(path)
    return path


@given(histories(), st.data())
def test_any_prefix_of_a_journal_opens(history, data):
    raw = text(history)
    end = data.draw(st.integers(0, len(raw)))
    whole = raw[:end].count(b"\n")
    with tempfile.TemporaryDirectory() as folder:
        path = new_run(Path(folder) / "run")
        (path / journal.FILE).write_bytes(raw[:end])
        reader = RunDirectory(path)
        assert reader.poll() == fold(BLANK, history[:whole])
        # no record is there: results whose schedule is gone are none, but stay spent
        with RunWriter(path) as writer:
            state = writer.state
        complete = whole + (0 < end < len(raw) and raw[end : end + 1] == b"\n")
        before = fold(BLANK, history[:complete])
        assert state.trials == before.trials
        assert [t.trials for t in state.tasks] == [t.trials for t in before.tasks]
        assert all(t.best_latency_s is None for t in state.tasks)
        assert RunDirectory(path).poll() == reader.poll() == state


@given(histories(), st.data())
def test_a_checkpoint_of_any_prefix_changes_nothing(history, data):
    count = data.draw(st.integers(0, len(history)))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / journal.FILE
        path.write_bytes(text(history[:count]))
        checkpoint.write(path, fold(BLANK, history[:count]))
        with path.open("ab") as file:
            file.write(text(history[count:]))
        with path.open("rb") as file:
            found = checkpoint.load(file, path, BLANK)
        assert found == (fold(BLANK, history[:count]), len(text(history[:count])))
        assert journal.Follower(path, BLANK).poll() == fold(BLANK, history)


DAMAGE = st.lists(
    st.tuples(
        st.sampled_from(["delete", "garbage", "cut", "twice", "swap", "merge"]),
        st.integers(0, 10**6),
    ),
    min_size=1,
    max_size=6,
)


@given(histories(), DAMAGE)
def test_damage_of_any_lines_of_the_journal_costs_no_trial_that_has_its_record(history, damage):
    with tempfile.TemporaryDirectory() as folder:
        path = new_run(Path(folder) / "run")
        written = []
        for event in history:
            if isinstance(event, ev.TrialDone):
                line = database.record_line(event.task, [event.trial], event.latencies_s, {}, [])
                database.append_record(path, line)
                written.append(dataclasses.replace(event, record=database.digest(line)))
            else:
                written.append(event)
        before = fold(BLANK, written)
        raw = text(written).splitlines()
        for kind, where in damage:
            if not raw:
                break
            at = where % len(raw)
            if kind == "delete":
                del raw[at]
            elif kind == "garbage":
                raw[at] = b"\x00 garbage"
            elif kind == "cut":
                raw[at] = raw[at][: len(raw[at]) // 2]
            elif kind == "twice":
                raw.insert(at, raw[at])
            elif kind == "swap":
                raw[at - 1], raw[at] = raw[at], raw[at - 1]
            elif kind == "merge" and at:
                raw[at - 1 : at + 1] = [raw[at - 1] + raw[at]]
        (path / journal.FILE).write_bytes(b"".join(line + b"\n" for line in raw))
        RunDirectory(path).poll()  # a reader opens it too
        shutil.copytree(path, Path(folder) / "again")
        with RunWriter(path) as writer:
            state = writer.state
        assert state.trials == before.trials
        for found, true in zip(state.tasks, before.tasks, strict=True):
            assert found.trials == true.trials
            assert found.failures == true.failures
            assert found.best_latency_s == true.best_latency_s
        with RunWriter(path) as writer:
            assert writer.state == state
        assert RunDirectory(path).poll() == state
