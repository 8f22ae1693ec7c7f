"""Small ONNX models made on the spot, and the real ones that come with packages."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

DATA = Path(__file__).parents[1] / "data" / "onnx"
FLOAT = TensorProto.FLOAT


def value(name: str, shape: Sequence[Any] | None, kind: int = FLOAT) -> onnx.ValueInfoProto:
    """Describe an input or output."""
    return helper.make_tensor_value_info(name, kind, shape)


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
    weights: dict[str, Any] | None = None,
    *,
    opset: int = 17,
    domains: Sequence[str] = (),
) -> onnx.ModelProto:
    """Make a model."""
    initializers = [numpy_helper.from_array(v, k) for k, v in (weights or {}).items()]
    graph = helper.make_graph(list(nodes), "g", list(inputs), list(outputs), initializers)
    opsets = [helper.make_opsetid("", opset), *(helper.make_opsetid(d, 1) for d in domains)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def convolution(opset: int = 17, batch: Any = 1) -> onnx.ModelProto:
    """Conv, BatchNormalization, Relu, MaxPool, GlobalAveragePool, Flatten, Gemm, Softmax."""
    rng = np.random.default_rng(0)

    def normal(*shape: int) -> Any:
        return rng.standard_normal(shape).astype("float32")

    weights = {
        "w": normal(8, 3, 3, 3),
        "b": normal(8),
        "gamma": normal(8),
        "beta": normal(8),
        "mean": normal(8),
        "var": np.abs(normal(8)) + 0.5,
        "fc": normal(5, 8),
        "fcb": normal(5),
    }
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("BatchNormalization", ["c", "gamma", "beta", "mean", "var"], ["n"]),
        helper.make_node("Relu", ["n"], ["r"]),
        helper.make_node("MaxPool", ["r"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("GlobalAveragePool", ["p"], ["a"]),
        helper.make_node("Flatten", ["a"], ["f"]),
        helper.make_node("Gemm", ["f", "fc", "fcb"], ["logits"], transB=1),
        helper.make_node("Softmax", ["logits"], ["y"], axis=1),
    ]
    return model(
        nodes, [value("x", [batch, 3, 16, 16])], [value("y", [batch, 5])], weights, opset=opset
    )


def ocr(kind: str) -> Path:
    """Return the path of PP-OCRv4's detector, recogniser or angle classifier."""
    spec = importlib.util.find_spec("rapidocr_onnxruntime")
    assert spec is not None
    assert spec.origin is not None
    name = {
        "det": "ch_PP-OCRv4_det_infer.onnx",
        "rec": "ch_PP-OCRv4_rec_infer.onnx",
        "cls": "ch_ppocr_mobile_v2.0_cls_infer.onnx",
    }[kind]
    return Path(spec.origin).parent / "models" / name


def logits(path: Path) -> onnx.ModelProto:
    """Return a model without the softmax or sigmoid it ends with."""
    net = onnx.load(path)
    nodes = {output: node for node in net.graph.node for output in node.output}
    last = nodes[net.graph.output[0].name]
    while last.op_type == "Identity":
        last = nodes[last.input[0]]
    assert last.op_type in ("Softmax", "Sigmoid")
    net.graph.output[0].name = last.input[0]
    net.graph.output[0].type.tensor_type.ClearField("shape")
    return net


def light(name: str, seed: int = 0) -> onnx.ModelProto:
    """Return a network that comes with the onnx package, with random weights, and without softmax.

    As shipped every weight is 0.02, on which anything agrees.
    """
    folder = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
    net = onnx.load(folder / f"light_{name}.onnx")
    graph, rng = net.graph, np.random.default_rng(seed)
    values = {t.name: numpy_helper.to_array(t) for t in graph.initializer}
    users = {i: (node, k) for node in graph.node for k, i in enumerate(node.input)}
    kept = []
    for node in graph.node:
        if node.op_type != "ConstantOfShape":
            kept.append(node)
            continue
        shape = tuple(int(v) for v in values[node.input[0]])
        user, place = users[node.output[0]]
        while user.op_type == "Unsqueeze":
            user, place = users[user.output[0]]
        drawn = _weight(rng, shape, user.op_type, place)
        graph.initializer.append(numpy_helper.from_array(drawn.astype("float32"), node.output[0]))
    if kept[-1].op_type == "Softmax":
        last = kept.pop()
        graph.output[0].name = last.input[0]
        graph.output[0].type.tensor_type.ClearField("shape")
    del graph.node[:]
    graph.node.extend(kept)
    used = {i for node in kept for i in node.input}
    left = [t for t in graph.initializer if t.name in used]
    del graph.initializer[:]
    graph.initializer.extend(left)
    shapes = [v for v in graph.input if v.name in used]
    del graph.input[:]
    graph.input.extend(shapes)
    return net


def _weight(rng: np.random.Generator, shape: tuple[int, ...], kind: str, place: int) -> Any:
    if kind in ("Conv", "Gemm") and place == 1:
        return rng.standard_normal(shape) * np.sqrt(2 / max(1, int(np.prod(shape[1:]))))
    if (kind == "BatchNormalization" and place in (1, 4)) or (kind == "Mul" and place == 1):
        return rng.uniform(0.5, 1.5, shape)
    return rng.standard_normal(shape) * 0.1
