"""Breaks small ONNX models at random, imports what is left, and compares what imports.

    python -m tests.network.mutations FIRST_SEED COUNT

Prints a line for each mutation that ends in anything but one clear error or the right result.
"""

from __future__ import annotations

import random
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from autotune_nb.errors import NetworkError
from autotune_nb.network import from_onnx
from tests.network import models
from tests.network.numerics import random_inputs, run_reference, run_tvm

_OPERATORS = """
    Relu Sigmoid Add Conv MatMul Transpose Shape Softmax GRU If Loop Resize Cast Reshape TopK Div
    ConstantOfShape Pow ReduceMax Squeeze Tile Expand Gather NonZero Identity Dropout Clip Where
    Split NoSuchThing
"""
_BYTES = ["truncate", "flip"]
_GRAPH = [
    *("drop", "rename", "dtype", "attribute", "dimension"),
    *("exchange", "operator", "weight", "repeat", "output"),
]


def mutate(rng: random.Random, model: onnx.ModelProto) -> tuple[str, Any]:
    """Return what was done, and the bytes of a file or a model."""
    kind = rng.choice([*_BYTES, *_BYTES, *_GRAPH])
    if kind in _BYTES:
        data = bytearray(model.SerializeToString())
        if kind == "truncate":
            return kind, bytes(data[: rng.randrange(len(data))])
        for _ in range(rng.choice([1, 8])):
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        return kind, bytes(data)
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    _change(rng, kind, copy.graph)
    return kind, copy


def _change(rng: random.Random, kind: str, graph: Any) -> None:
    node = rng.choice(graph.node)
    value = rng.choice([*graph.input, *graph.output])
    if kind == "drop":
        graph.node.remove(node)
    elif kind == "rename":
        node.input[rng.randrange(len(node.input))] = rng.choice(["nope", "x", "", "w", "r"])
    elif kind == "dtype":
        value.type.tensor_type.elem_type = rng.randrange(24)
    elif kind == "attribute":
        attribute = rng.choice([a for n in graph.node for a in n.attribute])
        number = rng.choice([0, -1, 2, 3, 7, 100, 2**31, -(2**63), 2**62])
        if attribute.ints:
            attribute.ints[rng.randrange(len(attribute.ints))] = number
        else:
            attribute.i = number
    elif kind == "dimension":
        dims = value.type.tensor_type.shape.dim
        dims[rng.randrange(len(dims))].dim_value = rng.choice([0, 1, 3, 17, -1, 2**40, 2**62])
    elif kind == "exchange":
        one, other = rng.sample(range(len(graph.node)), 2)
        first, second = graph.node[one], graph.node[other]
        first.op_type, second.op_type = second.op_type, first.op_type
    elif kind == "operator":
        node.op_type = rng.choice(_OPERATORS.split())
    elif kind == "weight":
        tensor = rng.choice(graph.initializer)
        tensor.dims[0] = rng.choice([0, 1, 2, 9, 2**40])
    elif kind == "repeat":
        graph.node.append(node)
    else:
        graph.output[0].name = rng.choice(["r", "a", "x", "nope", "w", ""])


def trouble(model: Any) -> str:
    """Import a model; return what went wrong with that, or ''."""
    try:
        net = from_onnx(model)
    except NetworkError as error:
        return "several lines" if "\n" in str(error) else ""
    except BaseException as error:
        return f"raw {type(error).__name__}: {error}"
    inputs = random_inputs(net.inputs)
    expected = run_reference(net, inputs)
    if not all(np.isfinite(e).all() for e in expected):
        return ""
    try:
        got = run_tvm(net, inputs)
    except Exception as error:
        return f"does not run: {type(error).__name__}: {error}"
    for g, e in zip(got, expected, strict=True):
        worst = np.abs(g.astype("float64") - e.astype("float64")).max(initial=0)
        if g.shape != e.shape or worst > 5e-5 * np.abs(e).max(initial=0) + 1e-6:
            return f"wrong by {worst}"
    return ""


def main(first: int, count: int) -> None:
    """Try mutations by seed, and print those that end badly."""
    base = [models.convolution(opset) for opset in (9, 13, 17)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "broken.onnx"
        for seed in range(first, first + count):
            rng = random.Random(seed)
            kind, model = mutate(rng, rng.choice(base))
            if isinstance(model, bytes):
                path.write_bytes(model)
                model = path
            if what := trouble(model):
                sys.stdout.write(f"seed {seed} ({kind}): {what}\n")
    sys.stdout.write(f"tried {count}\n")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
