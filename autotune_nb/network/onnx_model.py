"""Reads an ONNX model and says what is wrong with it. Knows no TVM."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import helper

from autotune_nb.errors import NetworkError

# Protobuf's limit for a message; ONNX Runtime and the checker take a model as one.
_LARGEST_BYTES = 2**31 - 1


def read(model: str | Path | onnx.ModelProto) -> tuple[onnx.ModelProto, str]:
    """Return a copy of a model, external data included, and what to call it in messages.

    Raises
    ------
    NetworkError
        There is no such file, it is no ONNX model, its external data is missing, or it is larger
        than 2 GiB with it.
    """
    if isinstance(model, onnx.ModelProto):
        _refuse_large(_weight_bytes(model, Path()), model.graph.name or "ONNX model")
        copy = onnx.ModelProto()
        copy.CopyFrom(model)
        return copy, model.graph.name or "ONNX model"
    path = Path(model)
    name = str(path)
    if not path.is_file():
        what = "is a directory" if path.is_dir() else "does not exist"
        raise NetworkError(f"{name}: {what}; pass the path of an .onnx file")
    _refuse_large(path.stat().st_size, name)
    try:
        loaded = onnx.load(path, load_external_data=False)
    except OSError as error:
        raise NetworkError(f"{name}: cannot be read ({error.strerror or error})") from error
    except Exception as error:
        raise _no_model(name) from error
    # Protobuf takes many files for an empty message.
    if not loaded.HasField("graph") or not loaded.ir_version:
        raise _no_model(name)
    _refuse_large(path.stat().st_size + _weight_bytes(loaded, path.parent), name)
    try:
        onnx.load_external_data_for_model(loaded, str(path.parent))
    except Exception as error:
        raise NetworkError(
            f"{name}: its external data cannot be read ({first_line(error)}); "
            "keep the data files beside the model"
        ) from error
    return loaded, name


def _weight_bytes(model: onnx.ModelProto, folder: Path) -> int:
    """Return how much the weights take that are not in the model's own file."""
    total = 0
    for tensor in model.graph.initializer:
        if tensor.data_location != onnx.TensorProto.EXTERNAL:
            total += len(tensor.raw_data)
            continue
        entries = {entry.key: entry.value for entry in tensor.external_data}
        data = folder / entries.get("location", "")
        if entries.get("length", "").isdecimal():
            total += int(entries["length"])
        elif data.is_file():
            total += data.stat().st_size
    return total


def _refuse_large(size_bytes: int, name: str) -> None:
    if size_bytes > _LARGEST_BYTES:
        raise NetworkError(
            f"{name}: takes {size_bytes / 2**30:.1f} GiB with its weights, and models end at 2 GiB "
            "here; convert it to float16, or cut it into parts and tune these"
        )


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
    for what, value in [
        *(("input", value) for value in model.graph.input),
        *(("output", value) for value in model.graph.output),
    ]:
        kind = value.type.WhichOneof("value")
        text = value.type.tensor_type.elem_type == onnx.TensorProto.STRING
        if text or kind not in ("tensor_type", None):
            held = "holds text" if text else f"is a {str(kind).removesuffix('_type')}"
            raise NetworkError(
                f"{name}: {what} {value.name} {held}; only tensors of numbers can go in and out, "
                "so cut the model before that part"
            )
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
