"""Plan: a network as a list of layers with shapes, free of weights, layout and TVM.

Every architecture of the zoo is written once, against `Plan`. From the plan follow the parameter
count and the FLOPs (nothing is built), the Relax module in either layout, and the ONNX model that
evaluation uses as the reference.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """What flows between two layers; images have the shape N, C, then the spatial extents."""

    id: int
    shape: tuple[int, ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Param:
    """A weight: its shape and how it is drawn; `trainable` says whether the count includes it."""

    name: str
    shape: tuple[int, ...]
    init: str
    trainable: bool = True

    @property
    def size(self) -> int:
        """Number of scalars."""
        return math.prod(self.shape)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One operation: its kind, what it reads, which weights it has by role, what it returns."""

    kind: str
    name: str
    inputs: tuple[int, ...]
    output: Value
    params: Mapping[str, Param]
    attrs: Mapping[str, Any]
    flops: int = 0


def _tuple(value: int | Sequence[int], rank: int) -> tuple[int, ...]:
    return (value,) * rank if isinstance(value, int) else tuple(value)


def _window(
    size: Sequence[int],
    kernel: Sequence[int],
    stride: Sequence[int],
    pad: Sequence[int],
    ceil: bool = False,
) -> tuple[int, ...]:
    """Return the spatial extents after sliding a window over `size`."""
    rounding = math.ceil if ceil else math.floor
    return tuple(
        rounding((n + 2 * p - k) / s) + 1
        for n, k, s, p in zip(size, kernel, stride, pad, strict=True)
    )


class Plan:
    """Records the layers of a network as methods are called, and checks their shapes.

    The methods take and return `Value`; the last value given to `finish` is what the network
    returns. FLOPs count a multiplication and an addition each, in convolutions, dense layers and
    attention products only.
    """

    def __init__(self) -> None:
        self.layers: list[Layer] = []
        self.inputs: list[tuple[str, Value, str]] = []
        self.output: Value | None = None
        self._values = 0

    # -- bookkeeping ----------------------------------------------------------------------------

    def _value(self, shape: Sequence[int]) -> Value:
        if any(extent < 1 for extent in shape):
            raise ValueError(f"a layer's output would have the shape {tuple(shape)}")
        self._values += 1
        return Value(id=self._values, shape=tuple(shape))

    def _add(
        self,
        kind: str,
        name: str,
        inputs: Sequence[Value],
        shape: Sequence[int],
        *,
        params: Mapping[str, tuple[tuple[int, ...], str]] | None = None,
        flops: int = 0,
        **attrs: Any,
    ) -> Value:
        output = self._value(shape)
        held = {
            role: Param(
                name=f"{name}_{role}",
                shape=extents,
                init=init,
                trainable=init not in ("bn_mean", "bn_var"),
            )
            for role, (extents, init) in (params or {}).items()
        }
        self.layers.append(
            Layer(
                kind=kind,
                name=name,
                inputs=tuple(value.id for value in inputs),
                output=output,
                params=held,
                attrs=attrs,
                flops=flops,
            )
        )
        return output

    @property
    def params(self) -> list[Param]:
        """Every weight, in the order of the layers."""
        return [param for layer in self.layers for param in layer.params.values()]

    @property
    def parameter_count(self) -> int:
        """Number of trainable scalars, batch norms included."""
        return sum(param.size for param in self.params if param.trainable)

    @property
    def flops(self) -> int:
        """FLOPs of one inference: twice the multiply-accumulates."""
        return sum(layer.flops for layer in self.layers)

    # -- in and out -----------------------------------------------------------------------------

    def image(self, shape: Sequence[int], name: str = "data") -> Value:
        """Add an input with channels: N, C, then the spatial extents."""
        value = self._value(shape)
        self.inputs.append((name, value, "image"))
        return value

    def vector(self, shape: Sequence[int], name: str = "data") -> Value:
        """Add a floating-point input without channels."""
        value = self._value(shape)
        self.inputs.append((name, value, "vector"))
        return value

    def indices(self, shape: Sequence[int], limit: int, name: str) -> Value:
        """Add an int64 input of indices below `limit`."""
        value = self._value(shape)
        self.inputs.append((name, value, f"indices<{limit}"))
        return value

    def finish(self, value: Value) -> None:
        """Say what the network returns."""
        self.output = value

    # -- layers with weights --------------------------------------------------------------------

    def conv(
        self,
        x: Value,
        name: str,
        channels: int,
        kernel: int | Sequence[int],
        *,
        stride: int | Sequence[int] = 1,
        pad: int | Sequence[int] = 0,
        groups: int = 1,
        bias: bool = False,
    ) -> Value:
        """Convolve over 2 or 3 spatial dimensions, whichever `x` has."""
        rank = len(x.shape) - 2
        kernel, stride, pad = (_tuple(v, rank) for v in (kernel, stride, pad))
        space = _window(x.shape[2:], kernel, stride, pad)
        shape = (x.shape[0], channels, *space)
        fan_in = x.shape[1] // groups * math.prod(kernel)
        params = {"weight": ((channels, x.shape[1] // groups, *kernel), "he")}
        if bias:
            params["bias"] = ((channels,), "bias")
        return self._add(
            "conv", name, [x], shape,
            params=params, flops=2 * math.prod(shape) * fan_in,
            stride=stride, pad=pad, groups=groups,
        )  # fmt: skip

    def conv_transpose(
        self, x: Value, name: str, channels: int, kernel: int, *, stride: int = 1, pad: int = 0
    ) -> Value:
        """Transposed two-dimensional convolution, without bias."""
        space = tuple((n - 1) * stride - 2 * pad + kernel for n in x.shape[2:])
        macs = math.prod(x.shape) * channels * kernel * kernel
        return self._add(
            "conv_transpose", name, [x], (x.shape[0], channels, *space),
            params={"weight": ((x.shape[1], channels, kernel, kernel), "he_transposed")},
            flops=2 * macs, stride=(stride,) * 2, pad=(pad,) * 2, groups=1,
        )  # fmt: skip

    def batch_norm(
        self, x: Value, name: str, *, epsilon: float = 1e-5, damped: bool = False
    ) -> Value:
        """Normalise channels with fixed statistics.

        `damped` says that the result is added to a shortcut: a small gamma keeps the sum from
        growing with depth.
        """
        shape = (x.shape[1],)
        params = {
            "gamma": (shape, "bn_gamma_small" if damped else "bn_gamma"),
            "beta": (shape, "bn_beta"),
            "mean": (shape, "bn_mean"),
            "var": (shape, "bn_var"),
        }
        return self._add("batch_norm", name, [x], x.shape, params=params, epsilon=epsilon)

    def conv_bn(
        self, x: Value, name: str, channels: int, kernel: int | Sequence[int], **conv: Any
    ) -> Value:
        """Convolution without bias, then a batch norm."""
        norm = {key: conv.pop(key) for key in ("epsilon", "damped") if key in conv}
        y = self.conv(x, f"{name}_conv", channels, kernel, **conv)
        return self.batch_norm(y, f"{name}_bn", **norm)

    def dense(self, x: Value, name: str, features: int, *, bias: bool = True) -> Value:
        """Multiply the last axis by a matrix."""
        params: dict[str, tuple[tuple[int, ...], str]]
        params = {"weight": ((features, x.shape[-1]), "lecun")}
        if bias:
            params["bias"] = ((features,), "bias")
        shape = (*x.shape[:-1], features)
        flops = 2 * math.prod(x.shape) * features
        return self._add("dense", name, [x], shape, params=params, flops=flops)

    # -- layers without weights -----------------------------------------------------------------

    def unary(self, kind: str, x: Value) -> Value:
        """Apply relu, relu6, tanh or gelu element by element."""
        return self._add(kind, "", [x], x.shape)

    def relu(self, x: Value) -> Value:
        """Clamp below zero."""
        return self.unary("relu", x)

    def add(self, x: Value, y: Value) -> Value:
        """Add two values of the same shape."""
        if x.shape != y.shape:
            raise ValueError(f"cannot add {x.shape} and {y.shape}")
        return self._add("add", "", [x, y], x.shape)

    def concat(self, values: Sequence[Value]) -> Value:
        """Join along the channels."""
        first = values[0].shape
        return self._add(
            "concat", "", values, (first[0], sum(v.shape[1] for v in values), *first[2:])
        )

    def pool(
        self,
        x: Value,
        kind: str,
        kernel: int | Sequence[int],
        *,
        stride: int | Sequence[int],
        pad: int | Sequence[int] = 0,
        ceil: bool = False,
    ) -> Value:
        """Pool with kind ``max`` or ``avg`` (padding counts towards the average)."""
        rank = len(x.shape) - 2
        kernel, stride, pad = (_tuple(v, rank) for v in (kernel, stride, pad))
        space = _window(x.shape[2:], kernel, stride, pad, ceil)
        return self._add(
            f"{kind}_pool", "", [x], (*x.shape[:2], *space),
            kernel=kernel, stride=stride, pad=pad, ceil=ceil,
        )  # fmt: skip

    def global_avg_pool(self, x: Value) -> Value:
        """Average over the spatial extents: N, C."""
        return self._add("global_avg_pool", "", [x], x.shape[:2], rank=len(x.shape) - 2)

    def flatten(self, x: Value) -> Value:
        """Flatten an image to N, C·H·W (channels outermost in either layout)."""
        shape = (x.shape[0], math.prod(x.shape[1:]))
        return self._add("flatten", "", [x], shape, image=x.shape[1:])
