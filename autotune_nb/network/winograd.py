"""Winograd formulations of convolutions: where they are offered, and a module rewritten to them.

A formulation replaces one function of a lowered module by three: the transform of the input, the
products with weights that are transformed ahead of time, and the transform of the output together
with all that was fused to the convolution. They are functions like any other: each is a task, so
what the transforms cost is measured too.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from autotune_nb.network import winograd_functions as functions
from autotune_nb.network.winograd_match import Convolution, match

DIRECT = "direct"
_SIZES = {"winograd2": 2, "winograd4": 4}
_PARTS = ("input", "products", "output")
# What the functions are called, where operators are named.
OPERATORS = frozenset(f"{name}_{part}" for name in _SIZES for part in _PARTS)

# Each transformed weight is used once for a tile. With fewer tiles than this the products wait for
# the weights, of which F(4x4) has four times as many as the direct form.
_LEAST_TILES = 16
# With so many tiles F(4x4) multiplies too much less than F(2x2) to be slower.
_PLENTY_OF_TILES = 32
# With fewer channels than this the transforms take what the products gain.
_LEAST_CHANNELS = 32


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Functions:
    """The three functions of a formulation, in the order in which they run."""

    input: Any
    products: Any
    output: Any


def offers(module: tvm.ir.IRModule) -> dict[str, tuple[str, ...]]:
    """Return which formulations a lowered module's functions have besides the direct one.

    Only for convolutions in float32 with constant weights. In float16 the sums of F(4x4) lose half
    of the digits, and tensor cores gain more than Winograd.

    Returns
    -------
    dict
        Names of formulations by the name of the function, in the order of the calls.
    """
    found: dict[str, tuple[str, ...]] = {}
    for name, calls in _calls(module).items():
        convolution = match(module[name])
        if convolution is None:
            continue
        weights = [call.args[1].fields[convolution.weights] for call in calls]
        names = _worthwhile(convolution.geometry)
        if names and all(isinstance(value, tvm.ir.GenericConst) for value in weights):
            found[name] = names
    return found


def _worthwhile(geometry: functions.Geometry) -> tuple[str, ...]:
    if not geometry.packed or min(geometry.channels, geometry.filters) < _LEAST_CHANNELS:
        return ()
    names = []
    if geometry.tiles(4) < _PLENTY_OF_TILES and geometry.tiles(2) >= _LEAST_TILES:
        names.append("winograd2")
    if geometry.tiles(4) >= _LEAST_TILES:
        names.append("winograd4")
    return tuple(
        name for name in names if functions.share_of_multiplications(geometry, _SIZES[name]) < 1
    )


def untuned(module: tvm.ir.IRModule, target: tvm.target.Target) -> dict[str, str]:
    """Return the formulations that are best with fallback schedules, by the function's name."""
    return {name: untuned_one([DIRECT, *found], target) for name, found in offers(module).items()}


def untuned_one(names: Sequence[str], target: tvm.target.Target) -> str:
    """Return which of a function's formulations, the direct one first, is best without tuning.

    On a CPU the first other one: all of ResNet-18 took half the time with it. On a GPU the direct
    one: nobody has measured the others there without tuning.
    """
    return names[1] if str(target.kind) == "llvm" and len(names) > 1 else names[0]


def formulated(function: Any, formulation: str) -> Functions:
    """Return the functions that compute what a function of `offers` does.

    Parameters
    ----------
    function
        A function of a lowered module.
    formulation
        One that `offers` names for it.
    """
    convolution = match(function)
    assert convolution is not None
    geometry, size = convolution.geometry, _SIZES[formulation]
    parameters = list(convolution.others.values())

    def finish(element: Any, where: Any, read: Any) -> Any:
        buffers = list(zip(parameters, read, strict=True))
        return convolution.epilogue.apply(element, where, buffers)

    others = [
        (f"other{i}", tuple(int(extent) for extent in p.ty.shape), str(p.ty.dtype))
        for i, p in enumerate(parameters)
    ]
    return Functions(
        input=functions.input_transform(geometry, size),
        products=functions.products(geometry, size),
        output=functions.output_transform(geometry, size, others, finish, convolution.dtype),
    )


def names(direct: str, formulation: str) -> tuple[str, str, str]:
    """Return names for the functions of a formulation, by the direct function's name."""
    _, _, rest = direct.removeprefix("fused_").partition("_")
    follows = f"_{rest}" if direct.startswith("fused_") and rest else ""
    return (
        f"{formulation}_input",
        f"{formulation}_products",
        f"fused_{formulation}_output{follows}" if follows else f"{formulation}_output",
    )


def rewritten(module: tvm.ir.IRModule, chosen: Mapping[str, str]) -> tvm.ir.IRModule:
    """Return a lowered module with functions replaced by other formulations.

    Parameters
    ----------
    module
        As `autotune_nb.network.lowering.lower` leaves it.
    chosen
        Formulations by the name of the function; those not in `offers` stay direct.
    """
    available = offers(module)
    wanted = {n: f for n, f in chosen.items() if f in available.get(n, ())}
    if not wanted:
        return module
    rewriter = _Rewriter(module, wanted)
    for variable, function in module.functions.items():
        if isinstance(function, relax.Function):
            rewriter.builder_.update_func(variable, rewriter.visit_expr(function))
    done = rewriter.builder_.get()
    for name in wanted:
        del done[done.get_global_var(name)]
    return done


@mutator
class _Rewriter(PyExprMutator):
    def __init__(self, module: tvm.ir.IRModule, wanted: Mapping[str, str]) -> None:
        super().__init__(module)
        self.made: dict[str, tuple[Convolution, int, tuple[Any, ...], Functions]] = {}
        for name, formulation in wanted.items():
            convolution = match(module[name])
            assert convolution is not None
            made = formulated(module[name], formulation)
            variables = tuple(
                self.builder_.add_func(function, label)
                for function, label in zip(
                    (made.input, made.products, made.output),
                    names(name, formulation),
                    strict=True,
                )
            )
            self.made[name] = (convolution, _SIZES[formulation], variables, made)

    def visit_call_(self, call: Any) -> Any:
        call = self.visit_expr_post_order(call)
        name = call.args[0].name_hint if _is_call_tir(call) else ""
        if name not in self.made:
            return call
        convolution, size, variables, made = self.made[name]
        arguments = list(call.args[1].fields)
        stored = arguments[convolution.weights].value.numpy()
        weights = functions.transformed_weights(
            np.transpose(stored, convolution.weight_axes), size, convolution.geometry.packed
        )
        tiles = self._call(variables[0], made.input, [arguments[convolution.data]])
        products = self._call(variables[1], made.products, [tiles, relax.const(weights)])
        others = [arguments[number] for number in convolution.others]
        return relax.call_tir(variables[2], [products, *others], out_ty=call.ty)

    def _call(self, variable: Any, function: Any, arguments: list[Any]) -> Any:
        result = function.params[-1].ty
        shape = [int(extent) for extent in result.shape]
        kind = relax.TensorType(shape, str(result.dtype))
        return self.builder_.emit(relax.call_tir(variable, arguments, out_ty=kind))


def _is_call_tir(expression: Any) -> bool:
    return (
        isinstance(expression, tvm.ir.Call)
        and getattr(expression.op, "name", "") == "relax.call_tir"
    )


def _calls(module: tvm.ir.IRModule) -> dict[str, list[Any]]:
    """Return the calls of TensorIR functions by the function's name, in order."""
    found: dict[str, list[Any]] = {}

    def visit(expression: Any) -> None:
        if _is_call_tir(expression):
            found.setdefault(expression.args[0].name_hint, []).append(expression)

    for function in module.functions.values():
        if isinstance(function, relax.Function):
            relax.analysis.post_order_visit(function, visit)
    return found
