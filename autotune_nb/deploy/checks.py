"""What it means that a compiled network is correct: inputs to try, deviation, tolerance."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import tvm
from tvm import relax

from autotune_nb.network.network import Network, TensorSpec

# Of the largest output. Sums are made in another order than the reference makes them, and each
# layer passes on the differences of those before it.
_TOLERANCE = 2e-5
_TOLERANCE_DEEP = 5e-5
_TOLERANCE_HALF = 1e-2
_DEEP = 40

Array = np.ndarray[Any, Any]


def deviation(found: Sequence[Array] | None, reference: Sequence[Array]) -> float:
    """Return the largest difference between outputs, over the largest of the reference's.

    Infinite where there are no outputs, their number or shapes differ, or any is not finite.
    Integers and booleans must be equal.
    """
    if found is None or len(found) != len(reference):
        return math.inf
    worst = 0.0
    for array, expected in zip(found, reference, strict=True):
        if array.shape != expected.shape:
            return math.inf
        if expected.dtype.kind in "iub":
            worst = max(worst, 0.0 if np.array_equal(array, expected) else math.inf)
            continue
        a, b = array.astype(np.float64), expected.astype(np.float64)
        if not (np.isfinite(a).all() and np.isfinite(b).all()):
            return math.inf
        scale = float(np.abs(b).max(initial=0.0))
        difference = float(np.abs(a - b).max(initial=0.0))
        worst = max(worst, 0.0 if difference == 0 else difference / scale if scale else math.inf)
    return worst


def tolerance_of(network: Network) -> float:
    """Return the deviation that rounding alone can explain in a network."""
    dtypes = {str(value.dtype) for value in network.params.values()}
    dtypes |= {spec.dtype for spec in (*network.inputs, *network.outputs)}
    if dtypes & {"float16", "bfloat16"}:
        return _TOLERANCE_HALF
    depth = 0

    def visit(expr: Any) -> None:
        nonlocal depth
        name = getattr(expr.op, "name", "") if isinstance(expr, tvm.ir.Call) else ""
        depth += name.startswith(("relax.nn.conv", "relax.matmul"))

    for function in network.module.functions.values():
        if isinstance(function, relax.Function):
            relax.analysis.post_order_visit(function, visit)
    return _TOLERANCE_DEEP if depth > _DEEP else _TOLERANCE


def random_inputs(specs: Sequence[TensorSpec], seed: int) -> list[Array]:
    """Return random inputs: normal floats, bytes of any value, other integers 0 or 1.

    Integers are mostly indices or masks, and 0 and 1 are valid for all of these.
    """
    generator = np.random.default_rng(seed)
    arrays = []
    for spec in specs:
        dtype = np.dtype("float32" if spec.dtype == "bfloat16" else spec.dtype)
        if dtype.kind == "f":
            arrays.append(generator.standard_normal(spec.shape).astype(dtype))
        else:
            high = 256 if spec.dtype == "uint8" else 2
            arrays.append(generator.integers(0, high, spec.shape).astype(dtype))
    return arrays
