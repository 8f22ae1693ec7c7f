"""The TensorIR functions and matrices of Winograd's minimal filtering, for 3x3 kernels in NHWC.

``F(m x m)`` computes tiles of m x m outputs from tiles of (m + 2) x (m + 2) inputs with (m + 2)^2
multiplications for each pair of channels, where the direct form takes 9 m^2. Lavin and Gray, "Fast
Algorithms for Convolutional Neural Networks" (CVPR 2016), give the construction: for the one-
dimensional filter, ``y = A^T [(G g) * (B^T d)]``.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tvm
from tvm import te
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script import builder as tir

Array = np.ndarray[Any, Any]

KERNEL = 3
# Names of the blocks of the transforms.
INPUT, OUTPUT = "winograd_input", "winograd_output"
# Output channels of the transformed weights that lie together: four vectors of AVX2, two of
# AVX-512. In rows of all channels, the lines of a tile's weights would compete for few places of
# the cache.
_PACKED = (32, 16, 8)

# The input's matrix B^T, the weights' G and the output's A^T. The points of F(4x4) are 0, 1, -1,
# 2, -2: the factors stay small, which is what keeps its error near 1e-5 of the largest output.
_MATRICES: dict[int, tuple[list[list[float]], list[list[float]], list[list[float]]]] = {
    2: (
        [[1, 0, -1, 0], [0, 1, 1, 0], [0, -1, 1, 0], [0, -1, 0, 1]],
        [[1, 0, 0], [1 / 2, 1 / 2, 1 / 2], [1 / 2, -1 / 2, 1 / 2], [0, 0, 1]],
        [[1, 1, 1, 0], [0, 1, -1, 1]],
    ),
    4: (
        [
            [4, 0, -5, 0, 1, 0],
            [0, -4, -4, 1, 1, 0],
            [0, 4, -4, -1, 1, 0],
            [0, -2, -1, 2, 1, 0],
            [0, 2, -1, -2, 1, 0],
            [0, 4, 0, -5, 0, 1],
        ],
        [
            [1 / 4, 0, 0],
            [-1 / 6, -1 / 6, -1 / 6],
            [-1 / 6, 1 / 6, -1 / 6],
            [1 / 24, 1 / 12, 1 / 6],
            [1 / 24, -1 / 12, 1 / 6],
            [0, 0, 1],
        ],
        [
            [1, 1, 1, 1, 1, 0],
            [0, 1, -1, 2, -2, 0],
            [0, 1, 1, 4, 4, 0],
            [0, 1, -1, 8, -8, 1],
        ],
    ),
}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Geometry:
    """Sizes of a 3x3 convolution of stride 1 in NHWC.

    Attributes
    ----------
    batch, height, width, channels
        Of the input.
    filters
        Channels of the output.
    top, left
        Rows and columns of zeros before the input's.
    out_height, out_width
        Of the output; with `top` and `left` they say how many zeros come after the input.
    """

    batch: int
    height: int
    width: int
    channels: int
    filters: int
    top: int
    left: int
    out_height: int
    out_width: int

    def tile_rows(self, size: int) -> int:
        """Return how many tiles of `size` outputs cover a column of the output."""
        return -(-self.out_height // size)

    def tile_columns(self, size: int) -> int:
        """Return how many tiles of `size` outputs cover a row of the output."""
        return -(-self.out_width // size)

    def tiles(self, size: int) -> int:
        """Return how many tiles of `size` x `size` outputs cover all images."""
        return self.batch * self.tile_rows(size) * self.tile_columns(size)

    @property
    def packed(self) -> int:
        """How many output channels of the transformed weights lie together; 0 if none fits."""
        return next((count for count in _PACKED if self.filters % count == 0), 0)


def points(size: int) -> int:
    """Return the multiplications of one tile for one pair of channels."""
    return (size + KERNEL - 1) ** 2


def transformed_weights(weights: Array, size: int, packed: int) -> Array:
    """Return weights as the products take them, computed in double precision.

    Parameters
    ----------
    weights
        Of shape (3, 3, channels, filters).
    size
        Outputs along a side of a tile.
    packed
        See `Geometry.packed`.

    Returns
    -------
    Array
        Of shape (points, filters / packed, channels, packed), as float32.
    """
    g = np.asarray(_MATRICES[size][1], dtype=np.float64)
    channels, filters = weights.shape[2:]
    wide = weights.astype(np.float64)
    full = np.tensordot(g, np.tensordot(g, wide, axes=(1, 1)), axes=(1, 1))
    full = full.reshape(points(size), channels, filters // packed, packed)
    return np.ascontiguousarray(full.transpose(0, 2, 1, 3), dtype=np.float32)


def _combined(factors: Sequence[float], values: Sequence[Any]) -> Any:
    """Return the sum of the values times their factors, without what need not be computed."""
    terms = [(f, v) for f, v in zip(factors, values, strict=True) if f]
    terms.sort(key=lambda term: term[0] < 0)  # so that no first term is negated, where possible
    total = None
    for factor, value in terms:
        size = abs(factor)
        term = value if size == 1 else value * tvm.tirx.const(float(size), "float32")
        if total is None:
            total = term if factor > 0 else tvm.tirx.const(0.0, "float32") - term
        else:
            total = total + term if factor > 0 else total - term
    return total


def _both_sides(matrix: Sequence[Sequence[float]], values: list[list[Any]]) -> list[list[Any]]:
    """Return M V M^T, each value of the half-way result bound to a variable."""
    width = len(values[0])
    half = [
        [tir.Bind(_combined(row, [line[j] for line in values])) for j in range(width)]
        for row in matrix
    ]
    return [[_combined(row, line) for row in matrix] for line in half]


def _extents(*values: int) -> list[Any]:
    return [tvm.tirx.const(int(value), "int64") for value in values]


def _all(conditions: Sequence[Any]) -> Any:
    found = conditions[0]
    for condition in conditions[1:]:
        found = tvm.tirx.And(found, condition)
    return found


def input_transform(geometry: Geometry, size: int) -> Any:
    """Return the function from the input to its transformed tiles, (points, tiles, channels).

    One block does a whole tile for a channel, so that what its values have in common is computed
    once; neighbouring channels make vectors.
    """
    side = size + KERNEL - 1
    rows, columns = geometry.tile_rows(size), geometry.tile_columns(size)
    shape = (geometry.batch, geometry.height, geometry.width, geometry.channels)
    with IRBuilder() as builder, tir.prim_func(is_private=True, s_tir=True):
        tir.func_name("main")
        tir.func_attr({"tirx.noalias": True})
        data = tir.arg("data", tir.buffer(_extents(*shape), "float32"))
        out_shape = _extents(points(size), geometry.tiles(size), geometry.channels)
        out = tir.arg("tiles", tir.buffer(out_shape, "float32"))
        with (
            tir.grid(*_extents(geometry.batch, rows, columns, geometry.channels)) as loops,
            tir.sblock(INPUT),
        ):
            n, y, x, c = tir.axis.remap("SSSS", list(loops))
            tile = (n * rows + y) * columns + x
            tir.reads(data[n, 0 : geometry.height, 0 : geometry.width, c])
            tir.writes(out[0 : side * side, tile, c])
            values = []
            for i in range(side):
                line = []
                for j in range(side):
                    h, outside = _inside(y, rows, size, i - geometry.top, geometry.height)
                    w, beside = _inside(x, columns, size, j - geometry.left, geometry.width)
                    value = data[n, h, w, c]
                    if outside + beside:
                        zero = tvm.tirx.const(0.0, "float32")
                        value = tvm.tirx.if_then_else(_all(outside + beside), value, zero)
                    line.append(tir.Bind(value))
                values.append(line)
            for i, line in enumerate(_both_sides(_MATRICES[size][0], values)):
                for j, value in enumerate(line):
                    tir.buffer_store(out, value, [*_extents(i * side + j), tile, c])
    return builder.get()


def _inside(axis: Any, count: int, size: int, offset: int, extent: int) -> tuple[Any, list[Any]]:
    """Return an index of the input, and the conditions that tell whether the input has it."""
    index = axis * size + offset
    conditions = []
    if offset < 0:
        conditions.append(index >= 0)
    if (count - 1) * size + offset >= extent:
        conditions.append(index < extent)
    return index, conditions


def products(geometry: Geometry, size: int) -> Any:
    """Return the function from tiles and transformed weights to the products of the two.

    A matrix product for each point: (points, tiles, filters / packed, packed).
    """
    packed, count = geometry.packed, points(size)
    tiles = te.placeholder((count, geometry.tiles(size), geometry.channels), name="tiles")
    shape = (count, geometry.filters // packed, geometry.channels, packed)
    weights = te.placeholder(shape, name="weights")
    c = te.reduce_axis((0, geometry.channels), name="c")
    out = te.compute(
        (count, geometry.tiles(size), geometry.filters // packed, packed),
        lambda a, p, k, v: te.sum(tiles[a, p, c] * weights[a, k, c, v], axis=c),
        name="winograd_products",
    )
    function = te.create_prim_func([tiles, weights, out])
    return function.with_attr("tirx.noalias", True)


def output_transform(
    geometry: Geometry,
    size: int,
    others: Sequence[tuple[str, tuple[int, ...], str]],
    finish: Callable[[Any, Sequence[Any], Sequence[Any]], Any],
    dtype: str,
) -> Any:
    """Return the function from the products to the output, with what follows the convolution.

    Parameters
    ----------
    geometry, size
        Of the convolution and of its tiles.
    others
        Name, shape and dtype of what else `finish` reads: parameters after the products.
    finish
        Makes an element of the result of the convolution's, of its four indices, and of the
        buffers of `others`.
    dtype
        Of the result.
    """
    side, packed = size + KERNEL - 1, geometry.packed
    rows, columns = geometry.tile_rows(size), geometry.tile_columns(size)
    filters = geometry.filters
    with IRBuilder() as builder, tir.prim_func(is_private=True, s_tir=True):
        tir.func_name("main")
        tir.func_attr({"tirx.noalias": True})
        shape = _extents(side * side, geometry.tiles(size), filters // packed, packed)
        values = tir.arg("products", tir.buffer(shape, "float32"))
        read = [tir.arg(name, tir.buffer(_extents(*s), kind)) for name, s, kind in others]
        out_shape = (geometry.batch, geometry.out_height, geometry.out_width, filters)
        out = tir.arg("out", tir.buffer(_extents(*out_shape), dtype))
        with (
            tir.grid(*_extents(geometry.batch, rows, columns, filters)) as loops,
            tir.sblock(OUTPUT),
        ):
            n, y, x, k = tir.axis.remap("SSSS", list(loops))
            tile = (n * rows + y) * columns + x
            place = (k // packed, k % packed)
            tir.reads(
                values[0 : side * side, tile, place[0], place[1]],
                *(_whole(buffer) for buffer in read),
            )
            tir.writes(_region(out, (n, y, x, k), size, geometry))
            lines = [
                [tir.Bind(values[i * side + j, tile, place[0], place[1]]) for j in range(side)]
                for i in range(side)
            ]
            for i, line in enumerate(_both_sides(_MATRICES[size][2], lines)):
                for j, value in enumerate(line):
                    h, below = _inside(y, rows, size, i, geometry.out_height)
                    w, beside = _inside(x, columns, size, j, geometry.out_width)
                    where = (n, h, w, k)
                    if below + beside:
                        with tir.If(_all(below + beside)), tir.Then():
                            done = finish(tir.Bind(value), where, read)
                            tir.buffer_store(out, done, list(where))
                    else:
                        done = finish(tir.Bind(value), where, read)
                        tir.buffer_store(out, done, list(where))
    return builder.get()


def _whole(buffer: Any) -> Any:
    return buffer[tuple(slice(0, extent) for extent in buffer.ty.shape)]


def _region(buffer: Any, where: tuple[Any, Any, Any, Any], size: int, geometry: Geometry) -> Any:
    """Return what a tile writes; all of the image where some of its tiles overhang."""
    n, y, x, k = where
    height, width = geometry.out_height, geometry.out_width
    if height % size or width % size:
        return buffer[n, 0:height, 0:width, k]
    return buffer[n, y * size : y * size + size, x * size : x * size + size, k]


def share_of_multiplications(geometry: Geometry, size: int) -> float:
    """Return the multiplications of F(size x size) as a share of the direct form's."""
    outputs = geometry.batch * geometry.out_height * geometry.out_width
    return math.prod((geometry.tiles(size), points(size))) / (outputs * KERNEL**2)
