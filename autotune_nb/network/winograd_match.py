"""Recognises the convolutions, in lowered TensorIR functions, that Winograd's algorithm can do."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import tvm
import tvm_ffi
from tvm.ir import TensorLoad

from autotune_nb.network.winograd_functions import KERNEL, Geometry


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Epilogue:
    """What a function does with each element of its convolution.

    Attributes
    ----------
    value
        The element of the result, as an expression.
    axes
        The four variables in it that are the indices of the element.
    source
        The buffer of the convolution's result in it; None if it is the result itself.
    """

    value: Any
    axes: tuple[Any, ...]
    source: Any

    def apply(self, element: Any, where: Sequence[Any], buffers: Sequence[tuple[Any, Any]]) -> Any:
        """Return the result for an element at these indices.

        `buffers` are the ones it read so far, each with the one to be read instead.
        """
        if self.source is None:
            return element

        axes = list(zip(self.axes, where, strict=True))

        def placed(variable: Any) -> Any:
            return next((new for old, new in axes if variable.same_as(old)), variable)

        def read(load: Any) -> Any:
            if load.source.same_as(self.source):
                return element
            new = next((new for old, new in buffers if load.source.same_as(old)), None)
            return load if new is None else new[tuple(load.indices)]

        return tvm_ffi.structural_map(self.value, [(tvm.tirx.Var, placed), (TensorLoad, read)])


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Convolution:
    """A lowered function that is a 3x3 convolution of stride 1 in NHWC and what follows it.

    Attributes
    ----------
    geometry
        Its sizes.
    data, weights
        Which of the function's parameters they are.
    weight_axes
        Where in the weights' shape are kernel rows, kernel columns, channels and filters.
    others
        The other parameters that are read, by their number, as buffers.
    epilogue
        What follows the convolution.
    dtype
        Of the function's result.
    """

    geometry: Geometry
    data: int
    weights: int
    weight_axes: tuple[int, ...]
    others: Mapping[int, Any]
    epilogue: Epilogue
    dtype: str


class _NoMatch(Exception):
    """This function is something else."""


def match(function: Any) -> Convolution | None:
    """Return what a lowered function convolves, or None if it is something else."""
    try:
        return _match(function)
    except (_NoMatch, tvm.s_tir.ScheduleError):
        return None


def _require(condition: bool) -> None:
    if not condition:
        raise _NoMatch


def _match(function: Any) -> Convolution:
    schedule = tvm.s_tir.Schedule(tvm.IRModule({"main": function}), debug_mask="none")
    root = schedule.get_sblock("root")
    blocks = schedule.get_child_blocks(root)
    _require(len(blocks) >= 2)
    convolution, *rest = blocks[1:]
    _require(len(schedule.get(convolution).iter_vars) == 7)
    for block in rest[:-1]:
        schedule.compute_inline(block)
    nodes = [schedule.get(block) for block in schedule.get_child_blocks(root)]
    _require(len(nodes) == (3 if rest else 2))
    return _described(schedule.mod["main"], nodes)


def _described(function: Any, nodes: Sequence[Any]) -> Convolution:
    pad, convolution = nodes[:2]
    result, source, kernel, axes = _products(convolution)
    parameters = list(function.params)
    padded = pad.writes[0].source
    _require(source.same_as(padded))
    data, top, left = _padding(pad)
    epilogue, out = _epilogue(nodes[2:], result)
    _require(parameters[-1].same_as(out))
    numbers = {
        role: next((i for i, p in enumerate(parameters[:-1]) if p.same_as(buffer)), -1)
        for role, buffer in (("data", data), ("weights", kernel))
    }
    _require(min(numbers.values()) >= 0)
    others = {
        i: parameter
        for i, parameter in enumerate(parameters[:-1])
        if i != numbers["weights"] and (i != numbers["data"] or _loads(epilogue.value, parameter))
    }
    batch, height, width, channels = _shape(data)
    _, out_height, out_width, filters = _shape(result)
    kernel_shape = _shape(kernel)
    expected = {axes[0]: KERNEL, axes[1]: KERNEL, axes[2]: channels, axes[3]: filters}
    _require(all(kernel_shape[axis] == extent for axis, extent in expected.items()))
    return Convolution(
        geometry=Geometry(
            batch=batch,
            height=height,
            width=width,
            channels=channels,
            filters=filters,
            top=top,
            left=left,
            out_height=out_height,
            out_width=out_width,
        ),
        data=numbers["data"],
        weights=numbers["weights"],
        weight_axes=axes,
        others=others,
        epilogue=epilogue,
        dtype=str(out.ty.dtype),
    )


def _products(block: Any) -> tuple[Any, Any, Any, tuple[int, ...]]:
    """Return result, padded data and weights of a convolution, and the axes of the weights."""
    n, y, x, k, i, j, c = (axis.var for axis in block.iter_vars)
    kinds = [axis.iter_type == axis.CommReduce for axis in block.iter_vars]
    _require(kinds == [False] * 4 + [True] * 3)
    store, initial = block.body, block.init
    _require(isinstance(store, tvm.tirx.BufferStore) and isinstance(initial, tvm.tirx.BufferStore))
    _require(isinstance(initial.value, tvm.tirx.FloatImm) and float(initial.value.value) == 0.0)
    _require(hasattr(store.value, "a") and type(store.value).__name__ == "Add")
    product = store.value.b
    _require(type(product).__name__ == "Mul")
    data, kernel = product.a, product.b
    _require(all(isinstance(load, TensorLoad) for load in (data, kernel)))
    _require(all(str(load.source.ty.dtype) == "float32" for load in (data, kernel)))
    _require(str(store.buffer.ty.dtype) == "float32")
    wanted = (n, y + i, x + j, c)
    _require(len(data.indices) == 4 and len(kernel.indices) == 4)
    _require(all(_equal(a, b) for a, b in zip(data.indices, wanted, strict=True)))
    places = []
    for axis in (i, j, c, k):
        found = [number for number, index in enumerate(kernel.indices) if index.same_as(axis)]
        _require(len(found) == 1)
        places.append(found[0])
    _require(all(a.same_as(b) for a, b in zip(store.indices, (n, y, x, k), strict=True)))
    return store.buffer, data.source, kernel.source, tuple(places)


def _padding(block: Any) -> tuple[Any, int, int]:
    """Return the buffer that a block pads with zeros, and the rows and columns before it."""
    n, y, x, c = (axis.var for axis in block.iter_vars)
    value, condition = block.body.value, None
    if getattr(getattr(value, "op", None), "name", "") == "prim.if_then_else":
        condition, value, otherwise = value.args
        _require(isinstance(otherwise, tvm.tirx.FloatImm) and float(otherwise.value) == 0.0)
    _require(isinstance(value, TensorLoad) and len(value.indices) == 4)
    _require(value.indices[0].same_as(n) and value.indices[3].same_as(c))
    top, left = (
        _constant(axis - index) for axis, index in zip((y, x), value.indices[1:3], strict=True)
    )
    _, height, width, _ = _shape(value.source)
    rows, columns = (int(axis.dom.extent) for axis in block.iter_vars[1:3])
    _require(top >= 0 and left >= 0)
    # The condition must be the one that is expected; at each edge it is.
    for axis, before, inner, outer, other in (
        (y, top, height, rows, (x, left)),
        (x, left, width, columns, (y, top)),
    ):
        for index in {0, before - 1, before, before + inner - 1, before + inner, outer - 1}:
            if 0 <= index < outer:
                known = ((axis, index), other)
                _require(_holds(condition, known) == (before <= index < before + inner))
    return value.source, top, left


def _holds(condition: Any, known: Sequence[tuple[Any, int]]) -> bool:
    if condition is None:
        return True

    def replaced(variable: Any) -> Any:
        found = next((value for axis, value in known if variable.same_as(axis)), None)
        return variable if found is None else tvm.tirx.const(found, "int64")

    return bool(_constant(tvm_ffi.structural_map(condition, (tvm.tirx.Var, replaced))))


def _epilogue(nodes: Sequence[Any], result: Any) -> tuple[Epilogue, Any]:
    """Return what a block makes of each element, and the buffer it writes."""
    if not nodes:
        return Epilogue(value=None, axes=(), source=None), result
    (node,) = nodes
    axes = tuple(axis.var for axis in node.iter_vars)
    store = node.body
    _require(isinstance(store, tvm.tirx.BufferStore) and len(axes) == 4)
    _require(_shape(store.buffer) == _shape(result))
    _require(all(a.same_as(b) for a, b in zip(store.indices, axes, strict=True)))
    loads = _loads(store.value, result)
    _require(bool(loads))
    for load in loads:
        for index, axis, extent in zip(load.indices, axes, _shape(result), strict=True):
            _require(index.same_as(axis) or extent == 1)
    return Epilogue(value=store.value, axes=axes, source=result), store.buffer


def _loads(value: Any, buffer: Any) -> list[Any]:
    """Return where an expression reads a buffer."""
    found: list[Any] = []

    def visit(load: Any) -> None:
        if load.source.same_as(buffer):
            found.append(load)

    if value is not None:
        tvm_ffi.structural_walk(value, (TensorLoad, visit))
    return found


def _shape(buffer: Any) -> tuple[int, ...]:
    _require(all(isinstance(extent, tvm.tirx.IntImm) for extent in buffer.ty.shape))
    return tuple(int(extent) for extent in buffer.ty.shape)


def _simplified(expression: Any) -> Any:
    return _analyzer().simplify(expression)


def _analyzer() -> Any:
    from tvm.sym import Analyzer

    return Analyzer()


def _equal(one: Any, other: Any) -> bool:
    return bool(tvm_ffi.structural_equal(_simplified(one), _simplified(other)))


def _constant(expression: Any) -> int:
    value = _simplified(expression)
    _require(isinstance(value, tvm.tirx.IntImm))
    return int(value)
