"""Databases of MetaSchedule made elsewhere open as read-only runs."""

import gzip
import json
from pathlib import Path

import pytest

from autotune_nb.errors import InputError, RunError
from autotune_nb.run.database import RECORD_FILE, WORKLOAD_FILE
from autotune_nb.run.directory import RunWriter
from autotune_nb.run.imports import import_database
from autotune_nb.run.workload import describe
from autotune_nb.view import plots, tables
from autotune_nb.view.snapshot import Snapshot

DATA = Path(__file__).parent.parent / "data" / "h200-resnet18"
WEIGHTS = [1, 2, 1, 1, 1, 1, 2, 2, 1, 2, 1, 1, 2, 1, 1, 1, 1, 1, 1]


@pytest.fixture(scope="module")
def h200(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "h200"
    return import_database(DATA, path, weights=WEIGHTS, device_name="NVIDIA H200")


def test_imported_run_has_the_known_total(h200):
    state = h200.poll()
    assert state.trials == 1776
    assert len(state.tasks) == 19
    assert not state.partial
    assert state.estimated_total_latency_s * 1e3 == pytest.approx(0.445, abs=5e-4)
    assert state.phase == "finished"
    assert state.budget.trials == 1776


def test_imported_tasks_say_what_they_compute(h200):
    stem = h200.manifest.tasks[3]
    assert stem.shapes[:2] == ("float32[1, 224, 224, 3]", "float32[7, 7, 3, 64]")
    assert "conv2d_nhwc" in stem.operators
    # what TVM's estimate_tir_flops gives for these workloads
    flops = [t.flops for t in h200.manifest.tasks]
    assert flops[:6] == [231261184.0, 231286272.0, 12870144.0, 237633536.0, 1806336.0, 25600.0]
    assert sum(flops) == 2477942664.0
    assert h200.manifest.target["kind"] == "cuda"
    assert h200.manifest.device == "cuda:0"


def test_imported_rounds_are_those_of_the_run(h200):
    state = h200.poll()
    assert state.rounds == 28
    assert [len(t.rounds) for t in state.tasks][:2] == [3, 4]
    assert state.tasks[0].rounds[0][0] == 64
    assert state.tasks[0].rounds[-1] == (192, state.tasks[0].best_latency_s)


def test_imported_run_is_read_only(h200):
    with pytest.raises(RunError, match="read-only"):
        RunWriter(h200.path)


def test_imported_run_can_be_shown(h200):
    assert tables.task_table(h200.poll())["speed (GFLOPS)"].max() > 15_000
    for plot in (plots.convergence, plots.latency_share, plots.trials_per_task):
        assert plot(h200).data
    assert "finished" in Snapshot.take(h200, plot=False)._repr_html_()


def test_without_weights_each_workload_counts_once(tmp_path):
    state = import_database(DATA, tmp_path / "run").poll()
    assert state.estimated_total_latency_s * 1e3 == pytest.approx(0.3248, abs=1e-4)


def _small(tmp_path, records):
    source = tmp_path / "db"
    source.mkdir()
    workloads = gzip.decompress((DATA / f"{WORKLOAD_FILE}.gz").read_bytes()).splitlines()[:2]
    (source / WORKLOAD_FILE).write_bytes(b"\n".join(workloads) + b"\n")
    lines = [json.dumps(r) if isinstance(r, list) else r for r in records]
    (source / RECORD_FILE).write_text("\n".join(lines) + "\n")
    return source


def _record(task, *seconds):
    return [task, [[], list(seconds), {"kind": "llvm"}, []]]


def test_failed_and_damaged_records(tmp_path):
    records = [
        _record(0, 1e-3, 3e-3),
        _record(0, 1e10),
        "[0, [",
        _record(9, 1e-3),
        _record(1, 2e-3),
    ]
    state = import_database(_small(tmp_path, records), tmp_path / "run").poll()
    assert (state.trials, state.failed_trials) == (3, 1)
    assert state.tasks[0].best_latency_s == 2e-3
    assert "2 damaged lines" in state.message


def test_two_rounds_of_a_task_in_a_row_are_told_apart(tmp_path):
    tasks = [0] * 4 + [1] * 4 + [0] * 8 + [1] * 3
    records = [_record(t, 1e-3 * (i + 1)) for i, t in enumerate(tasks)]
    state = import_database(_small(tmp_path, records), tmp_path / "run").poll()
    assert [r[0] for r in state.tasks[0].rounds] == [4, 8, 12]
    assert [r[0] for r in state.tasks[1].rounds] == [4, 7]


@pytest.mark.parametrize("weights", [[1], [1, 2, 3], [1, 0], [1, 1.5], [True, 1]])
def test_weights_that_do_not_fit(tmp_path, weights):
    with pytest.raises(InputError, match="weight"):
        import_database(_small(tmp_path, []), tmp_path / "run", weights=weights)
    assert not (tmp_path / "run").exists()


def test_what_is_no_database(tmp_path):
    with pytest.raises(RunError, match="no such file"):
        import_database(tmp_path, tmp_path / "run")
    (tmp_path / WORKLOAD_FILE).write_text("")
    with pytest.raises(RunError, match="holds no workload"):
        import_database(tmp_path, tmp_path / "run")
    (tmp_path / f"{RECORD_FILE}.gz").write_bytes(b"\x1f\x8b broken")
    (tmp_path / WORKLOAD_FILE).write_text('["1", "%%%"]\n')
    with pytest.raises(RunError, match="line 1: a workload"):
        import_database(tmp_path, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_broken_compression_is_told(tmp_path):
    (tmp_path / f"{WORKLOAD_FILE}.gz").write_bytes(b"\x1f\x8b broken")
    with pytest.raises(RunError, match="cannot be read"):
        import_database(tmp_path, tmp_path / "run")


@pytest.mark.parametrize("cut", [0, 1, 100, 5000, 40000])
def test_a_cut_workload_is_refused_not_misread(cut):
    line = gzip.decompress((DATA / f"{WORKLOAD_FILE}.gz").read_bytes()).splitlines()[5].decode()
    with pytest.raises(RunError, match="cannot be read"):
        describe(line[:cut] + '"]')
