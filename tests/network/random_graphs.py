"""Makes random small ONNX graphs, imports them, and compares what they compute with ONNX Runtime.

    python -m tests.network.random_graphs FIRST_SEED COUNT

Prints a line for each graph that ends in anything but the right result or a plain refusal.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import helper

from autotune_nb.errors import NetworkError
from autotune_nb.network import from_onnx
from tests.network import models
from tests.network.numerics import random_inputs, run_reference, run_tvm

_OPSETS = (11, 13, 14, 17, 18, 20)
_UNARY = "Relu Sigmoid Tanh Abs Neg Exp Softplus Erf Floor Ceil Elu Selu LeakyRelu HardSigmoid Sqrt"
_BINARY = "Add Sub Mul Max Min Div"
_REDUCE = "ReduceMean ReduceMax ReduceMin ReduceProd ReduceL2 ReduceL1"


class Graph:
    """A graph in the making: what is computed so far, with the shape that ONNX Runtime gave it."""

    def __init__(self, rng: random.Random, opset: int) -> None:
        self.rng = rng
        self.opset = opset
        self.values = np.random.default_rng(rng.randrange(2**32))
        self.nodes: list[onnx.NodeProto] = []
        self.weights: dict[str, Any] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.last = "x"

    def weight(self, *shape: int, positive: bool = False) -> str:
        """Add a weight."""
        value = self.values.standard_normal(shape).astype("float32")
        return self.constant(np.abs(value) + 0.5 if positive else value)

    def constant(self, value: Any) -> str:
        """Add a weight of a given value."""
        name = f"w{len(self.weights)}"
        self.weights[name] = np.asarray(value)
        return name

    def emit(self, kind: str, *inputs: str, **attributes: Any) -> None:
        """Add a node on the last value."""
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, [self.last, *inputs], [name], **attributes))
        self.last = name

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the last value."""
        return self.shapes[self.last]


def _unary(g: Graph) -> None:
    kind = g.rng.choice(_UNARY.split())
    if kind == "Sqrt":
        g.emit("Abs")
    alpha = {"LeakyRelu": 0.1, "Elu": 0.7, "HardSigmoid": 0.3}.get(kind)
    g.emit(kind, **({} if alpha is None else {"alpha": alpha}))


def _binary(g: Graph) -> None:
    kind = g.rng.choice(_BINARY.split())
    shape = tuple(1 if g.rng.random() < 0.4 else extent for extent in g.shape)
    shape = shape[g.rng.choice([0, 0, 1]) :] or (1,)
    g.emit(kind, g.weight(*shape, positive=kind == "Div"))


def _residual(g: Graph) -> None:
    same = [name for name, shape in g.shapes.items() if shape == g.shape]
    g.emit(g.rng.choice(["Add", "Mul", "Sub"]), g.rng.choice(same))


def _conv(g: Graph) -> None:
    _, channels, height, width = g.shape
    groups = g.rng.choice([n for n in (1, 1, 2, channels) if channels % n == 0])
    kernel = [g.rng.choice([1, 2, 3]), g.rng.choice([1, 3])]
    dilation = g.rng.choice([1, 1, 2])
    attributes: dict[str, Any] = {"group": groups, "dilations": [dilation] * 2}
    attributes["strides"] = [g.rng.choice([1, 1, 2]), g.rng.choice([1, 2])]
    if g.rng.random() < 0.3:
        attributes["auto_pad"] = g.rng.choice(["SAME_UPPER", "SAME_LOWER", "VALID"])
    else:
        attributes["pads"] = [g.rng.choice([0, 1, 2]) for _ in range(4)]
    if min(height, width) < 5:
        attributes |= {"dilations": [1, 1], "auto_pad": "SAME_UPPER"}
        attributes.pop("pads", None)
    outputs = groups * g.rng.choice([1, 2, 3])
    bias = [g.weight(outputs)] if g.rng.random() < 0.5 else []
    g.emit("Conv", g.weight(outputs, channels // groups, *kernel), *bias, **attributes)


def _transposed(g: Graph) -> None:
    channels = g.shape[1]
    attributes = {"strides": [g.rng.choice([1, 2])] * 2, "pads": [g.rng.choice([0, 1])] * 4}
    g.emit("ConvTranspose", g.weight(channels, 3, 3, 3), **attributes)


def _norm(g: Graph) -> None:
    channels = g.shape[1]
    scale, bias = g.weight(channels), g.weight(channels)
    if g.rng.random() < 0.6:
        g.emit(
            "BatchNormalization", scale, bias, g.weight(channels), g.weight(channels, positive=True)
        )
    else:
        g.emit("InstanceNormalization", scale, bias, epsilon=1e-2)


def _pool(g: Graph) -> None:
    kind = g.rng.choice(["MaxPool", "AveragePool"])
    attributes: dict[str, Any] = {
        "kernel_shape": [g.rng.choice([2, 3])] * 2,
        "strides": [g.rng.choice([1, 2])] * 2,
    }
    if g.rng.random() < 0.3:
        attributes["auto_pad"] = g.rng.choice(["SAME_UPPER", "SAME_LOWER", "VALID"])
    else:
        attributes["pads"] = [g.rng.choice([0, 1]) for _ in range(4)]
        attributes["ceil_mode"] = g.rng.choice([0, 0, 1])
    if kind == "AveragePool":
        attributes["count_include_pad"] = g.rng.choice([0, 1])
    g.emit(kind, **attributes)


def _global_pool(g: Graph) -> None:
    g.emit(g.rng.choice(["GlobalAveragePool", "GlobalMaxPool"]))


def _reduce(g: Graph) -> None:
    kind = g.rng.choice(_REDUCE.split())
    count = min(len(g.shape) - 1, g.rng.choice([1, 1, 2]))
    axes = sorted(g.rng.sample(range(1, len(g.shape)), count))
    axes = [axis - g.rng.choice([0, len(g.shape)]) for axis in axes]
    keep = g.rng.choice([1, 1, 0])
    if g.opset < 18:
        g.emit(kind, axes=axes, keepdims=keep)
    else:
        g.emit(kind, g.constant(np.array(axes)), keepdims=keep)


def _softmax(g: Graph) -> None:
    g.emit(g.rng.choice(["Softmax", "LogSoftmax"]), axis=g.rng.randrange(len(g.shape)))


def _transpose(g: Graph) -> None:
    g.emit("Transpose", perm=g.rng.sample(range(len(g.shape)), len(g.shape)))


def _reshape(g: Graph) -> None:
    choices = [[0, -1], [-1], [*g.shape[1:], g.shape[0]], [1, *g.shape], [0, 0, -1]]
    g.emit("Reshape", g.constant(np.array(g.rng.choice(choices))))


def _slice(g: Graph) -> None:
    axis = g.rng.randrange(len(g.shape))
    start, step = g.rng.choice([(0, 1), (1, 1), (-2, 1), (0, 2), (-1, -1)])
    end = -(2**31) if step < 0 else 2**31
    g.emit("Slice", *(g.constant(np.array([n])) for n in (start, end, axis, step)))


def _pad(g: Graph) -> None:
    mode = g.rng.choice(["constant", "reflect", "edge"])
    edges = [g.rng.choice([0, 1]) if extent > 1 else 0 for extent in (*g.shape, *g.shape)]
    value = [g.constant(np.float32(0.5))] if mode == "constant" else []
    g.emit("Pad", g.constant(np.array(edges)), *value, mode=mode)


def _resize(g: Graph) -> None:
    mode = g.rng.choice(["nearest", "linear", "cubic"])
    scale = g.rng.choice([2.0, 1.5, 0.5, 3.0])
    scales = g.constant(np.array([1, 1, scale, scale], "float32"))
    way = g.rng.choice(["half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"])
    attributes: dict[str, Any] = {"mode": mode, "coordinate_transformation_mode": way}
    if mode == "nearest":
        attributes["nearest_mode"] = g.rng.choice(["floor", "round_prefer_floor", "ceil"])
    # Optional inputs are left out in two ways.
    roi = "" if g.opset >= 13 else g.constant(np.zeros(0, "float32"))
    g.emit("Resize", roi, scales, **attributes)


def _dense(g: Graph) -> None:
    columns, outputs = g.shape[-1], g.rng.choice([1, 3, 8])
    if len(g.shape) == 2 and g.rng.random() < 0.6:
        turned = g.rng.choice([0, 1])
        shape = (outputs, columns) if turned else (columns, outputs)
        bias = [g.weight(outputs)] if g.rng.random() < 0.6 else []
        g.emit("Gemm", g.weight(*shape), *bias, transB=turned, alpha=0.5, beta=2.0)
    else:
        g.emit("MatMul", g.weight(columns, outputs))


def _concat(g: Graph) -> None:
    g.emit("Concat", g.weight(*g.shape), g.last, axis=g.rng.randrange(-1, len(g.shape)))


def _gather(g: Graph) -> None:
    axis = g.rng.randrange(len(g.shape))
    indices = [g.rng.randrange(-g.shape[axis], g.shape[axis]) for _ in range(2)]
    g.emit("Gather", g.constant(np.array(indices)), axis=axis)


def _clip(g: Graph) -> None:
    g.emit("Clip", g.constant(np.float32(-0.5)), g.constant(np.float32(0.7)))


def _prelu(g: Graph) -> None:
    g.emit("PRelu", g.weight(g.shape[1], *[1] * (len(g.shape) - 2)))


def _layer_norm(g: Graph) -> None:
    if g.opset < 17:
        return _unary(g)
    return g.emit("LayerNormalization", g.weight(g.shape[-1]), g.weight(g.shape[-1]), axis=-1)


def _depth(g: Graph) -> None:
    channels, height, width = g.shape[1:]
    if channels % 4 == 0:
        g.emit("DepthToSpace", blocksize=2, mode=g.rng.choice(["DCR", "CRD"]))
    elif height % 2 == 0 and width % 2 == 0:
        g.emit("SpaceToDepth", blocksize=2)
    else:
        _unary(g)


def _expand(g: Graph) -> None:
    if g.rng.random() < 0.5:
        g.emit("Expand", g.constant(np.array([2, *[1] * len(g.shape)])))
    else:
        g.emit("Tile", g.constant(np.array([g.rng.choice([1, 2]) for _ in g.shape])))


def _squeeze(g: Graph) -> None:
    axis = g.rng.randrange(len(g.shape))
    if g.opset < 13:
        g.emit("Unsqueeze", axes=[axis])
    else:
        g.emit("Unsqueeze", g.constant(np.array([axis - len(g.shape) - 1])))


def _scaled(g: Graph) -> None:
    g.emit("LRN", size=3, alpha=0.1, beta=0.6, bias=1.5)


_ANY = [
    *(_unary, _binary, _binary, _residual, _softmax, _transpose, _reshape, _slice, _pad, _dense),
    *(_concat, _gather, _clip, _layer_norm, _expand, _squeeze, _reduce),
]
_IMAGES = [
    *(_conv, _conv, _conv, _conv, _transposed, _norm, _norm, _pool, _pool, _resize, _resize),
    *(_prelu, _depth, _global_pool, _scaled, _pad, _unary, _residual, _binary),
]
_LARGEST = 20_000


def graph(seed: int) -> onnx.ModelProto:
    """Return a valid model of three to eight nodes."""
    rng = random.Random(seed)
    g = Graph(rng, rng.choice(_OPSETS))
    g.shapes["x"] = rng.choice([(1, 4, 9, 8), (2, 3, 8, 8), (1, 8, 6, 7), (2, 5), (1, 4, 12)])
    wanted, tries = rng.randrange(3, 9), 0
    while len(g.nodes) < wanted and tries < 40:
        tries += 1
        usable: list[Callable[[Graph], None]] = list(_ANY)
        if len(g.shape) == 4:
            usable = [*_IMAGES, *_IMAGES, *_ANY]
        elif len(g.shape) < 2:
            usable = [_unary, _binary, _clip, _slice]
        before = (list(g.nodes), dict(g.weights), g.last)
        rng.choice(usable)(g)
        shapes = _shapes(g)
        if shapes is None:
            g.nodes, g.weights, g.last = before
        else:
            g.shapes |= shapes
    return _model(g, [g.last])


def _model(g: Graph, outputs: list[str]) -> onnx.ModelProto:
    return models.model(
        g.nodes,
        [models.value("x", g.shapes["x"])],
        [models.value(name, None) for name in outputs],
        g.weights,
        opset=g.opset,
    )


def _shapes(g: Graph) -> dict[str, tuple[int, ...]] | None:
    """Return the shapes of the newest values; None if ONNX Runtime cannot compute them sanely."""
    new = [node.output[0] for node in g.nodes if node.output[0] not in g.shapes]
    if not new:
        return {}
    got = _onnxruntime(_model(g, new), g.shapes["x"])
    if got is None or not all(0 < v.size < _LARGEST and np.isfinite(v).all() for v in got):
        return None
    if any(np.abs(v).max() > 1e4 for v in got):
        return None
    return {name: tuple(value.shape) for name, value in zip(new, got, strict=True)}


def _onnxruntime(model: onnx.ModelProto, shape: tuple[int, ...]) -> list[Any] | None:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # it warns of shapes that differ with ceil_mode
    options.intra_op_num_threads = 1
    inputs = {"x": np.random.default_rng(0).standard_normal(shape).astype("float32")}
    try:
        session = onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        return list(session.run(None, inputs, _quietly()))
    except Exception:
        return None


def _quietly() -> Any:
    options = onnxruntime.RunOptions()
    options.log_severity_level = 4
    return options


def trouble(model: onnx.ModelProto, layout: str | None) -> tuple[str, str]:
    """Return what went wrong with a model, or '', and the message if it was refused."""
    try:
        net = from_onnx(model, layout=layout)
    except NetworkError as error:
        return ("several lines" if "\n" in str(error) else ""), str(error)
    except BaseException as error:
        return f"raw {type(error).__name__}: {error}", ""
    inputs = random_inputs(net.inputs)
    expected = run_reference(net, inputs)
    try:
        got = run_tvm(net, inputs)
    except Exception as error:
        return f"does not run: {type(error).__name__}: {str(error)[-300:]}", ""
    for g, e in zip(got, expected, strict=True):
        worst = np.abs(g.astype("float64") - e.astype("float64")).max(initial=0)
        if g.shape != e.shape or not worst <= 5e-5 * np.abs(e).max(initial=0) + 1e-5:
            return f"wrong by {worst}", ""
    return "", ""


def main(first: int, count: int) -> None:
    """Try graphs by seed, print those that end badly, then how many there were and are refused."""
    refused: list[str] = []
    for seed in range(first, first + count):
        model = graph(seed)
        images = any(node.op_type == "Conv" for node in model.graph.node)
        layout = "NHWC" if images and seed % 2 else None
        what, refusal = trouble(model, layout)
        kinds = " ".join(node.op_type for node in model.graph.node)
        if what:
            sys.stdout.write(f"seed {seed} (opset {model.opset_import[0].version}, {layout}, ")
            sys.stdout.write(f"{kinds}): {what}\n")
        if refusal:
            refused.append(f"seed {seed} ({layout}, {kinds}): {refusal}")
    for line in refused:
        sys.stderr.write(f"refused: {line}\n")
    sys.stdout.write(f"tried {count}, refused {len(refused)}\n")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
