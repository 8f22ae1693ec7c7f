"""Relax forms of the layers that only transformers have."""

# Each method is named after the kind of layer that it turns into operators.
# ruff: noqa: D102

from __future__ import annotations

from typing import Any

from tvm import relax

from autotune_nb.network.zoo.plan import Layer


class TokenEmitter:
    """Emits the layers of `TokenPlan`; mixed into the emitter of everything else."""

    builder: Any
    channels_last: bool
    dtype: str
    sum_dtype: str

    def param(self, layer: Layer, role: str) -> Any:
        """Return the argument that holds a layer's weight."""
        raise NotImplementedError

    def emit_tokens(self, layer: Layer, x: Any) -> Any:
        batch, length, width = layer.output.shape
        if self.channels_last:
            return relax.op.reshape(x, (batch, length, width))
        rows = self.builder.emit(relax.op.reshape(x, (batch, width, length)))
        return relax.op.permute_dims(rows, [0, 2, 1])

    def emit_embedding(self, layer: Layer, indices: Any) -> Any:
        return relax.op.take(self.param(layer, "table"), indices, axis=0, mode="clip")

    def emit_prepend(self, layer: Layer, x: Any) -> Any:
        batch, _, width = layer.output.shape
        token = relax.op.broadcast_to(self.param(layer, "token"), (batch, 1, width))
        return relax.op.concat([self.builder.emit(token), x], axis=1)

    def emit_position(self, layer: Layer, x: Any) -> Any:
        table, length = self.param(layer, "table"), layer.output.shape[1]
        if layer.params["table"].shape[0] > length:
            table = self.builder.emit(relax.op.strided_slice(table, [0], [0], [length]))
        return relax.op.add(x, table)

    def emit_layer_norm(self, layer: Layer, x: Any) -> Any:
        gamma, beta = self.param(layer, "gamma"), self.param(layer, "beta")
        return relax.op.nn.layer_norm(x, gamma, beta, axes=[-1], epsilon=layer.attrs["epsilon"])

    def emit_first(self, layer: Layer, x: Any) -> Any:
        token = self.builder.emit(relax.op.strided_slice(x, [1], [0], [1]))
        return relax.op.reshape(token, layer.output.shape)

    def emit_attend(self, layer: Layer, query: Any, key: Any, value: Any) -> Any:
        batch, length, width = layer.output.shape
        heads = layer.attrs["heads"]

        def split(x: Any, axes: list[int]) -> Any:
            parts = self.builder.emit(relax.op.reshape(x, (batch, length, heads, width // heads)))
            return self.builder.emit(relax.op.permute_dims(parts, axes))

        scores = self.product(split(query, [0, 2, 1, 3]), split(key, [0, 2, 3, 1]))
        scale = relax.const((width // heads) ** -0.5, self.sum_dtype)
        scores = self.builder.emit(relax.op.multiply(scores, scale))
        shares = self.builder.emit(relax.op.nn.softmax(scores, axis=-1))
        if self.sum_dtype != self.dtype:
            shares = self.builder.emit(relax.op.astype(shares, self.dtype))
        mixed = self.product(shares, split(value, [0, 2, 1, 3]))
        if self.sum_dtype != self.dtype:
            mixed = self.builder.emit(relax.op.astype(mixed, self.dtype))
        mixed = self.builder.emit(relax.op.permute_dims(mixed, [0, 2, 1, 3]))
        return relax.op.reshape(mixed, (batch, length, width))

    def product(self, x: Any, y: Any) -> Any:
        """Multiply matrices, summing in `sum_dtype`."""
        return self.builder.emit(relax.op.matmul(x, y, out_dtype=self.sum_dtype))
