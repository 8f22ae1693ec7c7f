"""A small convolutional network with an ONNX model of the same function, and its records."""

from __future__ import annotations

import json

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from tvm import relax
from tvm.s_tir import meta_schedule as ms

from autotune_nb.network.network import Network, TensorSpec
from autotune_nb.run import database
from autotune_nb.tuning import fallback
from autotune_nb.tuning.extract import extract
from autotune_nb.tuning.target import resolve


@pytest.fixture(scope="session")
def target():
    return resolve("llvm")


def tiny_params(seed=0):
    generator = np.random.default_rng(seed)
    shapes = {"w1": (3, 3, 3, 16), "b1": (1, 1, 1, 16), "w2": (16, 10), "b2": (10,)}
    return {
        name: generator.standard_normal(shape).astype("float32") for name, shape in shapes.items()
    }


def tiny_network(name="tiny", seed=0):
    """Convolution, ReLU, the same convolution's shape of pooling, mean and a dense layer: NHWC."""
    params = tiny_params(seed)
    x = relax.Var("x", relax.TensorType((1, 12, 12, 3), "float32"))
    weights = {k: relax.Var(k, relax.TensorType(v.shape, "float32")) for k, v in params.items()}
    builder = relax.BlockBuilder()
    with builder.function("main", [x, *weights.values()]):
        with builder.dataflow():
            y = relax.op.nn.conv2d(
                x, weights["w1"], padding=(1, 1), data_layout="NHWC", kernel_layout="HWIO"
            )
            y = builder.emit(relax.op.nn.relu(relax.op.add(y, weights["b1"])))
            y = builder.emit(relax.op.nn.max_pool2d(y, (2, 2), strides=(2, 2), layout="NHWC"))
            y = builder.emit(relax.op.mean(y, axis=[1, 2]))
            y = builder.emit(relax.op.add(relax.op.matmul(y, weights["w2"]), weights["b2"]))
            output = builder.emit_output(y)
        builder.emit_func_output(output)
    return Network(
        name=name,
        module=builder.get(),
        params=params,
        inputs=(TensorSpec(name="x", shape=(1, 12, 12, 3), dtype="float32"),),
        outputs=(TensorSpec(name="y", shape=(1, 10), dtype="float32"),),
        layout="NHWC",
        reference=tiny_onnx(params).SerializeToString(),
    )


def tiny_onnx(params):
    """The same function, channels first."""
    constants = {
        "w1": params["w1"].transpose(3, 2, 0, 1),
        "b1": params["b1"].reshape(-1),
        "w2": params["w2"],
        "b2": params["b2"],
    }
    nodes = [
        helper.make_node("Conv", ["x", "w1", "b1"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("MaxPool", ["r"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("GlobalAveragePool", ["p"], ["g"]),
        helper.make_node("Flatten", ["g"], ["f"]),
        helper.make_node("Gemm", ["f", "w2", "b2"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "tiny",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1, 3, 12, 12])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [1, 10])],
        [numpy_helper.from_array(np.ascontiguousarray(v), k) for k, v in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


@pytest.fixture(scope="session")
def tiny():
    return tiny_network()


@pytest.fixture(scope="session")
def extraction(tiny, target):
    return extract(tiny, target)


def record_line(task, module, schedule, seconds, target):
    """A line of the record file for a schedule of a task's module."""
    record = ms.database.TuningRecord(
        schedule.trace,
        ms.database.Workload(module),
        [seconds],
        target,
        ms.arg_info.ArgInfo.from_entry_func(module, remove_preproc=False),
    )
    trace, _, stored_target, arguments = record.as_json()
    return database.record_line(task, trace, [seconds], stored_target, arguments)


@pytest.fixture(scope="session")
def records(extraction, target):
    """Two lines for each task: a good schedule, and the unscheduled function, which is slower."""
    from tvm.s_tir import Schedule

    lines = []
    for task, module in zip(extraction.tasks, extraction.modules, strict=True):
        lines.append(record_line(task.id, module, Schedule(module), 9e-3, target))
        good = fallback.candidates(module, target)[0]
        lines.append(record_line(task.id, module, good, 1e-3 * (task.id + 1), target))
    return lines


@pytest.fixture(scope="session")
def workloads(extraction):
    return [json.dumps(workload) for workload in extraction.workloads]


@pytest.fixture(scope="session")
def image():
    return np.random.default_rng(1).standard_normal((1, 12, 12, 3)).astype("float32")
