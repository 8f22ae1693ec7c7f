"""Small rewrites of imported Relax modules, where TVM's importers or passes do badly."""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

_BINARY = {
    "relax.sum": relax.op.add,
    "relax.max": relax.op.maximum,
    "relax.min": relax.op.minimum,
}


def _name(call: Any) -> str:
    return getattr(call.op, "name", "") if isinstance(call, tvm.ir.Call) else ""


def _mutated(mutate: Any, module: Any) -> Any:
    for variable, function in module.functions.items():
        if isinstance(function, relax.Function):
            mutate.builder_.update_func(variable, mutate.visit_expr(function))
    return mutate.builder_.get()


@tvm.transform.module_pass(opt_level=0, name="UnstackReductions")
class UnstackReductions:
    """Writes the sum, maximum or minimum of stacked values as a chain of binary operators.

    TVM's ONNX importer stacks what Sum, Max and Min read, which copies all of it, and which its
    layout conversion cannot follow.
    """

    def transform_module(self, module: Any, _: Any) -> Any:
        """Rewrite the Relax functions of a module."""
        return relax.transform.DeadCodeElimination()(_mutated(_Unstacker(module), module))


@mutator
class _Unstacker(PyExprMutator):
    def visit_call_(self, call: Any) -> Any:
        call = self.visit_expr_post_order(call)
        if _name(call) == "relax.broadcast_to":
            source = call.args[0]
            same = tvm_ffi.structural_equal(source.ty, call.ty)
            return source if same else call
        if _name(call) not in _BINARY or call.attrs.keepdims or call.attrs.axis is None:
            return call
        stacked = self.bound(call.args[0])
        if [int(axis) for axis in call.attrs.axis] != [0] or _name(stacked) != "relax.stack":
            return call
        values = self.bound(stacked.args[0])
        if not isinstance(values, relax.Tuple) or int(stacked.attrs.axis) != 0:
            return call
        total = values.fields[0]
        for value in list(values.fields)[1:]:
            total = self.builder_.emit(_BINARY[_name(call)](total, value))
        return total

    def bound(self, expression: Any) -> Any:
        """Return what a variable is bound to, or the expression itself."""
        if isinstance(expression, relax.Var):
            found = self.lookup_binding(expression)
            return expression if found is None else found
        return expression


@tvm.transform.module_pass(opt_level=0, name="ClipByConstants")
class ClipByConstants:
    """Writes clip as maximum and minimum: TVM's mixed precision takes its limits for tensors."""

    def transform_module(self, module: Any, _: Any) -> Any:
        """Rewrite the Relax functions of a module."""
        return _mutated(_Clipper(module), module)


@mutator
class _Clipper(PyExprMutator):
    def visit_call_(self, call: Any) -> Any:
        call = self.visit_expr_post_order(call)
        if _name(call) != "relax.clip":
            return call
        value, low, high = call.args
        dtype = str(value.ty.dtype)
        value = self.builder_.emit(relax.op.maximum(value, relax.const(low.value, dtype)))
        return relax.op.minimum(value, relax.const(high.value, dtype))
