"""Compiling: the best record of each function, a fallback for the rest, and every one accounted."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys

import numpy as np
import onnxruntime as ort
import pytest
from tvm.s_tir import Schedule

from autotune_nb.deploy.compile import compile_network, compile_run
from autotune_nb.deploy.history import History
from autotune_nb.deploy.library import Coverage, Library
from autotune_nb.deploy.quiet import quiet
from autotune_nb.errors import CompileError, InputError, RunError
from autotune_nb.network import store
from autotune_nb.run import database
from autotune_nb.run.directory import RunDirectory
from autotune_nb.run.manifest import Options
from autotune_nb.tuning.create import create
from tests.deploy.conftest import record_line, tiny_network

# What a program needs to run an exported library: TVM, numpy, and nothing of this package.
RUNTIME_ONLY = """
import sys
import numpy, tvm
from tvm import relax
machine = relax.VirtualMachine(tvm.runtime.load_module(sys.argv[1]), tvm.cpu())
output = machine["main"](tvm.runtime.tensor(numpy.load(sys.argv[2])))
assert not any(name.startswith("autotune_nb") for name in sys.modules)
numpy.save(sys.argv[3], output.numpy())
"""


def stored(lines):
    """Records as reading them from a file gives them."""
    found = []
    for line in lines:
        task, (_, seconds, _, _) = json.loads(line)
        latency = None if seconds == [database.FAILED_S] else seconds[0]
        found.append(
            database.StoredRecord(
                digest=database.digest(line), task=task, latency_s=latency, line=line
            )
        )
    return found


@pytest.fixture(scope="module")
def fallback_library(tiny, target):
    return compile_network(tiny, target)


@pytest.fixture(scope="module")
def tuned_library(tiny, target, workloads, records):
    return compile_network(tiny, target, History(workloads, stored(records)))


@pytest.fixture(scope="module")
def expected(tiny, image):
    session = ort.InferenceSession(tiny.reference)
    return session.run(None, {"x": image.transpose(0, 3, 1, 2)})[0]


def assert_close(outputs, expected):
    (output,) = outputs
    assert np.abs(output - expected).max() <= 2e-5 * np.abs(expected).max()


def test_with_no_record_everything_falls_back(fallback_library, image, expected, extraction):
    coverage = fallback_library.coverage
    assert coverage.tuned == ()
    assert dict(coverage.fallback) == {task.name: "tiled" for task in extraction.tasks}
    assert coverage.problems == ()
    assert fallback_library.estimated_total_latency_s is None
    assert_close(fallback_library.run([image]), expected)


def test_untuned_is_what_tvm_makes_of_it(tiny, target, image, expected):
    library = compile_network(tiny, target, schedules="untuned")
    assert {rule for _, rule in library.coverage.fallback} == {"as is"}
    assert_close(library.run([image]), expected)


def test_each_function_runs_its_best_record(tuned_library, extraction, records, image, expected):
    assert tuned_library.coverage.fallback == ()
    assert tuned_library.coverage.problems == ()
    found = {function.name: function for function in tuned_library.coverage.tuned}
    for task in extraction.tasks:
        function = found[task.name]
        assert (function.task, function.calls) == (task.id, task.weight)
        assert function.record == database.digest(records[2 * task.id + 1])
        assert function.latency_s == pytest.approx(1e-3 * (task.id + 1))
    assert tuned_library.estimated_total_latency_s == pytest.approx(1e-3 * (1 + 2 + 3 + 4))
    assert_close(tuned_library.run([image]), expected)


def test_some_tasks_tuned(tiny, target, workloads, records, image, expected):
    library = compile_network(tiny, target, History(workloads, stored(records[:2])))
    assert library.coverage.to_json() == {
        "tuned": ["fused_conv2d_add_relu"],
        "fallback": ["max_pool2d", "mean", "fused_matmul_add1"],
        "library": [],
    }
    assert str(library.coverage) == "1 tuned, 3 fallback"
    assert_close(library.run([image]), expected)


def test_failed_trials_are_no_records(tiny, target, workloads, records):
    value = json.loads(records[1])
    value[1][1] = [database.FAILED_S]
    history = History(workloads, stored([json.dumps(value)]))
    assert compile_network(tiny, target, history).coverage.tuned == ()


def test_records_that_fit_nothing_are_reported(target, workloads, records):
    from tvm import relax

    from autotune_nb.network.network import Network, TensorSpec

    x = relax.Var("x", relax.TensorType((4, 4), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            output = builder.emit_output(relax.op.exp(x))
        builder.emit_func_output(output)
    spec = TensorSpec(name="x", shape=(4, 4), dtype="float32")
    other = Network(name="o", module=builder.get(), params={}, inputs=(spec,), outputs=(spec,))
    coverage = compile_network(other, target, History(workloads, stored(records))).coverage
    assert coverage.to_json()["fallback"] == ["tir_exp"]
    assert coverage.problems[0] == "workload 0: its 2 records fit no function of this network"
    assert len(coverage.problems) == 4


def test_a_record_that_cannot_be_applied_gives_way_to_the_next(tiny, target, workloads, records):
    value = json.loads(records[1])
    value[1][0][0][0][2] = ["no_such_block", "main"]  # the attributes of the first instruction
    value[1][1] = [1e-6]
    broken = json.dumps(value)
    history = History(workloads, stored([broken, *records]))
    coverage = compile_network(tiny, target, history).coverage
    assert coverage.tuned[0].record == database.digest(records[1])
    assert len(coverage.tuned) == 4
    assert f"record {database.digest(broken)} could not be applied" in coverage.problems[0]


def test_a_record_that_does_not_build_gives_way_to_the_next(
    tiny, target, workloads, records, extraction, image, expected
):
    schedule = Schedule(extraction.modules[2])
    block = schedule.get_child_blocks(schedule.get_sblock("root"))[0]
    schedule.bind(schedule.get_loops(block)[0], "threadIdx.x")  # no CPU has that
    bad = record_line(2, extraction.modules[2], schedule, 1e-7, target)
    library = compile_network(tiny, target, History(workloads, stored([bad, *records])))
    mean = next(function for function in library.coverage.tuned if function.name == "mean")
    assert mean.record == database.digest(records[5])
    assert f"mean: record {database.digest(bad)} does not build" in library.coverage.problems[0]
    assert_close(library.run([image]), expected)


def test_damaged_workloads_are_named(workloads):
    with pytest.raises(CompileError, match=r"database_workload.json: line 2 is damaged"):
        History([workloads[0], '["1", "AAAA"]'], [])


def test_inputs_are_checked(fallback_library, image):
    by_name = fallback_library.run({"x": image})[0]
    assert np.array_equal(by_name, fallback_library.run([image])[0])
    for wrong, message in [
        ([], "takes 1 inputs, not 0"),
        ({"y": image}, "takes the inputs x, not y"),
        ([image.transpose(0, 3, 1, 2)], r"was given float32\[1, 3, 12, 12\]"),
        ([image.astype("float64")], "was given float64"),
    ]:
        with pytest.raises(InputError, match=message):
            fallback_library.run(wrong)


def test_export_and_load(tuned_library, image, tmp_path, target):
    path = tuned_library.export(tmp_path / "tiny.so")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["tiny.so", "tiny.so.json"]
    metadata = json.loads((tmp_path / "tiny.so.json").read_text())
    assert metadata["name"] == "tiny"
    assert metadata["inputs"] == [{"name": "x", "shape": [1, 12, 12, 3], "dtype": "float32"}]
    assert metadata["target"] == json.loads(str(target))
    assert metadata["environment"] == {"TVM_NUM_THREADS": str(metadata["target"]["num-cores"])}
    loaded = Library.load(path)
    assert loaded.coverage == tuned_library.coverage
    assert loaded.signature == tuned_library.signature
    assert np.array_equal(loaded.run([image])[0], tuned_library.run([image])[0])
    with pytest.raises(CompileError, match="cannot be exported again"):
        loaded.export(tmp_path / "again.so")


def test_an_exported_library_needs_the_runtime_only(tuned_library, image, tmp_path):
    path = tuned_library.export(tmp_path / "tiny.so")
    np.save(tmp_path / "x.npy", image)
    subprocess.run(
        [sys.executable, "-c", RUNTIME_ONLY, path, tmp_path / "x.npy", tmp_path / "y.npy"],
        check=True,
        cwd=tmp_path,
        capture_output=True,
    )
    assert np.array_equal(np.load(tmp_path / "y.npy"), tuned_library.run([image])[0])


def test_export_and_load_say_what_is_wrong(tuned_library, tmp_path):
    with pytest.raises(CompileError, match="its folder does not exist"):
        tuned_library.export(tmp_path / "no" / "tiny.so")
    with pytest.raises(InputError, match=r"gone.so.json: cannot be read"):
        Library.load(tmp_path / "gone.so")
    path = tuned_library.export(tmp_path / "tiny.so")
    path.write_bytes(b"no library")
    with pytest.raises(InputError, match=r"tiny.so: cannot be loaded"):
        Library.load(path)


def test_the_noise_of_constants_is_held_back(fallback_library, tmp_path, capfd):
    fallback_library.export(tmp_path / "tiny.so")
    assert "Scope" not in capfd.readouterr().err
    with quiet():
        os.write(2, b"x.cc:1: Warning: Scope Saving: a\nsomething else\n")
    assert capfd.readouterr().err == "something else\n"


def test_coverage_of_calls_into_libraries_is_told():
    coverage = Coverage(library=("cublas.matmul",), problems=("p",))
    assert str(coverage) == "0 tuned, 0 fallback, 1 library; 1 problems"


@pytest.fixture
def run(tiny, records, tmp_path):
    create(tmp_path / "run", tiny, "llvm", Options())
    for line in records:
        database.append_record(tmp_path / "run", line)
    return RunDirectory(tmp_path / "run")


def test_compile_run(run, image, expected):
    library = compile_run(run)
    assert str(library.coverage) == "4 tuned, 0 fallback"
    assert_close(library.run([image]), expected)


def test_compile_a_run_while_a_record_is_being_written(run, records):
    with (run.path / database.RECORD_FILE).open("a") as file:
        file.write(records[0][: len(records[0]) // 2])
    assert str(compile_run(run).coverage) == "4 tuned, 0 fallback"


def test_a_run_with_another_network_is_refused(run):
    for path in run.network.iterdir():
        if path.is_file():
            path.unlink()
    store.save(dataclasses.replace(tiny_network(seed=5), name="other"), run.network)
    with pytest.raises(RunError, match="holds another network"):
        compile_run(run)
