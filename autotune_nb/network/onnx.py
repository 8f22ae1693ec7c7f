"""Imports ONNX models: checked, bound to shapes and simplified before TVM sees them."""

from __future__ import annotations

import contextlib
import io
import re
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import tvm
from onnx import inliner
from tvm import relax
from tvm.relax.frontend.onnx import onnx_frontend

from autotune_nb.errors import NetworkError
from autotune_nb.network import onnx_model, onnx_resize, onnx_shapes, onnx_simplify
from autotune_nb.network.convert import check_options, convert, tidy
from autotune_nb.network.network import Network, TensorSpec
from autotune_nb.network.onnx_model import first_line

_IMAGE_OPERATORS = {"Conv", "ConvTranspose", "MaxPool", "AveragePool", "GlobalAveragePool"}
_MICROSOFT = "com.microsoft"
_UNKNOWN_REASONS = "replace them, or export the model without them"
_CONTROL = frozenset({"If", "Loop", "Scan"})
_CONTROL_REASON = " (branches that depend on shapes alone are resolved, on data they cannot be)"


def from_onnx(
    model: str | Path | onnx.ModelProto,
    *,
    shapes: onnx_shapes.Shapes | None = None,
    layout: str | None = None,
    dtype: str | None = None,
) -> Network:
    """Import an ONNX model: see `autotune_nb.from_onnx`."""
    check_options(layout, dtype)
    proto, name = onnx_model.read(model)
    try:
        return convert(_network(proto, model, shapes, name), layout=layout, dtype=dtype)
    except NetworkError:
        raise
    except Exception as error:
        # Damaged models break Protobuf, onnx and TVM in ways that none of them documents.
        raise NetworkError(
            f"{name}: cannot be imported; it is damaged, or holds something that has not been "
            f"thought of ({type(error).__name__}: {first_line(error)})"
        ) from error


def _network(
    proto: onnx.ModelProto,
    model: str | Path | onnx.ModelProto,
    shapes: onnx_shapes.Shapes | None,
    name: str,
) -> Network:
    if proto.functions:
        proto = _inlined(proto, name)
    onnx_simplify.check_opset(proto, name)
    _refuse_unknown(proto, name)
    onnx_model.modernise(proto)
    onnx_model.check(proto, name)
    count = onnx_model.parameter_count(proto)
    bound = onnx_shapes.bind(proto, shapes, name)
    simple, results = onnx_simplify.simplify(proto, name)
    if missing := unsupported(simple):
        simple = onnx_simplify.expand(simple, {kind for domain, kind in missing if not domain})
        _refuse_unsupported(simple, name)
    onnx_resize.refuse_inexact(simple, name)
    module = _import(simple, name)
    _refuse_empty(module, name)
    module, params = tidy(module)
    kinds = {kind for _, kind in onnx_model.operators(proto.graph.node)}
    return Network(
        name=Path(model).stem if isinstance(model, str | Path) else name,
        module=module,
        params=params,
        inputs=_inputs(proto),
        outputs=_outputs(module, proto, results, name),
        layout="NCHW" if kinds & _IMAGE_OPERATORS else "",
        source={
            "kind": "onnx",
            "model": str(model) if isinstance(model, str | Path) else name,
            "shapes": {key: list(shape) for key, shape in bound.items()},
        },
        parameter_count=count,
        reference=proto.SerializeToString(),
    )


# -- operators --------------------------------------------------------------------------------


def unsupported(model: onnx.ModelProto) -> Counter[tuple[str, str]]:
    """Count the operators of a model that TVM has no import for, by domain and type."""
    known = set(onnx_frontend._get_convert_map())
    found = Counter[tuple[str, str]]()
    for (domain, kind), count in onnx_model.operators(model.graph.node).items():
        standard = onnx.defs.has(kind)
        # TVM ignores domains. Its operators that ONNX does not define are Microsoft's, and so is
        # its Attention: ONNX's own, of the same name, is another operation.
        home = _MICROSOFT if not standard or kind == "Attention" else ""
        if kind not in known or domain != home:
            found[domain, kind] = count
    return found


def _refuse_unknown(model: onnx.ModelProto, name: str) -> None:
    """Refuse operators that nobody but their author knows."""
    domains = {domain for domain, _ in unsupported(model)}
    if any(domain != _MICROSOFT and not domain.startswith("ai.onnx") for domain in domains - {""}):
        _refuse_unsupported(model, name)


def _refuse_unsupported(model: onnx.ModelProto, name: str) -> None:
    missing = unsupported(model)
    if missing:
        listed = ", ".join(
            f"{domain}::{kind} ({count})" if domain else f"{kind} ({count})"
            for (domain, kind), count in sorted(missing.items())
        )
        flow = "" if _CONTROL.isdisjoint(kind for _, kind in missing) else _CONTROL_REASON
        raise NetworkError(
            f"{name}: TVM cannot import these operators (and how many): {listed}; "
            f"{_UNKNOWN_REASONS}{flow}"
        )


def _inlined(model: onnx.ModelProto, name: str) -> onnx.ModelProto:
    try:
        return inliner.inline_local_functions(model)
    except Exception as error:
        raise NetworkError(
            f"{name}: its functions cannot be expanded ({first_line(error)})"
        ) from error


# -- TVM --------------------------------------------------------------------------------------


@contextlib.contextmanager
def _quiet() -> Iterator[io.StringIO]:
    """Keep what TVM's importer prints and warns about off the user's screen."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield printed


def _import(model: onnx.ModelProto, name: str) -> tvm.ir.IRModule:
    # TVM's own from_onnx would also check the model again: long, where weights are large.
    importer = onnx_frontend.ONNXGraphImporter({}, None, sanitize=False)
    with _quiet() as printed:
        try:
            return importer.from_onnx(model.graph, onnx_model.opset(model))
        except Exception as error:
            reason = first_line(error)
        # The builder warns on standard error if it dies with a block open.
        with contextlib.suppress(Exception):
            importer.bb._end_block()
    # The importer raises an error about a tensor, and prints which operator it was at.
    found = re.search(r"Error converting operator (\w+)", printed.getvalue())
    what = f"operator {found[1]}" if found else "it"
    raise NetworkError(f"{name}: TVM cannot import {what} ({reason}); {_UNKNOWN_REASONS}")


def _refuse_empty(module: tvm.ir.IRModule, name: str) -> None:
    """Refuse a network in which something has no elements: averages of nothing are no numbers."""
    # An error raised while TVM calls back would come out as one of TVM's.
    empty: list[list[int]] = []

    def visit(expression: Any) -> None:
        if isinstance(expression, relax.Var) and isinstance(expression.ty, relax.TensorType):
            shape = expression.ty.shape
            extents = [] if shape is None else list(shape)
            if any(isinstance(e, int | tvm.tirx.IntImm) and int(e) == 0 for e in extents):
                empty.append(
                    [int(e) if isinstance(e, int | tvm.tirx.IntImm) else -1 for e in extents]
                )

    relax.analysis.post_order_visit(module["main"], visit)
    if empty:
        raise NetworkError(
            f"{name}: a value inside has the shape {empty[0]}, without any elements; bind larger "
            "inputs"
        )


def _inputs(model: onnx.ModelProto) -> tuple[TensorSpec, ...]:
    specs = []
    for value in model.graph.input:
        kind = value.type.tensor_type
        dtype = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)
        shape = tuple(dim.dim_value for dim in kind.shape.dim)
        specs.append(TensorSpec(name=value.name, shape=shape, dtype=str(dtype)))
    return tuple(specs)


def _outputs(
    module: tvm.ir.IRModule,
    model: onnx.ModelProto,
    results: Sequence[np.ndarray[Any, Any]] | None,
    name: str,
) -> tuple[TensorSpec, ...]:
    """Return the specs of the outputs, once they are known to be what ONNX Runtime returns."""
    kind = module["main"].ret_ty
    kinds = list(kind.fields) if isinstance(kind, relax.TupleType) else [kind]
    specs = []
    for position, (output, kind) in enumerate(zip(model.graph.output, kinds, strict=True)):
        static = isinstance(kind, relax.TensorType) and kind.shape is not None
        extents: list[Any] = list(kind.shape) if static else [None]
        if not all(isinstance(extent, int | tvm.tirx.IntImm) for extent in extents):
            raise NetworkError(
                f"{name}: the shape of output {output.name} depends on the data ({kind}), "
                "and only static shapes can be tuned; cut the model before that part"
            )
        shape, dtype = tuple(map(int, extents)), str(kind.dtype)
        if results is not None:
            actual = results[position]
            if (actual.shape, str(actual.dtype)) != (shape, dtype):
                raise NetworkError(
                    f"{name}: TVM imports output {output.name} as {dtype}{list(shape)}, and ONNX "
                    f"Runtime returns {actual.dtype}{list(actual.shape)}: TVM reads an operator "
                    "differently; please report this model"
                )
        specs.append(TensorSpec(name=output.name, shape=shape, dtype=dtype))
    return tuple(specs)
