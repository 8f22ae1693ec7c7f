"""Folds constant operators of a Relax module in NumPy, without compiling anything."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

Array = np.ndarray[Any, Any]


def _elementwise(function: Callable[..., Any]) -> Callable[..., Any]:
    def fold(call: Any, *arrays: Array) -> Any:
        del call
        return function(*arrays)

    return fold


def _reshaped(call: Any, array: Array, *_: Array) -> Any:
    return array.reshape(_shape(call))


def _broadcast(call: Any, array: Array) -> Any:
    return np.broadcast_to(array, _shape(call))


def _permuted(call: Any, array: Array) -> Any:
    axes = call.attrs.axes
    return array.transpose(None if axes is None else [int(axis) for axis in axes])


def _cast(call: Any, array: Array) -> Any:
    del call  # the dtype of the result is that of the call's type, see `_evaluate`
    return array


_FOLDS: dict[str, Callable[..., Any]] = {
    "relax.reshape": _reshaped,
    "relax.expand_dims": _reshaped,
    "relax.squeeze": _reshaped,
    "relax.flatten": _reshaped,
    "relax.broadcast_to": _broadcast,
    "relax.permute_dims": _permuted,
    "relax.astype": _cast,
    "relax.isnan": _elementwise(np.isnan),
    "relax.where": _elementwise(np.where),
    "relax.add": _elementwise(np.add),
    "relax.subtract": _elementwise(np.subtract),
    "relax.multiply": _elementwise(np.multiply),
    "relax.divide": _elementwise(np.divide),
    "relax.maximum": _elementwise(np.maximum),
    "relax.minimum": _elementwise(np.minimum),
    "relax.negative": _elementwise(np.negative),
    "relax.sqrt": _elementwise(np.sqrt),
    "relax.rsqrt": _elementwise(lambda x: 1 / np.sqrt(x)),
}
# Integer division differs in its rounding; leave it, and what else is rare, to TVM.
_FLOATS_ONLY = frozenset({"relax.divide", "relax.sqrt", "relax.rsqrt"})


def _shape(call: Any) -> tuple[int, ...]:
    return tuple(int(extent) for extent in call.ty.shape)


def _evaluate(call: Any, arrays: list[Array]) -> Array | None:
    """Return the value of a call on these arrays, or None to leave it alone."""
    name = getattr(call.op, "name", "")
    fold = _FOLDS.get(name)
    kind = call.ty
    if fold is None or not isinstance(kind, relax.TensorType) or kind.shape is None:
        return None
    if not all(isinstance(extent, int | tvm.tirx.IntImm) for extent in kind.shape):
        return None
    if name in _FLOATS_ONLY and not all(array.dtype.kind == "f" for array in arrays):
        return None
    # A constant that grows by folding costs more memory than it saves time.
    if math.prod(_shape(call)) > 4 * max(1, sum(array.size for array in arrays)) + 4096:
        return None
    dtype = tvm.runtime.empty((1,), str(kind.dtype)).numpy().dtype
    with np.errstate(all="ignore"):
        value = np.ascontiguousarray(np.asarray(fold(call, *arrays)).astype(dtype))
    return value.reshape(_shape(call))


@mutator
class _Folder(PyExprMutator):
    def visit_call_(self, call: Any) -> Any:
        call = self.visit_expr_post_order(call)
        arrays: list[Array] = []
        for argument in call.args:
            value = argument
            if isinstance(value, relax.Var):
                value = self.lookup_binding(value)
            if isinstance(value, tvm.ir.GenericConst):
                arrays.append(value.value.numpy())
            elif isinstance(value, tvm.tirx.FloatImm):
                arrays.append(np.asarray(value.value, dtype=str(value.ty)))
            elif not isinstance(argument, relax.ShapeExpr):
                return call
        folded = _evaluate(call, arrays) if arrays else None
        return call if folded is None else relax.const(folded, str(call.ty.dtype))


@tvm.transform.module_pass(opt_level=0, name="FoldInNumpy")
class FoldInNumpy:
    """Pass that replaces operators on constants by their values.

    Bindings of the form ``x = constant`` are left for ``CanonicalizeBindings`` to remove.
    """

    def transform_module(self, module: Any, context: Any) -> Any:
        """Fold the Relax functions of `module`."""
        del context
        folder = _Folder(module)
        for variable, function in module.functions.items():
            if isinstance(function, relax.Function):
                folder.builder_.update_func(variable, folder.visit_expr(function))
        return folder.builder_.get()
