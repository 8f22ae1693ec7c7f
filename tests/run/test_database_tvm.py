"""The text that we write is TVM's own database, and what TVM writes we read."""

import json
import math

import pytest
import tvm
from tvm import te
from tvm.s_tir import Schedule, meta_schedule

from autotune_nb.run import database


def module(n):
    x = te.placeholder((n, n), name="x")
    y = te.compute((n, n), lambda i, j: x[i, j] + 1.0, name="y")
    return tvm.IRModule({"main": te.create_prim_func([x, y])})


@pytest.fixture(scope="module")
def modules():
    return [module(8), module(16)]


@pytest.fixture(scope="module")
def target():
    return tvm.target.Target({"kind": "llvm", "num-cores": 2})


def trace(mod, factor):
    """Return a schedule's trace with one split in it."""
    schedule = Schedule(mod)
    (i, _) = schedule.get_loops(schedule.get_sblock("y"))
    schedule.split(i, factors=[None, factor])
    return schedule.trace


def tvm_database(path):
    return meta_schedule.database.JSONDatabase(
        str(path / database.WORKLOAD_FILE), str(path / database.RECORD_FILE)
    )


def record(mod, factor, times, target):
    database_workload = meta_schedule.database.Workload(mod)
    return meta_schedule.database.TuningRecord(
        trace(mod, factor),
        database_workload,
        times,
        target,
        meta_schedule.arg_info.ArgInfo.from_entry_func(mod, remove_preproc=True),
    )


def plain(value):
    """Return TVM's containers as Python's."""
    return json.loads(json.dumps(value, default=lambda v: list(v) if hasattr(v, "__len__") else v))


def write_ours(path, modules, target):
    workloads = [meta_schedule.database.Workload(mod).as_json() for mod in modules]
    database.append_workloads(path, [[str(part) for part in w] for w in workloads])
    texts = []
    for task, factor, times in [(0, 2, [2e-3]), (0, 4, [1e-3, 3e-3]), (1, 2, []), (1, 4, [5e-4])]:
        found = record(modules[task], factor, times, target).as_json()
        steps, _, where, args = (plain(part) for part in found)
        texts.append(database.record_line(task, steps, times, where, args))
        database.append_record(path, texts[-1])
    return texts


def test_tvm_reads_what_we_write(tmp_path, modules, target):
    write_ours(tmp_path, modules, target)
    theirs = tvm_database(tmp_path)
    assert len(theirs) == 4
    for mod in modules:
        assert theirs.has_workload(mod)
    best = theirs.query_tuning_record(modules[0], target, "main")
    assert [float(t) for t in best.run_secs] in ([2e-3], [1e-3, 3e-3])  # both 2 ms on average
    best = theirs.query_tuning_record(modules[1], target, "main")
    assert [float(t) for t in best.run_secs] == [5e-4]
    best_schedule = theirs.query_schedule(modules[1], target, "main")
    expected = Schedule(modules[1])
    (i, _) = expected.get_loops(expected.get_sblock("y"))
    expected.split(i, factors=[None, 4])
    tvm.ir.assert_structural_equal(best_schedule.mod, expected.mod)


def test_a_failed_trial_is_no_result_to_tvm(tmp_path, modules, target):
    database.append_workloads(
        tmp_path, [[str(p) for p in meta_schedule.database.Workload(modules[0]).as_json()]]
    )
    steps, _, where, args = map(plain, record(modules[0], 2, [1.0], target).as_json())
    database.append_record(tmp_path, database.record_line(0, steps, [], where, args))
    (ours,), _ = database.read_records(tmp_path)
    assert ours.latency_s is None
    theirs = tvm_database(tmp_path)
    assert len(theirs) == 1
    assert len(theirs.get_top_k(theirs.commit_workload(modules[0]), 5)) == 0
    assert theirs.query_tuning_record(modules[0], target, "main") is None


def test_we_read_what_tvm_writes(tmp_path, modules, target):
    theirs = tvm_database(tmp_path)
    for task, factor, times in [(0, 2, [2e-3, 4e-3]), (1, 4, [1e10]), (1, 8, [7e-4])]:
        workload = theirs.commit_workload(modules[task])
        theirs.commit_tuning_record(
            meta_schedule.database.TuningRecord(
                trace(modules[task], factor),
                workload,
                times,
                target,
                meta_schedule.arg_info.ArgInfo.from_entry_func(modules[task], remove_preproc=True),
            )
        )
    assert len(database.read_workloads(tmp_path)) == 2
    records, bad = database.read_records(tmp_path)
    assert bad == []
    assert [r.task for r in records] == [0, 1, 1]
    assert records[0].latency_s == math.fsum([2e-3, 4e-3]) / 2
    assert records[1].latency_s is None
    assert records[2].latency_s == 7e-4


def test_a_record_that_tvm_wrote_goes_through_us_unchanged(tmp_path, modules, target):
    texts = write_ours(tmp_path, modules, target)
    records, _ = database.read_records(tmp_path)
    assert [r.line for r in records] == texts
    for ours in records:
        task, (steps, times, where, args) = json.loads(ours.line)
        workload = meta_schedule.database.Workload(modules[task])
        again = meta_schedule.database.TuningRecord.from_json([steps, times, where, args], workload)
        assert plain(again.as_json())[0] == steps


def test_tvm_refuses_a_database_with_one_bad_line_and_mending_helps(tmp_path, modules, target):
    texts = write_ours(tmp_path, modules, target)
    path = tmp_path / database.RECORD_FILE
    path.write_text("\n".join([texts[0], texts[1][:40], texts[3]]) + "\n")
    with pytest.raises(RuntimeError, match="parallel_for_dynamic"):  # no file, no line number
        tvm_database(tmp_path)
    records, bad = database.read_records(tmp_path)
    assert bad == [texts[1][:40].encode()]
    path.write_text("".join(record.line + "\n" for record in records))
    assert len(tvm_database(tmp_path)) == 2


def test_tvm_refuses_a_record_of_a_workload_that_is_not_there(tmp_path, modules, target):
    """Which is why `recovery.mend` moves such a record aside."""
    texts = write_ours(tmp_path, modules, target)
    (tmp_path / database.RECORD_FILE).write_text("[9" + texts[0][2:] + "\n")
    with pytest.raises(RuntimeError, match="workload_index"):
        tvm_database(tmp_path)
