"""Records of other runs: taken over as seeds, measured again before they count."""

import dataclasses
import json

import pytest

import autotune_nb as at
from autotune_nb.errors import RunError
from autotune_nb.run import database, journal, seeds
from autotune_nb.run import events as ev
from autotune_nb.run.manifest import Manifest


@pytest.fixture(scope="module")
def donor(untuned_run, tmp_path_factory):
    import shutil

    path = tmp_path_factory.mktemp("donor") / "mlp"
    shutil.copytree(untuned_run, path)
    session = at.TuningSession.open(path)
    session.tune(trials=48).wait(on_change=lambda *_: None)
    return session


def test_the_best_seeds_are_measured_first_and_count_as_trials(donor, tmp_path):
    session = at.TuningSession.create(
        tmp_path / "new", at.network("mlp"), seed_from=[donor.path.parent], min_repeat_ms=5
    )
    session.tune(trials=60).wait(on_change=lambda *_: None)
    events, _ = journal.read(session.directory.journal)
    trials = [e for e in events if isinstance(e, ev.TrialDone)]
    assert [t.trial for t in trials] == list(range(1, 61))
    theirs = {t.candidate for t in _trials(donor) if t.latency_s is not None}
    best = {task.best_trial: task for task in donor.state.tasks}
    best_keys = {t.candidate for t in _trials(donor) if t.trial in best}
    mine = [t.candidate for t in trials]
    assert best_keys <= set(mine)
    assert len(set(mine) & theirs) >= 8
    assert session.state.recovered == ()


def _trials(session):
    events, _ = journal.read(session.directory.journal)
    return [e for e in events if isinstance(e, ev.TrialDone)]


def test_seeds_keep_the_best_and_a_spread_of_the_rest(donor, tmp_path):
    manifest = donor.manifest
    run = tmp_path / "long"
    run.mkdir()
    manifest.write(run)
    line = database.read_records(donor.path)[0][0].line
    task, (trace, _, target, args) = json.loads(line)
    many = [
        database.record_line(task, trace, [1e-6 * n] if n % 10 else [], target, [*args, n])
        for n in range(1, 2001)
    ]
    (run / database.RECORD_FILE).write_text("".join(text + "\n" for text in many))
    kept = seeds.collect([run], manifest.tasks, manifest.target)
    latencies = [database.parse_record(text.encode()).latency_s for text in kept]
    assert 80 <= len(kept) <= 96
    assert min(value for value in latencies if value) == pytest.approx(1e-6)
    assert None in latencies


def test_records_move_to_the_task_with_the_same_workload(donor):
    tasks = donor.manifest.tasks
    turned = [dataclasses.replace(task, id=len(tasks) - 1 - task.id) for task in reversed(tasks)]
    found = [
        database.parse_record(text.encode())
        for text in seeds.collect([donor.path], turned, donor.manifest.target)
    ]
    ours = database.read_records(donor.path)[0]
    for task in tasks:
        there = len(tasks) - 1 - task.id
        assert sorted(r.latency_s for r in found if r.task == there and r.latency_s) == sorted(
            r.latency_s for r in ours if r.task == task.id and r.latency_s
        )


def test_seeds_of_another_target_or_of_nothing_are_refused(donor, tmp_path):
    tasks, target = donor.manifest.tasks, dict(donor.manifest.target)
    with pytest.raises(RunError, match="was tuned for llvm, this run is for cuda"):
        seeds.collect([donor.path], tasks, {**target, "kind": "cuda"})
    with pytest.raises(RunError, match="no such run; check the path of the seeds"):
        seeds.collect([tmp_path / "nowhere"], tasks, target)
    with pytest.raises(RunError, match="is no run and holds none"):
        seeds.collect([tmp_path], tasks, target)
    assert isinstance(Manifest.read(donor.path), Manifest)
