"""Gives every input of an ONNX model its shape, or says which are missing. Knows no TVM."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import onnx
from onnx import helper

from autotune_nb.errors import NetworkError, near_matches

Shapes = Mapping[str, "Sequence[int] | int"]

# A dimension of an input: its extent, the name of a symbol, or None where nothing is said.
Dim = int | str | None
_LARGEST = 2**31 - 1


def dims(value: onnx.ValueInfoProto, name: str) -> list[Dim] | None:
    """Return the dimensions of an input, or None if nothing is said about its shape."""
    if not value.type.HasField("tensor_type"):
        raise NetworkError(f"{name}: input {value.name} is no tensor; only tensors can be inputs")
    kind = value.type.tensor_type
    if not kind.HasField("shape"):
        return None
    found: list[Dim] = []
    for dim in kind.shape.dim:
        if dim.HasField("dim_value"):
            found.append(dim.dim_value if dim.dim_value >= 0 else None)
        else:
            usable = dim.dim_param not in ("", "?") and not dim.dim_param.lstrip("-").isdigit()
            found.append(dim.dim_param if usable else None)
    return found


def bind(model: onnx.ModelProto, shapes: Shapes | None, name: str) -> dict[str, tuple[int, ...]]:
    """Give every input a static shape, in the model itself.

    Parameters
    ----------
    model
        Changed in place; what was said about shapes of intermediate values is dropped.
    shapes
        Shapes by input, or extents by symbol.
    name
        Of the model, in messages.

    Returns
    -------
    dict
        The shape of each input.

    Raises
    ------
    NetworkError
        A name is unknown, a shape contradicts the model or another shape, or something is left
        unbound; the message lists what is, and shows how to bind it.
    """
    declared = {value.name: dims(value, name) for value in model.graph.input}
    given = {key: _extents(key, value, name) for key, value in (shapes or {}).items()}
    symbols = {dim for found in declared.values() if found for dim in found if isinstance(dim, str)}
    if unknown := sorted(set(given) - set(declared) - symbols):
        known = ", ".join([*declared, *sorted(symbols)])
        raise NetworkError(
            f"{name}: has no input {unknown[0]!r}{near_matches(unknown[0], declared)}; "
            f"shapes can be given for {known}"
        )
    bound = {key: extents[0] for key, extents in given.items() if key not in declared}
    wrong = [key for key, e in given.items() if key not in declared and len(e) != 1]
    if wrong:
        raise NetworkError(f"{name}: {wrong[0]!r} is one dimension, so give it one extent")
    for key, found in declared.items():
        if key in given:
            _match(key, found, given[key], bound, name)
    final = {
        key: list(given[key])
        if key in given
        else None
        if found is None
        else [bound.get(dim, dim) if isinstance(dim, str) else dim for dim in found]
        for key, found in declared.items()
    }
    _refuse_unbound(declared, final, name)
    result = {
        key: tuple(dim for dim in found or () if isinstance(dim, int))
        for key, found in final.items()
    }
    for key, shape in result.items():
        if math.prod(shape) > _LARGEST:
            raise NetworkError(f"{name}: input {key} would have {math.prod(shape)} elements")
    for value in model.graph.input:
        kind = value.type.tensor_type
        kind.CopyFrom(helper.make_tensor_type_proto(kind.elem_type, result[value.name]).tensor_type)
    # What follows from the shapes is inferred anew; what was written for others would contradict.
    del model.graph.value_info[:]
    for value in model.graph.output:
        value.type.tensor_type.ClearField("shape")
    return result


def _extents(key: str, value: Sequence[int] | int, name: str) -> tuple[int, ...]:
    try:
        extents = (int(value),) if isinstance(value, int) else tuple(int(v) for v in value)
    except (TypeError, ValueError):
        raise NetworkError(
            f"{name}: the shape of {key} must be whole numbers, not {value!r}"
        ) from None
    for extent in extents:
        if not 1 <= extent <= _LARGEST:
            raise NetworkError(f"{name}: the shape of {key} has the extent {extent}; use 1 or more")
    return extents


def _match(
    key: str, found: list[Dim] | None, given: tuple[int, ...], bound: dict[str, int], name: str
) -> None:
    """Check a given shape against the declared one, and learn the symbols in it."""
    if found is None:
        return
    if len(found) != len(given):
        raise NetworkError(
            f"{name}: input {key} has {len(found)} dimensions {_show(found)}, not {len(given)}"
        )
    for dim, extent in zip(found, given, strict=True):
        if isinstance(dim, str) and bound.setdefault(dim, extent) != extent:
            raise NetworkError(
                f"{name}: {dim} would be both {bound[dim]} and {extent} (input {key}); "
                "give the same extent everywhere"
            )
        # A model may say 0 where it means 'any'.
        if isinstance(dim, int) and dim not in (extent, 0):
            raise NetworkError(f"{name}: input {key} is {_show(found)}, which {given} contradicts")


def _refuse_unbound(
    declared: Mapping[str, list[Dim] | None],
    final: Mapping[str, Sequence[Dim] | None],
    name: str,
) -> None:
    open_inputs = [
        key
        for key, found in final.items()
        if found is None or any(not isinstance(dim, int) or dim < 1 for dim in found)
    ]
    if not open_inputs:
        return
    key = open_inputs[0]
    listed = "; ".join(f"{k}: {_show(declared[k])}" for k in open_inputs)
    if any(final[k] is None for k in open_inputs):
        why = "the shape of an input is unknown"
    elif any(0 in (final[k] or ()) for k in open_inputs):
        why = "a dimension of an input is zero"
    else:
        why = "a dimension of an input is not fixed"
    found = final[key]
    example = (
        "1, 3, 224, 224"
        if found is None
        else ", ".join(str(d) if isinstance(d, int) and d > 0 else "1" for d in found)
    )
    symbol = next((dim for dim in found or () if isinstance(dim, str)), None)
    by_symbol = "" if symbol is None else f", or {symbol} everywhere by shapes={{{symbol!r}: 1}}"
    comma = "," if found is not None and len(found) == 1 else ""
    raise NetworkError(
        f"{name}: {why} ({listed}); bind it, for example shapes={{{key!r}: ({example}{comma})}}"
        f" or --shape {key}={example.replace(' ', '')}{by_symbol}"
    )


def _show(found: Sequence[Dim] | None) -> str:
    if found is None:
        return "unknown shape"
    return "[" + ", ".join("?" if dim is None else str(dim) for dim in found) + "]"
