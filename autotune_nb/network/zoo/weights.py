"""Weights of zoo networks: seeded random values, and batch norms folded into convolutions."""

from __future__ import annotations

import dataclasses
import math
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from autotune_nb.network.zoo.plan import Layer, Param, Plan

Array = npt.NDArray[Any]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Moments:
    """Mean and variance of a value's channels, over positions and inputs."""

    mean: Array
    var: Array

    @property
    def power(self) -> Array:
        return self.mean**2 + self.var


def draw(plan: Plan, seed: int) -> dict[str, Array]:
    """Draw every weight of a plan.

    Each weight has its own stream, made from the seed and its name, so that a weight does not
    change when layers are added elsewhere.

    Parameters
    ----------
    plan
        The network.
    seed
        Any non-negative integer.

    Returns
    -------
    dict
        float32 arrays by parameter name; convolution weights are ``[out, in, *kernel]``.
    """
    moments: dict[int, _Moments] = {}
    for _, value, role in plan.inputs:
        channels = value.shape[1 if role == "image" else -1]
        moments[value.id] = _Moments(mean=np.zeros(channels), var=np.ones(channels))
    weights: dict[str, Array] = {}
    for layer in plan.layers:
        inputs = [moments[value] for value in layer.inputs]
        for param in layer.params.values():
            rng = np.random.default_rng([seed, zlib.crc32(param.name.encode())])
            weights[param.name] = _draw_one(param, rng, inputs)
        moments[layer.output.id] = _forward(layer, inputs, weights)
    return weights


def _draw_one(param: Param, rng: np.random.Generator, inputs: Sequence[_Moments]) -> Array:
    shape = param.shape
    if param.init == "bn_gamma":
        return rng.uniform(0.8, 1.2, shape).astype(np.float32)
    if param.init == "bn_gamma_small":
        return rng.uniform(0.2, 0.4, shape).astype(np.float32)
    if param.init == "bn_var":
        return (inputs[0].var * rng.uniform(0.6, 1.4, shape) + 1e-3).astype(np.float32)
    if param.init == "bn_mean":
        offset = 0.2 * np.sqrt(inputs[0].var) * rng.standard_normal(shape)
        return (inputs[0].mean + offset).astype(np.float32)
    if param.init == "he":
        scale = math.sqrt(2.0 / math.prod(shape[1:]))
    elif param.init == "he_transposed":
        # With a stride of 2 a kernel of 4x4 adds 2x2 products of each channel to a result.
        scale = math.sqrt(2.0 / (shape[0] * math.prod(shape[2:]) / 4))
    elif param.init == "normal":
        scale = 0.5
    elif param.init == "lecun":
        scale = math.sqrt(1.0 / shape[-1])
    elif param.init in ("bias", "bn_beta"):
        scale = 0.1
    else:
        raise ValueError(f"no way to draw {param.init!r}")
    return np.asarray(rng.standard_normal(shape, dtype=np.float32) * np.float32(scale))


def _forward(layer: Layer, inputs: Sequence[_Moments], weights: Mapping[str, Array]) -> _Moments:
    """Carry moments through a layer.

    Channels are taken as independent and normally distributed. That is close enough for batch
    norms that really normalise: no activation grows with depth, and what tells one input from
    another does not drown in a constant. A forward pass over data would cost seconds.
    """
    x = inputs[0]
    held = {role: weights[param.name] for role, param in layer.params.items()}
    if layer.kind == "conv":
        return _convolved(x, held, layer.attrs["groups"])
    if layer.kind == "batch_norm":
        scale = held["gamma"] / np.sqrt(held["var"].astype(float) + layer.attrs["epsilon"])
        return _Moments(mean=(x.mean - held["mean"]) * scale + held["beta"], var=x.var * scale**2)
    if layer.kind == "conv_transpose":
        taps = max(1, math.prod(held["weight"].shape[2:]) / math.prod(layer.attrs["stride"]))
        weight = held["weight"].astype(float).reshape(*held["weight"].shape[:2], -1)
        if layer.attrs["stride"] == (1, 1):
            taps = 1  # a kernel spread from a single position
        return _Moments(
            mean=np.einsum("iok,i->o", weight, x.mean) * taps / weight.shape[2],
            var=np.einsum("iok,i->o", weight**2, x.var) * taps / weight.shape[2],
        )
    if layer.kind in ("relu", "relu6"):
        return _rectified(x)
    if layer.kind == "add":
        return _Moments(
            mean=np.sum([i.mean for i in inputs], axis=0),
            var=np.sum([i.var for i in inputs], axis=0),
        )
    if layer.kind == "concat":
        return _Moments(
            mean=np.concatenate([i.mean for i in inputs]),
            var=np.concatenate([i.var for i in inputs]),
        )
    if layer.kind == "max_pool":
        reach = 0.75 * math.sqrt(2 * math.log(math.prod(layer.attrs["kernel"])))
        return _Moments(mean=x.mean + reach * np.sqrt(x.var), var=x.var)
    if layer.kind == "avg_pool":
        return _Moments(mean=x.mean, var=x.var / 4)
    channels = layer.output.shape[1]
    if len(x.mean) == channels:
        return x
    return _Moments(mean=np.zeros(channels), var=np.ones(channels))


def _convolved(x: _Moments, held: Mapping[str, Array], groups: int) -> _Moments:
    weight = held["weight"].reshape(*held["weight"].shape[:2], -1).astype(float)
    split = weight.reshape(groups, -1, *weight.shape[1:])
    mean = np.einsum("goik,gi->go", split, x.mean.reshape(groups, -1)).reshape(-1)
    var = np.einsum("goik,gi->go", split**2, x.var.reshape(groups, -1)).reshape(-1)
    return _Moments(mean=mean + held["bias"] if "bias" in held else mean, var=var)


def _rectified(x: _Moments) -> _Moments:
    """Return the moments of max(0, x) for a normal x."""
    std = np.sqrt(x.var) + 1e-12
    ratio = x.mean / std
    below = np.array([0.5 * math.erfc(-r / math.sqrt(2)) for r in ratio.tolist()])
    density = np.exp(-(ratio**2) / 2) / math.sqrt(2 * math.pi)
    mean = np.maximum(x.mean * below + std * density, 0)
    power = (x.mean**2 + x.var) * below + x.mean * std * density
    return _Moments(mean=mean, var=np.maximum(power - mean**2, 1e-3 * x.var))


def fold_batch_norms(
    plan: Plan, weights: Mapping[str, Array]
) -> tuple[list[Layer], dict[str, Array]]:
    """Fold each batch norm into the convolution before it, or into a scale and a shift.

    A batch norm that follows anything else, or a convolution that others read too, becomes a layer
    of kind ``affine`` with the parameters ``scale`` and ``shift``. The sums are done in float64.

    Returns
    -------
    layers, weights
        What computes the same function without batch norms.
    """
    readers = Counter(value for layer in plan.layers for value in layer.inputs)
    folded: dict[str, Array] = dict(weights)
    layers: list[Layer] = []
    made_by: dict[int, int] = {}
    for layer in plan.layers:
        if layer.kind != "batch_norm":
            made_by[layer.output.id] = len(layers)
            layers.append(layer)
            continue
        values = {r: folded.pop(p.name).astype(np.float64) for r, p in layer.params.items()}
        scale = values["gamma"] / np.sqrt(values["var"] + layer.attrs["epsilon"])
        shift = values["beta"] - values["mean"] * scale
        source = layer.inputs[0]
        before = layers[made_by[source]] if source in made_by else None
        if before is not None and before.kind.startswith("conv") and readers[source] == 1:
            layers[made_by[source]] = _scaled(before, layer, scale, shift, folded)
            made_by[layer.output.id] = made_by[source]
        else:
            layers.append(_affine(layer, scale, shift, folded))
    return layers, folded


def _scaled(
    conv: Layer, norm: Layer, scale: Array, shift: Array, weights: dict[str, Array]
) -> Layer:
    """Return the convolution that also does what the batch norm did."""
    weight = conv.params["weight"]
    bias = conv.params.get("bias") or Param(
        name=f"{conv.name}_bias", shape=scale.shape, init="bias"
    )
    # Output channels come first, in a transposed convolution second.
    rank = len(weight.shape) - (1 if conv.kind == "conv" else 2)
    kernel = weights[weight.name].astype(np.float64) * scale.reshape(-1, *(1,) * rank)
    offset = weights[bias.name] * scale if "bias" in conv.params else 0.0
    weights[weight.name] = kernel.astype(np.float32)
    weights[bias.name] = (offset + shift).astype(np.float32)
    params = {"weight": weight, "bias": bias}
    return dataclasses.replace(conv, output=norm.output, params=params)


def _affine(norm: Layer, scale: Array, shift: Array, weights: dict[str, Array]) -> Layer:
    params = {}
    for role, value in (("scale", scale), ("shift", shift)):
        params[role] = Param(name=f"{norm.name}_{role}", shape=value.shape, init="bias")
        weights[params[role].name] = value.astype(np.float32)
    return dataclasses.replace(norm, kind="affine", params=params)
