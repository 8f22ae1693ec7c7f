"""Plans of transformers: what they have beyond the layers of `Plan`."""

from __future__ import annotations

import math

from autotune_nb.network.zoo.plan import Plan, Value


class TokenPlan(Plan):
    """A plan whose values may also be tokens: N, sequence, features."""

    def tokens(self, x: Value) -> Value:
        """Make a token of each position of an image."""
        return self._add("tokens", "", [x], (x.shape[0], math.prod(x.shape[2:]), x.shape[1]))

    def embedding(self, indices: Value, name: str, count: int, width: int) -> Value:
        """Look up a row of a table for each index."""
        params = {"table": ((count, width), "normal")}
        return self._add("embedding", name, [indices], (*indices.shape, width), params=params)

    def prepend(self, x: Value, name: str) -> Value:
        """Put a learned token before the others."""
        batch, length, width = x.shape
        params = {"token": ((1, 1, width), "normal")}
        return self._add("prepend", name, [x], (batch, length + 1, width), params=params)

    def position(self, x: Value, name: str, rows: int) -> Value:
        """Add a learned row to each token; the table may have more rows than there are tokens."""
        params = {"table": ((rows, x.shape[2]), "normal")}
        return self._add("position", name, [x], x.shape, params=params)

    def layer_norm(self, x: Value, name: str, *, epsilon: float) -> Value:
        """Normalise the last axis."""
        shape = (x.shape[-1],)
        params = {"gamma": (shape, "bn_gamma"), "beta": (shape, "bn_beta")}
        return self._add("layer_norm", name, [x], x.shape, params=params, epsilon=epsilon)

    def attention(self, x: Value, name: str, heads: int) -> Value:
        """Let tokens attend to each other: the projections of queries, keys, values and result."""
        batch, length, width = x.shape
        query, key, value = (
            self.dense(x, f"{name}_{role}", width) for role in ("query", "key", "value")
        )
        flops = 4 * batch * length * length * width
        mixed = self._add("attend", "", [query, key, value], x.shape, heads=heads, flops=flops)
        return self.dense(mixed, f"{name}_output", width)

    def feed_forward(self, x: Value, name: str, hidden: int) -> Value:
        """Two dense layers with a GELU between them."""
        y = self.unary("gelu", self.dense(x, f"{name}_1", hidden))
        return self.dense(y, f"{name}_2", x.shape[2])

    def first(self, x: Value) -> Value:
        """Return the first token."""
        return self._add("first", "", [x], (x.shape[0], x.shape[2]))
