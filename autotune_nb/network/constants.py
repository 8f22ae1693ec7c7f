"""Takes the weights out of an imported Relax module, so that they are arguments of its function."""

from __future__ import annotations

from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

Array = np.ndarray[Any, Any]


def detach_constants(module: tvm.ir.IRModule) -> tuple[tvm.ir.IRModule, dict[str, Array]]:
    """Replace the constants of ``main`` by arguments after its own.

    Scalars and small vectors of integers stay: operators read shapes and axes from them.

    Returns
    -------
    module, params
        The new module, and the values of the new arguments by name, in their order.
    """
    detacher = _Detacher(module)
    body = detacher.visit_expr(module["main"].body)
    main = module["main"]
    function = relax.Function(
        [*main.params, *detacher.variables], body, main.ret_ty, main.is_pure, main.attrs
    )
    detacher.builder_.update_func(module.get_global_var("main"), function)
    result = relax.transform.Normalize()(detacher.builder_.get())
    return result, detacher.params


@mutator
class _Detacher(PyExprMutator):
    def __init__(self, module: tvm.ir.IRModule) -> None:
        super().__init__(module)
        self.variables: list[Any] = []
        self.params: dict[str, Array] = {}
        self.known: dict[Any, Any] = {}
        self.taken = {variable.name for variable in module["main"].params}

    def visit_generic_const_(self, op: Any) -> Any:
        """Replace one constant."""
        if op in self.known:
            return self.known[op]
        value = op.value.numpy()
        if value.size <= (1 if value.dtype.kind in "fV" else 16):
            return op
        name = f"weight_{len(self.params)}"
        while name in self.taken:
            name += "_"
        variable = relax.Var(name, op.ty)
        self.params[name] = value
        self.variables.append(variable)
        self.known[op] = variable
        return variable
