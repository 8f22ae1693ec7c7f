"""Turns a plan and its weights into an ONNX model: the independent reference of a zoo network.

The model is written channels first with its batch norms as they were drawn, so that comparing with
it also checks the folding and the layout. It takes and returns what the Relax module does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from autotune_nb.network.network import TensorSpec
from autotune_nb.network.zoo.plan import Layer, Plan, Value
from autotune_nb.network.zoo.token_onnx import TokenExporter
from autotune_nb.network.zoo.weights import Array

OPSET = 17
_TYPES = {
    "float32": TensorProto.FLOAT,
    "float16": TensorProto.FLOAT16,
    "int64": TensorProto.INT64,
}


def export(
    plan: Plan,
    weights: Mapping[str, Array],
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    *,
    channels_last: bool,
) -> bytes:
    """Return the serialised ONNX model.

    Parameters
    ----------
    plan, weights
        The network before batch norms are folded.
    inputs, outputs
        What the Relax module takes and returns. Where they are float16 the model casts, and
        computes in float32.
    channels_last
        Whether the images among the inputs, and an image as output, have their channels last.
    """
    return _Exporter(weights, channels_last).run(plan, inputs, outputs)


class _Exporter(TokenExporter):
    def __init__(self, weights: Mapping[str, Array], channels_last: bool) -> None:
        self.weights = weights
        self.channels_last = channels_last
        self.nodes: list[Any] = []
        self.initializers: dict[str, Any] = {}
        self.names: dict[int, str] = {}

    def run(self, plan: Plan, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> bytes:
        for (name, value, role), spec in zip(plan.inputs, inputs, strict=True):
            self.names[value.id] = self.adapt(name, value, role == "image", spec.dtype)
        for layer in plan.layers:
            method: Callable[..., str] = getattr(self, f"export_{layer.kind}")
            self.names[layer.output.id] = method(
                layer, *(self.names[value] for value in layer.inputs)
            )
        assert plan.output is not None
        last = self.names[plan.output.id]
        if self.channels_last and len(plan.output.shape) > 3:
            order = [0, *range(2, len(plan.output.shape)), 1]
            last = self.node("Transpose", [last], perm=order)
        to = _TYPES[outputs[0].dtype]
        self.node("Cast", [last], output=outputs[0].name, to=to)
        graph = helper.make_graph(
            self.nodes,
            "network",
            [helper.make_tensor_value_info(s.name, _TYPES[s.dtype], s.shape) for s in inputs],
            [helper.make_tensor_value_info(s.name, _TYPES[s.dtype], s.shape) for s in outputs],
            list(self.initializers.values()),
        )
        opset = [helper.make_opsetid("", OPSET)]
        model = helper.make_model(graph, opset_imports=opset, ir_version=8)
        return bytes(model.SerializeToString())

    # -- pieces ---------------------------------------------------------------------------------

    def node(self, kind: str, inputs: Sequence[str], *, output: str = "", **attrs: Any) -> str:
        """Add a node and return the name of its result."""
        name = output or f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [name], **attrs))
        return name

    def constant(self, name: str, value: Array) -> str:
        """Add an initializer and return its name."""
        if name not in self.initializers:
            self.initializers[name] = numpy_helper.from_array(np.ascontiguousarray(value), name)
        return name

    def integers(self, *values: int) -> str:
        """Add a vector of integers and return its name."""
        return self.constant("i_" + "_".join(map(str, values)), np.array(values, dtype=np.int64))

    def weight(self, layer: Layer, role: str) -> str:
        """Return the name of a weight."""
        name = layer.params[role].name
        return self.constant(name, self.weights[name])

    def adapt(self, name: str, value: Value, image: bool, dtype: str) -> str:
        """Return an input as float32 and channels first."""
        if dtype == "float16":
            name = self.node("Cast", [name], to=TensorProto.FLOAT)
        if image and self.channels_last:
            rank = len(value.shape)
            name = self.node("Transpose", [name], perm=[0, rank - 1, *range(1, rank - 1)])
        return name

    # -- layers ---------------------------------------------------------------------------------

    def export_conv(self, layer: Layer, x: str) -> str:
        inputs = [x, *(self.weight(layer, role) for role in layer.params)]
        attrs = layer.attrs
        return self.node(
            "Conv", inputs, strides=attrs["stride"], pads=attrs["pad"] * 2, group=attrs["groups"]
        )

    def export_conv_transpose(self, layer: Layer, x: str) -> str:
        inputs = [x, self.weight(layer, "weight")]
        attrs = layer.attrs
        return self.node("ConvTranspose", inputs, strides=attrs["stride"], pads=attrs["pad"] * 2)

    def export_batch_norm(self, layer: Layer, x: str) -> str:
        roles = ("gamma", "beta", "mean", "var")
        inputs = [x, *(self.weight(layer, role) for role in roles)]
        return self.node("BatchNormalization", inputs, epsilon=layer.attrs["epsilon"])

    def export_dense(self, layer: Layer, x: str) -> str:
        name = layer.params["weight"].name
        weight = self.constant(name, self.weights[name].T)
        y = self.node("MatMul", [x, weight])
        return self.node("Add", [y, self.weight(layer, "bias")]) if "bias" in layer.params else y

    def export_relu(self, _: Layer, x: str) -> str:
        return self.node("Relu", [x])

    def export_relu6(self, _: Layer, x: str) -> str:
        low = self.constant("zero", np.array(0, dtype=np.float32))
        return self.node("Clip", [x, low, self.constant("six", np.array(6, dtype=np.float32))])

    def export_tanh(self, _: Layer, x: str) -> str:
        return self.node("Tanh", [x])

    def export_add(self, _: Layer, x: str, y: str) -> str:
        return self.node("Add", [x, y])

    def export_concat(self, _: Layer, *values: str) -> str:
        return self.node("Concat", values, axis=1)

    def export_max_pool(self, layer: Layer, x: str) -> str:
        return self.node("MaxPool", [x], **self.pooling(layer))

    def export_avg_pool(self, layer: Layer, x: str) -> str:
        return self.node("AveragePool", [x], count_include_pad=1, **self.pooling(layer))

    def pooling(self, layer: Layer) -> dict[str, Any]:
        """Return the attributes that both kinds of pooling have."""
        attrs = layer.attrs
        return {
            "kernel_shape": attrs["kernel"],
            "strides": attrs["stride"],
            "pads": attrs["pad"] * 2,
            "ceil_mode": int(attrs["ceil"]),
        }

    def export_global_avg_pool(self, _: Layer, x: str) -> str:
        return self.node("Flatten", [self.node("GlobalAveragePool", [x])])

    def export_flatten(self, layer: Layer, x: str) -> str:
        return self.node("Reshape", [x, self.integers(*layer.output.shape)])
