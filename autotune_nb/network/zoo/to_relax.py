"""Turns a plan and its weights into a Relax module, channels first or channels last."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tvm
from tvm import relax

from autotune_nb.network.network import TensorSpec
from autotune_nb.network.zoo.plan import Layer, Plan
from autotune_nb.network.zoo.token_relax import TokenEmitter
from autotune_nb.network.zoo.weights import Array

_SPACE = {2: "HW", 3: "DHW"}


def emit(
    plan: Plan,
    layers: Sequence[Layer],
    weights: Mapping[str, Array],
    *,
    channels_last: bool,
    dtype: str,
) -> tuple[tvm.ir.IRModule, dict[str, Array], tuple[TensorSpec, ...], tuple[TensorSpec, ...]]:
    """Emit the Relax module of a network.

    Parameters
    ----------
    plan
        Gives the inputs and the output.
    layers, weights
        What to compute, without batch norms (see `fold_batch_norms`).
    channels_last
        Whether images are N, spatial extents, C; else N, C, spatial extents.
    dtype
        Of floating-point inputs, weights and outputs.

    Returns
    -------
    module, params, inputs, outputs
        ``main`` takes the inputs, then the params in their order.
    """
    return _Emitter(weights, channels_last, dtype).run(plan, layers)


class _Emitter(TokenEmitter):
    def __init__(self, weights: Mapping[str, Array], channels_last: bool, dtype: str) -> None:
        self.weights = weights
        self.channels_last = channels_last
        self.dtype = dtype
        # Thousands of products summed in float16 would lose the second decimal.
        self.sum_dtype = "float32"
        self.builder = relax.BlockBuilder()
        self.values: dict[int, Any] = {}
        self.flattened: dict[int, tuple[int, ...]] = {}
        self.params: dict[str, Array] = {}
        self.vars: dict[str, Any] = {}

    def run(
        self, plan: Plan, layers: Sequence[Layer]
    ) -> tuple[tvm.ir.IRModule, dict[str, Array], tuple[TensorSpec, ...], tuple[TensorSpec, ...]]:
        inputs = []
        for name, value, role in plan.inputs:
            shape = self.shape(value.shape) if role == "image" else value.shape
            dtype = "int64" if role.startswith("indices") else self.dtype
            inputs.append(TensorSpec(name=name, shape=shape, dtype=dtype))
            self.values[value.id] = relax.Var(name, relax.TensorType(shape, dtype))
        for layer in layers:
            self.declare(layer)
        assert plan.output is not None
        arguments = [self.values[value.id] for _, value, _ in plan.inputs] + [*self.vars.values()]
        with self.builder.function("main", arguments):
            with self.builder.dataflow():
                for layer in layers:
                    self.emit(layer)
                output = self.builder.emit_output(self.values[plan.output.id])
            self.builder.emit_func_output(output)
        shape = tuple(int(extent) for extent in output.ty.shape)
        spec = TensorSpec(name="output", shape=shape, dtype=self.dtype)
        module = self.builder.get()
        return module, self.params, tuple(inputs), (spec,)

    # -- layouts --------------------------------------------------------------------------------

    def shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Return the extents of an image as they lie in memory."""
        batch, channels, *space = shape
        return (batch, *space, channels) if self.channels_last else tuple(shape)

    def layouts(self, rank: int) -> tuple[str, str]:
        """Return the layouts of data and of convolution kernels."""
        space = _SPACE[rank]
        return (f"N{space}C", f"{space}IO") if self.channels_last else (f"NC{space}", f"OI{space}")

    def channel_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Return the shape that lets a vector of channels broadcast over an image."""
        channels, space = shape[1], (1,) * (len(shape) - 2)
        return (1, *space, channels) if self.channels_last else (1, channels, *space)

    # -- weights --------------------------------------------------------------------------------

    def declare(self, layer: Layer) -> None:
        """Make a weight of `layer` an argument, in the form in which the layer uses it."""
        if layer.kind == "flatten":
            self.flattened[layer.output.id] = layer.attrs["image"]
        for role, param in layer.params.items():
            value = self.weights[param.name]
            if role == "weight" and layer.kind == "conv" and self.channels_last:
                value = np.moveaxis(value, (0, 1), (-1, -2))
            elif role == "weight" and layer.kind == "dense":
                value = self.dense_weight(layer, value)
            elif role in ("scale", "shift") or (role == "bias" and layer.kind.startswith("conv")):
                value = value.reshape(self.channel_shape(layer.output.shape))
            value = np.ascontiguousarray(value, dtype=self.dtype)
            self.params[param.name] = value
            self.vars[param.name] = relax.Var(param.name, relax.TensorType(value.shape, self.dtype))

    def dense_weight(self, layer: Layer, value: Array) -> Array:
        """Return a dense weight as [in, out], its rows in the order of a flattened image."""
        image = self.flattened.get(layer.inputs[0])
        if image is None or not self.channels_last or math.prod(image[1:]) == 1:
            transposed: Array = value.T
            return transposed
        last: Array = np.moveaxis(value.reshape(-1, *image), 1, -1).reshape(len(value), -1).T
        return last

    # -- layers ---------------------------------------------------------------------------------

    def emit(self, layer: Layer) -> None:
        """Emit one layer by the method named after its kind."""
        method: Callable[..., Any] = getattr(self, f"emit_{layer.kind}")
        arguments = [self.values[value] for value in layer.inputs]
        self.values[layer.output.id] = self.builder.emit(method(layer, *arguments))

    def param(self, layer: Layer, role: str) -> Any:
        """Return the argument that holds a layer's weight."""
        return self.vars[layer.params[role].name]

    def emit_conv(self, layer: Layer, x: Any) -> Any:
        rank = len(layer.output.shape) - 2
        data_layout, kernel_layout = self.layouts(rank)
        op = relax.op.nn.conv2d if rank == 2 else relax.op.nn.conv3d
        y = op(
            x,
            self.param(layer, "weight"),
            strides=layer.attrs["stride"],
            padding=layer.attrs["pad"] * 2,
            groups=layer.attrs["groups"],
            data_layout=data_layout,
            kernel_layout=kernel_layout,
            out_dtype=self.sum_dtype,
        )
        return self.biased(layer, y)

    def biased(self, layer: Layer, y: Any) -> Any:
        """Round a sum of products to the network's dtype, and add the bias."""
        if self.sum_dtype != self.dtype:
            y = relax.op.astype(self.builder.emit(y), self.dtype)
        if "bias" not in layer.params:
            return y
        return relax.op.add(self.builder.emit(y), self.param(layer, "bias"))

    def emit_conv_transpose(self, layer: Layer, x: Any) -> Any:
        y = relax.op.nn.conv2d_transpose(
            x,
            self.param(layer, "weight"),
            strides=layer.attrs["stride"],
            padding=layer.attrs["pad"] * 2,
            out_dtype=self.sum_dtype,
        )
        return self.biased(layer, y)

    def emit_affine(self, layer: Layer, x: Any) -> Any:
        y = self.builder.emit(relax.op.multiply(x, self.param(layer, "scale")))
        return relax.op.add(y, self.param(layer, "shift"))

    def emit_dense(self, layer: Layer, x: Any) -> Any:
        y = relax.op.matmul(x, self.param(layer, "weight"), out_dtype=self.sum_dtype)
        return self.biased(layer, y)

    def emit_relu(self, _: Layer, x: Any) -> Any:
        return relax.op.nn.relu(x)

    def emit_relu6(self, _: Layer, x: Any) -> Any:
        return relax.op.clip(x, 0, 6)

    def emit_tanh(self, _: Layer, x: Any) -> Any:
        return relax.op.tanh(x)

    def emit_gelu(self, _: Layer, x: Any) -> Any:
        return relax.op.nn.gelu(x)

    def emit_add(self, _: Layer, x: Any, y: Any) -> Any:
        return relax.op.add(x, y)

    def emit_concat(self, layer: Layer, *values: Any) -> Any:
        axis = len(layer.output.shape) - 1 if self.channels_last else 1
        return relax.op.concat(list(values), axis=axis)

    def emit_max_pool(self, layer: Layer, x: Any) -> Any:
        rank = len(layer.output.shape) - 2
        op = relax.op.nn.max_pool2d if rank == 2 else relax.op.nn.max_pool3d
        return op(x, **self.pooling(layer))

    def emit_avg_pool(self, layer: Layer, x: Any) -> Any:
        rank = len(layer.output.shape) - 2
        op = relax.op.nn.avg_pool2d if rank == 2 else relax.op.nn.avg_pool3d
        return op(x, count_include_pad=True, **self.pooling(layer))

    def pooling(self, layer: Layer) -> dict[str, Any]:
        """Return the arguments that both kinds of pooling take."""
        attrs = layer.attrs
        return {
            "pool_size": attrs["kernel"],
            "strides": attrs["stride"],
            "padding": attrs["pad"] * 2,
            "ceil_mode": attrs["ceil"],
            "layout": self.layouts(len(attrs["kernel"]))[0],
        }

    def emit_global_avg_pool(self, layer: Layer, x: Any) -> Any:
        rank = layer.attrs["rank"]
        axes = range(1, rank + 1) if self.channels_last else range(2, rank + 2)
        return relax.op.mean(x, axis=list(axes))

    def emit_flatten(self, layer: Layer, x: Any) -> Any:
        return relax.op.reshape(x, layer.output.shape)
