"""TVM's habits that this project works around, each seen in TVM itself.

A test that fails here says that TVM has changed: look at the workaround named in its docstring (the
list is in CONTRIBUTING.md), which may have to change or may go.
"""

from __future__ import annotations

import importlib.metadata
import inspect
from pathlib import Path

import onnx
import pytest
import tvm
from onnx import TensorProto, helper
from packaging.requirements import Requirement
from tvm import relax, te
from tvm.relax.frontend.onnx import from_onnx
from tvm.s_tir import Schedule
from tvm.s_tir import meta_schedule as ms


def llvm(cpu: str | None = None) -> tvm.target.Target:
    named = {} if cpu is None else {"mcpu": cpu}
    return tvm.target.Target({"kind": "llvm", "num-cores": 1, **named})


def one_node(domain: str = "", batch: int | str = 1) -> onnx.ModelProto:
    node = helper.make_node("Relu", ["x"], ["y"], domain=domain)
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [batch, 4]) for n in ("x", "y"))
    opsets = [helper.make_opsetid("", 17)]
    if domain:
        opsets.append(helper.make_opsetid(domain, 1))
    return helper.make_model(helper.make_graph([node], "graph", [x], [y]), opset_imports=opsets)


def adder() -> tvm.ir.IRModule:
    source = te.placeholder((8,), name="source")
    result = te.compute((8,), lambda i: source[i] + 1, name="result")
    function = te.create_prim_func([source, result]).with_attr("global_symbol", "main")
    return tvm.IRModule({"main": function})


def test_tvm_accepts_a_tvm_ffi_it_crashes_with() -> None:
    """So pyproject.toml pins both, and doctor compares them."""
    requirements = map(Requirement, importlib.metadata.requires("apache-tvm") or [])
    (ffi,) = [wanted for wanted in requirements if wanted.name == "apache-tvm-ffi"]
    assert ffi.specifier.contains("0.1.15")


def test_a_tuning_context_imports_the_intrinsics_of_all_hardware() -> None:
    """So tuning/tvm_setup.py puts a stand-in in their place."""
    assert "import tvm.s_tir.tensor_intrin" in inspect.getsource(ms.TuneContext.__init__)


def test_targets_with_options_as_text_are_refused() -> None:
    """So tuning/target.py says how to write them instead."""
    with pytest.raises(ValueError, match="no longer supported"):
        tvm.target.Target("llvm -mcpu=znver3")


def test_an_unknown_cpu_is_taken_for_a_generic_one() -> None:
    """So tuning/target.py refuses it."""
    assert str(llvm("pentium9").attrs["mcpu"]) == "pentium9"


def test_tasks_are_found_only_after_lowering() -> None:
    """So network/lowering.py comes first, and compiling goes through it as well."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((4, 4), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            output = builder.emit_output(builder.emit(relax.op.nn.relu(x)))
        builder.emit_func_output(output)
    assert list(ms.relax_integration.extract_tasks(builder.get(), llvm())) == []


def test_the_database_does_not_name_a_torn_file(tmp_path: Path) -> None:
    """So the run directory mends its files before TVM opens them."""
    ms.database.JSONDatabase(work_dir=str(tmp_path))
    (tmp_path / "database_workload.json").write_text('["123", "abc')
    with pytest.raises(RuntimeError) as caught:
        ms.database.JSONDatabase(work_dir=str(tmp_path))
    assert "database_workload" not in str(caught.value)


def test_records_are_found_whatever_their_target() -> None:
    """So a run directory has one target, which its manifest names."""
    database = ms.database.MemoryDatabase()
    module = adder()
    schedule = Schedule(module)
    schedule.parallel(*schedule.get_loops(schedule.get_sblock("result")))
    record = ms.database.TuningRecord(
        schedule.trace,
        database.commit_workload(module),
        [1.0],
        llvm("znver3"),
        ms.arg_info.ArgInfo.from_entry_func(module),
    )
    database.commit_tuning_record(record)
    found = database.query_tuning_record(module, llvm("skylake"), "main")
    assert found is not None
    assert str(found.target.attrs["mcpu"]) == "znver3"


def test_the_onnx_importer_ignores_domains() -> None:
    """So network/ refuses nodes of other domains before TVM sees them."""
    assert "R.nn.relu" in from_onnx(one_node(domain="com.example")).script()


def test_the_onnx_importer_ignores_shapes_for_inputs_that_do_not_exist() -> None:
    """So network/ checks their names."""
    imported = from_onnx(one_node(batch="n"), shape_dict={"wrong": (1, 4)})
    assert "R.Tensor((n, 4)" in imported.script()
