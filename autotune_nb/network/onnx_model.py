"""Reads an ONNX model, says what is wrong with it, gives its inputs their shapes. Knows no TVM."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import helper

from autotune_nb.errors import NetworkError, near_matches

Shapes = Mapping[str, "Sequence[int] | int"]

# A dimension of an input: its extent, the name of a symbol, or None where nothing is said.
Dim = int | str | None
_LARGEST = 2**31 - 1


def read(model: str | Path | onnx.ModelProto) -> tuple[onnx.ModelProto, str]:
    """Return a copy of a model, external data included, and what to call it in messages.

    Raises
    ------
    NetworkError
        There is no such file, it is no ONNX model, or its external data is missing.
    """
    if isinstance(model, onnx.ModelProto):
        copy = onnx.ModelProto()
        copy.CopyFrom(model)
        return copy, model.graph.name or "ONNX model"
    path = Path(model)
    name = str(path)
    if not path.is_file():
        what = "is a directory" if path.is_dir() else "does not exist"
        raise NetworkError(f"{name}: {what}; pass the path of an .onnx file")
    try:
        loaded = onnx.load(path, load_external_data=False)
    except OSError as error:
        raise NetworkError(f"{name}: cannot be read ({error.strerror or error})") from error
    except Exception as error:
        raise _no_model(name) from error
    # Protobuf takes many files for an empty message.
    if not loaded.HasField("graph") or not loaded.ir_version:
        raise _no_model(name)
    try:
        onnx.load_external_data_for_model(loaded, str(path.parent))
    except Exception as error:
        raise NetworkError(
            f"{name}: its external data cannot be read ({first_line(error)}); "
            "keep the data files beside the model"
        ) from error
    return loaded, name


def _no_model(name: str) -> NetworkError:
    return NetworkError(f"{name}: not an ONNX model, or a truncated one; export it again")


def first_line(error: BaseException) -> str:
    """Return the first telling line of an error's message, shortened."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    line = lines[0] if lines else type(error).__name__
    return line if len(line) <= 300 else line[:297] + "..."


# -- structure --------------------------------------------------------------------------------


def modernise(model: onnx.ModelProto) -> None:
    """Make weights constants: a model may list them among its inputs, and old ones have to."""
    weights = {tensor.name for tensor in model.graph.initializer}
    values = [value for value in model.graph.input if value.name not in weights]
    if len(values) < len(model.graph.input):
        del model.graph.input[:]
        model.graph.input.extend(values)
    # From version 4 on, weights need not be inputs.
    model.ir_version = max(model.ir_version, 8)


def check(model: onnx.ModelProto, name: str) -> None:
    """Check what can be checked without running the model, and sort its nodes.

    Raises
    ------
    NetworkError
        The model computes nothing, has a cycle, or breaks the ONNX specification.
    """
    if not model.graph.output:
        raise NetworkError(f"{name}: the graph has no output, so there is nothing to compute")
    if not model.graph.node:
        raise NetworkError(f"{name}: the graph has no nodes, so there is nothing to compute")
    sort(model, name)
    # The checker wants a shape on every input and output; not every exporter writes one.
    values = [
        value
        for value in (*model.graph.input, *model.graph.output)
        if value.type.HasField("tensor_type") and not value.type.tensor_type.HasField("shape")
    ]
    for value in values:
        value.type.tensor_type.shape.SetInParent()
    try:
        onnx.checker.check_model(model)
    except Exception as error:
        message = first_line(error)
        raise NetworkError(f"{name}: breaks the ONNX specification ({message})") from error
    finally:
        for value in values:
            value.type.tensor_type.ClearField("shape")


def sort(model: onnx.ModelProto, name: str) -> None:
    """Put the nodes into an order in which each comes after what it reads.

    Raises
    ------
    NetworkError
        There is none, since some nodes read each other.
    """
    graph = model.graph
    made = {output: k for k, node in enumerate(graph.node) for output in node.output if output}
    before = [
        {made[used] for used in _used(node) if used in made} for node in graph.node
    ]  # fmt: skip
    if all(max(needs, default=-1) < k for k, needs in enumerate(before)):
        return
    order: list[int] = []
    ready = sorted((k for k, needs in enumerate(before) if not needs), reverse=True)
    after: dict[int, list[int]] = {}
    for k, needs in enumerate(before):
        for needed in needs:
            after.setdefault(needed, []).append(k)
    left = [len(needs) for needs in before]
    while ready:
        order.append(ready.pop())
        for k in after.get(order[-1], ()):
            left[k] -= 1
            if left[k] == 0:
                ready.append(k)
    if len(order) < len(graph.node):
        stuck = [node for k, node in enumerate(graph.node) if left[k]]
        names = ", ".join(node.name or f"{node.op_type} of {node.output[0]}" for node in stuck[:5])
        raise NetworkError(f"{name}: the graph has a cycle through {names}; export it again")
    nodes = [graph.node[k] for k in order]
    del graph.node[:]
    graph.node.extend(nodes)


def _used(node: onnx.NodeProto) -> Iterator[str]:
    yield from node.input
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            for inner in graph.node:
                yield from _used(inner)


def operators(nodes: Iterable[onnx.NodeProto]) -> Counter[tuple[str, str]]:
    """Count operators by domain ('' for ONNX's own) and type, those in subgraphs included."""
    found: Counter[tuple[str, str]] = Counter()
    for node in nodes:
        domain = "" if node.domain == "ai.onnx" else node.domain
        found[domain, node.op_type] += 1
        for attribute in node.attribute:
            for graph in (attribute.g, *attribute.graphs):
                found += operators(graph.node)
    return found


def opset(model: onnx.ModelProto) -> int:
    """Return the version of ONNX's own operators that a model uses."""
    return max((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), default=1)


def without_weights(
    model: onnx.ModelProto, least: int = 1024
) -> tuple[onnx.ModelProto, list[onnx.TensorProto]]:
    """Return a copy in which each large weight is an input, and those weights."""
    light = onnx.ModelProto(ir_version=model.ir_version, opset_import=model.opset_import)
    graph, weights = light.graph, []
    graph.name = model.graph.name or "graph"
    graph.node.extend(model.graph.node)
    graph.input.extend(model.graph.input)
    graph.output.extend(model.graph.output)
    graph.sparse_initializer.extend(model.graph.sparse_initializer)
    for tensor in model.graph.initializer:
        if np.prod(tensor.dims, dtype=np.int64) < least:
            graph.initializer.append(tensor)
        else:
            weights.append(tensor)
            graph.input.append(
                helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
            )
    return light, weights


def restore_weights(light: onnx.ModelProto, weights: Sequence[onnx.TensorProto]) -> None:
    """Undo `without_weights`, in place."""
    names = {tensor.name for tensor in weights}
    values = [value for value in light.graph.input if value.name not in names]
    del light.graph.input[:]
    light.graph.input.extend(values)
    light.graph.initializer.extend(weights)


def parameter_count(model: onnx.ModelProto) -> int:
    """Return the number of floating-point scalars among the weights, each counted once.

    Statistics of batch norms are left out, since they are not trained.
    """
    graph = model.graph
    constants: list[onnx.TensorProto] = list(graph.initializer)
    statistics: set[str] = set()
    for node in graph.node:
        if node.op_type == "BatchNormalization":
            statistics.update(node.input[3:5])
        if node.op_type == "Constant":
            for attribute in node.attribute:
                if attribute.HasField("t"):
                    constants.append(onnx.TensorProto())
                    constants[-1].CopyFrom(attribute.t)
                    constants[-1].name = node.output[0]
    kinds = (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.DOUBLE)
    return sum(
        int(np.prod(tensor.dims, dtype=np.int64))
        for tensor in constants
        if tensor.data_type in kinds and tensor.name not in statistics
    )


# -- shapes -----------------------------------------------------------------------------------


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
    result = {key: tuple(map(int, found)) for key, found in final.items() if found is not None}  # type: ignore[arg-type]
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
