"""ONNX forms of the layers that only transformers have."""

# Each method is named after the kind of layer that it turns into operators.
# ruff: noqa: D102

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from autotune_nb.network.zoo.plan import Layer
from autotune_nb.network.zoo.weights import Array


class TokenExporter:
    """Exports the layers of `TokenPlan`; mixed into the exporter of everything else."""

    def node(self, kind: str, inputs: Sequence[str], *, output: str = "", **attrs: Any) -> str:
        """Add a node and return the name of its result."""
        raise NotImplementedError

    def constant(self, name: str, value: Array) -> str:
        """Add an initializer and return its name."""
        raise NotImplementedError

    def integers(self, *values: int) -> str:
        """Add a vector of integers and return its name."""
        raise NotImplementedError

    def weight(self, layer: Layer, role: str) -> str:
        """Return the name of a weight."""
        raise NotImplementedError

    def number(self, value: float) -> str:
        """Add a scalar and return its name."""
        return self.constant(f"f_{value}", np.array(value, dtype=np.float32))

    def export_gelu(self, _: Layer, x: str) -> str:
        erf = self.node("Erf", [self.node("Mul", [x, self.number(1 / math.sqrt(2))])])
        share = self.node("Add", [erf, self.number(1.0)])
        return self.node("Mul", [self.node("Mul", [x, share]), self.number(0.5)])

    def export_tokens(self, layer: Layer, x: str) -> str:
        batch, length, width = layer.output.shape
        rows = self.node("Reshape", [x, self.integers(batch, width, length)])
        return self.node("Transpose", [rows], perm=[0, 2, 1])

    def export_embedding(self, layer: Layer, indices: str) -> str:
        return self.node("Gather", [self.weight(layer, "table"), indices])

    def export_prepend(self, layer: Layer, x: str) -> str:
        batch, _, width = layer.output.shape
        token = self.node("Expand", [self.weight(layer, "token"), self.integers(batch, 1, width)])
        return self.node("Concat", [token, x], axis=1)

    def export_position(self, layer: Layer, x: str) -> str:
        length = layer.output.shape[1]
        window = [self.integers(0), self.integers(length)]
        return self.node("Add", [x, self.node("Slice", [self.weight(layer, "table"), *window])])

    def export_layer_norm(self, layer: Layer, x: str) -> str:
        inputs = [x, self.weight(layer, "gamma"), self.weight(layer, "beta")]
        return self.node("LayerNormalization", inputs, epsilon=layer.attrs["epsilon"])

    def export_first(self, layer: Layer, x: str) -> str:
        token = self.node("Slice", [x, self.integers(0), self.integers(1), self.integers(1)])
        return self.node("Reshape", [token, self.integers(*layer.output.shape)])

    def export_attend(self, layer: Layer, query: str, key: str, value: str) -> str:
        batch, length, width = layer.output.shape
        heads = layer.attrs["heads"]
        shape = self.integers(batch, length, heads, width // heads)

        def split(x: str, axes: list[int]) -> str:
            return self.node("Transpose", [self.node("Reshape", [x, shape])], perm=axes)

        scores = self.node("MatMul", [split(query, [0, 2, 1, 3]), split(key, [0, 2, 3, 1])])
        scores = self.node("Mul", [scores, self.number((width // heads) ** -0.5)])
        shares = self.node("Softmax", [scores], axis=-1)
        mixed = self.node("MatMul", [shares, split(value, [0, 2, 1, 3])])
        mixed = self.node("Transpose", [mixed], perm=[0, 2, 1, 3])
        return self.node("Reshape", [mixed, self.integers(batch, length, width)])
