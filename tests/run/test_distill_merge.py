"""Runs made of other runs: the best records of one, several as one."""

import dataclasses
import shutil
import stat

import pytest

from autotune_nb.errors import InputError, RunError
from autotune_nb.run import database, journal
from autotune_nb.run import events as ev
from autotune_nb.run.derived import account
from autotune_nb.run.directory import RunDirectory, RunWriter
from autotune_nb.run.distill import distill
from autotune_nb.run.merge import merge

ROUNDS = ((0, (4e-3, 2e-3, None, 3e-3)), (1, (5e-4, 6e-4)), (0, (2e-3, 1e-3)))


def trials_of(path):
    events, _ = journal.read(path / "journal.jsonl")
    return [event for event in events if isinstance(event, ev.TrialDone)]


def digests(path):
    return [record.digest for record in database.read_records(path)[0]]


def bests(path):
    """What compiling takes for each task: the first of the fastest records."""
    found = {}
    for record in database.read_records(path)[0]:
        if record.latency_s is not None:
            known = found.get(record.task)
            if known is None or record.latency_s < known.latency_s:
                found[record.task] = record
    return {task: record.digest for task, record in found.items()}


# Distilling.


def test_distilled_run_keeps_the_best_of_each_task(run, tmp_path):
    state = run.write(ROUNDS)
    small = distill(run.path, tmp_path / "small", k=1)
    after = small.poll()
    assert [t.best_latency_s for t in after.tasks] == [t.best_latency_s for t in state.tasks]
    assert after.estimated_total_latency_s == state.estimated_total_latency_s
    assert bests(small.path) == bests(run.path)
    assert (after.trials, after.failed_trials, after.used_s) == (2, 0, state.used_s)
    assert "2 of 8 trials" in after.message
    assert {t.best_record for t in after.tasks if t.best_record} == set(digests(small.path))


def test_distilled_trials_keep_order_time_and_rounds(run, tmp_path):
    run.write(ROUNDS)
    before = {trial.record: trial for trial in trials_of(run.path)}
    small = distill(run.path, tmp_path / "small", k=2)
    kept = trials_of(small.path)
    assert [t.latency_s for t in kept] == [2e-3, 5e-4, 6e-4, 1e-3]
    assert [t.trial for t in kept] == [1, 2, 3, 4]
    assert [t.round for t in kept] == [1, 2, 2, 3]
    assert [t.used_s for t in kept] == [before[t.record].used_s for t in kept]
    assert [t.rounds for t in small.poll().tasks] == [((1, 2e-3), (2, 1e-3)), ((2, 5e-4),), ()]


def test_of_equal_records_the_first_is_kept(run, tmp_path):
    run.write([(0, (2e-3, 1e-3, 1e-3))])
    small = distill(run.path, tmp_path / "small")
    assert digests(small.path) == [digests(run.path)[1]]


def test_distilled_run_is_read_only_and_says_what_it_is(run, tmp_path):
    run.write(ROUNDS)
    small = distill(run.path, tmp_path / "small")
    with pytest.raises(RunError, match=r"was distilled from run0: the best 1 .* is read-only"):
        RunWriter(small.path)
    assert small.manifest.network["derived"].startswith("distilled from run0")
    assert not run_is_changed(run, ROUNDS)


def run_is_changed(run, rounds):
    return len(trials_of(run.path)) != sum(len(latencies) for _, latencies in rounds)


def test_a_record_without_its_event_is_not_forgotten(run, tmp_path):
    run.write(ROUNDS)
    line = database.record_line(2, [], [7e-3], {"kind": "llvm"}, [])
    database.append_record(run.path, line)
    small = distill(run.path, tmp_path / "small")
    assert small.poll().tasks[2].best_latency_s == 7e-3


def test_a_best_trial_whose_record_is_gone_is_not_kept(run, tmp_path):
    run.write(ROUNDS)
    lines = run.records.read_bytes().splitlines(keepends=True)
    best = bests(run.path)[0]
    run.records.write_bytes(b"".join(r for r in lines if database.digest(r.rstrip()) != best))
    small = distill(run.path, tmp_path / "small")
    assert small.poll().tasks[0].best_latency_s == 2e-3
    assert account(run_directory(run)).trials[-1].error_kind == "lost"


def run_directory(run):
    return RunDirectory(run.path)


def test_a_damaged_run_can_be_distilled(run, tmp_path):
    run.write(ROUNDS)
    data = run.journal.read_bytes()
    run.journal.write_bytes(data[:400] + b"\x00garbage\n" + data[400:])
    run.records.write_bytes(run.records.read_bytes()[:-20])
    state = distill(run.path, tmp_path / "small").poll()
    assert not state.recovered
    assert state.tasks[1].best_latency_s == 5e-4


def test_an_empty_run_can_be_distilled(run, tmp_path):
    assert distill(run.path, tmp_path / "small").poll().trials == 0


@pytest.mark.parametrize("k", [0, -1, 1.5, True])
def test_k_is_checked(run, tmp_path, k):
    with pytest.raises(InputError, match="number from 1"):
        distill(run.path, tmp_path / "small", k=k)
    assert not (tmp_path / "small").exists()


def test_the_network_comes_along_but_no_link(run, tmp_path):
    run.write(ROUNDS)
    (run.path / "network" / "tasks").mkdir(parents=True)
    (run.path / "network" / "tasks" / "0.py").write_text("x")
    small = distill(run.path, tmp_path / "small")
    assert (small.network / "tasks" / "0.py").read_text() == "x"
    (run.path / "network" / "secret").symlink_to("/etc/hostname")
    with pytest.raises(RunError, match="is a link"):
        distill(run.path, tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_what_fails_leaves_an_empty_directory_as_it_was(run, tmp_path):
    run.write(ROUNDS)
    (run.path / "network").mkdir()
    (run.path / "network" / "link").symlink_to("nowhere")
    place = tmp_path / "place"
    place.mkdir()
    with pytest.raises(RunError):
        distill(run.path, place)
    assert list(place.iterdir()) == []


# Merging.


@pytest.fixture
def pair(make_run):
    """Return two runs of one network; the second measured one candidate of the first again."""
    first, second = make_run(), make_run(created=2000.0)
    first.write([(0, (4e-3, 2e-3)), (1, (5e-4, None))])
    second.teller.clock = 0.0
    second._traces = iter(range(100, 200))
    second.write([(1, (3e-4, 9e-4)), (2, (1e-4,))])
    return first, second


def recast(run, **candidates):
    """Give trials of a run other candidates, by number: t3="c1"."""
    events, _ = journal.read(run.journal)
    changed = [
        dataclasses.replace(
            e, candidate=candidates.get(f"t{e.trial}", f"{run.path.name}-{e.trial}")
        )
        if isinstance(e, ev.TrialDone)
        else e
        for e in events
    ]
    run.journal.write_text("".join(ev.encode(e) + "\n" for e in changed))


def test_merged_run_has_the_best_of_both(pair, tmp_path):
    first, second = pair
    for one in pair:
        recast(one)
    states = [RunDirectory(r.path).poll() for r in pair]
    merged = merge([first.path, second.path], tmp_path / "merged")
    state = merged.poll()
    assert [t.best_latency_s for t in state.tasks] == [2e-3, 3e-4, 1e-4]
    assert state.trials == 7
    assert state.failed_trials == 1
    assert state.used_s == sum(s.used_s for s in states)
    assert digests(merged.path) == digests(first.path) + digests(second.path)
    assert [t.trials for t in state.tasks] == [2, 4, 1]
    assert state.measure_s == pytest.approx(sum(s.measure_s for s in states))
    assert state.budget.trials == 7


def test_a_merged_run_can_be_tuned_on(pair, tmp_path):
    for one in pair:
        recast(one)
    merged = merge([r.path for r in pair], tmp_path / "merged")
    with RunWriter(merged.path) as writer:
        assert writer.state.recovered == ()
        assert writer.state.trials == 7


def test_what_two_runs_measured_counts_once(pair, tmp_path):
    first, second = pair
    recast(first, t3="same", t4="late")
    recast(second, t1="same", t2="late")  # trial 3 of the first was good, trial 4 failed
    state = merge([first.path, second.path], tmp_path / "merged").poll()
    assert state.trials == 5
    kept = [t.latency_s for t in trials_of(tmp_path / "merged")]
    assert kept == [4e-3, 2e-3, 5e-4, 9e-4, 1e-4]
    assert state.failed_trials == 0


def test_a_copy_that_was_tuned_on_counts_once(run, tmp_path):
    run.write(ROUNDS)
    copy = tmp_path / "copy"
    shutil.copytree(run.path, copy)
    run._copy = copy
    before = RunDirectory(run.path).poll()
    with RunWriter(copy) as writer:
        teller = run.teller
        writer.commit([teller.start(), teller.open(2), teller.searched(2, 1)])
        line = database.record_line(2, [["more", 1]], [1e-4], {"kind": "llvm"}, [])
        writer.append_record(line)
        writer.commit([teller.trial(2, 1e-4, record=database.digest(line)), teller.close(2, 1)])
        after = writer.state
    merged = merge([run.path, copy], tmp_path / "merged").poll()
    assert merged.trials == after.trials == before.trials + 1
    assert merged.used_s == after.used_s
    assert digests(tmp_path / "merged") == digests(copy)


def test_two_equal_copies_are_one(run, tmp_path):
    state = run.write(ROUNDS)
    shutil.copytree(run.path, tmp_path / "copy")
    merged = merge([run.path, tmp_path / "copy"], tmp_path / "merged").poll()
    assert (merged.trials, merged.used_s) == (state.trials, state.used_s)


def test_tasks_in_another_order_are_matched(make_run, tasks, tmp_path):
    first = make_run()
    turned = tuple(dataclasses.replace(tasks[2 - i], id=i) for i in range(3))
    second = make_run(tasks=turned, created=2000.0)
    first.write([(0, (4e-3,))])
    second._traces = iter(range(100, 200))
    second.write([(0, (1e-4,)), (2, (3e-3,))])
    recast(second)
    merged = merge([first.path, second.path], tmp_path / "merged")
    state = merged.poll()
    assert [t.best_latency_s for t in state.tasks] == [3e-3, None, 1e-4]
    assert {t.best_record for t in state.tasks if t.best_record} <= set(digests(merged.path))
    assert [r.task for r in database.read_records(merged.path)[0]] == [0, 2, 0]


def test_merging_keeps_failed_trials_apart(make_run, tmp_path):
    first, second = make_run(), make_run()
    for one in (first, second):
        one.write([(0, (None, None))])
        recast(one)
    assert merge([first.path, second.path], tmp_path / "m").poll().failed_trials == 4


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"network_fingerprint": "g", "name": "other"}, "tunes another network \\(other\\)"),
        ({"target": {"kind": "llvm", "num-cores": 4}}, "another target .*num-cores"),
        ({"device_name": "another CPU"}, "was measured on another CPU"),
    ],
)
def test_what_does_not_fit_is_refused(make_run, tmp_path, changes, message):
    first, second = make_run(), make_run(**changes)
    with pytest.raises(RunError, match=message):
        merge([first.path, second.path], tmp_path / "merged")
    assert not (tmp_path / "merged").exists()


def test_other_tasks_are_refused(make_run, tasks, tmp_path):
    other = (*tasks[:2], dataclasses.replace(tasks[2], workload_hash="9"))
    first, second = make_run(), make_run(tasks=other)
    with pytest.raises(RunError, match=r"has other tasks .*op2"):
        merge([first.path, second.path], tmp_path / "merged")


def test_one_run_twice_is_no_merge(run, tmp_path):
    for sources in ([], [run.path], [run.path, run.path]):
        with pytest.raises(InputError, match="two or more different"):
            merge(sources, tmp_path / "merged")


def test_a_merged_run_with_a_read_only_one_is_read_only(make_run, tmp_path):
    first, second = make_run(), make_run(read_only=True)
    first.write()
    assert merge([first.path, second.path], tmp_path / "m").manifest.read_only


def test_nothing_is_written_where_a_run_is(run, make_run):
    run.write()
    taken = make_run()
    before = sorted(p.name for p in taken.path.iterdir())
    with pytest.raises(RunError, match="holds a run already"):
        distill(run.path, taken.path)
    assert sorted(p.name for p in taken.path.iterdir()) == before
    assert stat.S_ISDIR(taken.path.stat().st_mode)
