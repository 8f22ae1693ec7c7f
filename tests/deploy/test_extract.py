"""Extraction: tasks in order of their first use, described so that a person knows them."""

from __future__ import annotations

import dataclasses
import json

import pytest
from tvm import relax
from tvm.s_tir import meta_schedule as ms

from autotune_nb.errors import NetworkError
from autotune_nb.network.network import Network, TensorSpec
from autotune_nb.run import database
from autotune_nb.run.records import TaskInfo
from autotune_nb.tuning.extract import estimate_flops, extract, has_reduction, operators


def test_tasks_of_the_tiny_network(extraction):
    names = [task.name for task in extraction.tasks]
    assert names == ["fused_conv2d_add_relu", "max_pool2d", "mean", "fused_matmul_add1"]
    conv = extraction.tasks[0]
    assert conv.id == 0
    assert conv.weight == 1
    assert conv.operators == ("conv2d", "add", "relu")
    assert conv.shapes == (
        "float32[1, 12, 12, 3]",
        "float32[3, 3, 3, 16]",
        "float32[1, 1, 1, 16]",
        "float32[1, 12, 12, 16]",
    )
    products = 12 * 12 * 16 * 3 * 3 * 3
    assert 2 * products <= conv.flops <= 2.2 * products
    assert not any(task.trivial for task in extraction.tasks)


def test_listings_can_be_read(extraction):
    assert "def main(" in extraction.listings[0]
    assert "conv2d_nhwc" in extraction.listings[0]


def test_a_subgraph_that_occurs_twice_is_one_task(target):
    x = relax.Var("x", relax.TensorType((4, 8), "float32"))
    w = relax.Var("w", relax.TensorType((8, 8), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x, w]):
        with builder.dataflow():
            y = x
            for _ in range(3):
                y = builder.emit(relax.op.nn.relu(relax.op.matmul(y, w)))
            output = builder.emit_output(relax.op.nn.softmax(y))
        builder.emit_func_output(output)
    network = Network(name="n", module=builder.get(), params={}, inputs=(), outputs=())
    tasks = extract(network, target).tasks
    assert [(task.name, task.weight) for task in tasks] == [
        ("fused_matmul_relu", 3),
        ("softmax", 1),
    ]


def test_moving_data_is_trivial(target):
    x = relax.Var("x", relax.TensorType((4, 8), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            output = builder.emit_output(relax.op.permute_dims(x))
        builder.emit_func_output(output)
    network = Network(name="n", module=builder.get(), params={}, inputs=(), outputs=())
    (task,) = extract(network, target).tasks
    assert (task.trivial, task.flops, task.operators) == (True, 0.0, ("transpose",))


def test_a_network_that_computes_nothing_is_refused(target):
    x = relax.Var("x", relax.TensorType((4, 8), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            output = builder.emit_output(x)
        builder.emit_func_output(output)
    spec = TensorSpec(name="x", shape=(4, 8), dtype="float32")
    network = Network(
        name="nothing", module=builder.get(), params={}, inputs=(spec,), outputs=(spec,)
    )
    with pytest.raises(NetworkError, match="nothing: has no operator to tune"):
        extract(network, target)


def test_plain_tvm_finds_the_workloads(extraction, records, tmp_path, target):
    database.append_workloads(tmp_path, extraction.workloads)
    (tmp_path / database.RECORD_FILE).write_text("".join(line + "\n" for line in records))
    stored = ms.database.JSONDatabase(work_dir=str(tmp_path))
    for task, module in zip(extraction.tasks, extraction.modules, strict=True):
        assert stored.has_workload(module)
        record = stored.query_tuning_record(module, target, task.name)
        assert [float(s) for s in record.run_secs] == [pytest.approx(1e-3 * (task.id + 1))]


def test_tasks_survive_json(extraction):
    for task in extraction.tasks:
        assert TaskInfo.from_json(json.loads(json.dumps(dataclasses.asdict(task)))) == task


def test_flops_and_reductions(extraction):
    dense = extraction.modules[3]
    assert estimate_flops(dense) == pytest.approx(2 * 16 * 10 + 10, rel=0.1)
    assert has_reduction(dense)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("fused_conv2d1_add12_relu", ("conv2d", "add", "relu")),
        ("fused_conv2d_transpose3_add_tir_sigmoid1", ("conv2d_transpose", "add", "sigmoid")),
        ("max_pool2d", ("max_pool2d",)),
        ("fused_layer_norm_log_softmax2", ("layer_norm", "log_softmax")),
        ("fused_resize2d_unheardof7_concatenate", ("resize2d", "unheardof", "concatenate")),
    ],
)
def test_operators_by_name(name, expected):
    assert operators(name) == expected
