"""Imports PyTorch modules through torch.export; PyTorch is an optional dependency."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import tvm
from tvm import relax

from autotune_nb.errors import EnvironmentProblem, NetworkError
from autotune_nb.network.convert import check_options, convert, tidy
from autotune_nb.network.network import Network, TensorSpec
from autotune_nb.network.onnx_model import first_line

if TYPE_CHECKING:
    import torch

_IMAGE_OPERATORS = ("relax.nn.conv2d", "relax.nn.max_pool2d", "relax.nn.avg_pool2d")


def from_torch(
    module: torch.nn.Module | torch.export.ExportedProgram,
    example_inputs: Any = None,
    *,
    name: str | None = None,
    layout: str | None = None,
    dtype: str | None = None,
) -> Network:
    """Import a PyTorch module: see `autotune_nb.from_torch`."""
    try:
        import torch
    except ImportError as error:
        raise EnvironmentProblem(
            "PyTorch is not installed; install it with pip install 'autotune-nb[torch]'"
        ) from error
    check_options(layout, dtype)
    if isinstance(module, torch.export.ExportedProgram):
        program, called = module, name or "exported program"
    elif isinstance(module, torch.nn.Module):
        called = name or type(module).__name__
        program = _exported(module, example_inputs, called)
    else:
        raise NetworkError(
            f"from_torch takes an nn.Module or an ExportedProgram, not {type(module).__name__}"
        )
    try:
        network = _network(program, called)
    except NetworkError:
        raise
    except Exception as error:
        raise NetworkError(
            f"{called}: TVM cannot import it ({first_line(error)}); replace that part, "
            "or export the module to ONNX and import that"
        ) from error
    return convert(network, layout=layout, dtype=dtype)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep what exporters print and warn about off the user's screen."""
    previous = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(previous)


@contextlib.contextmanager
def _evaluating(module: torch.nn.Module) -> Iterator[None]:
    """Put every part of a module into evaluation mode, and back."""
    training = [part for part in module.modules() if part.training]
    module.eval()
    try:
        yield
    finally:
        for part in training:
            part.training = True


def _exported(
    module: torch.nn.Module, example_inputs: Any, name: str
) -> torch.export.ExportedProgram:
    import torch

    if example_inputs is None:
        raise NetworkError(
            f"{name}: example inputs are missing; pass a tensor, or a tuple of them, of the "
            "shapes to tune for"
        )
    arguments = (example_inputs,) if isinstance(example_inputs, torch.Tensor) else example_inputs
    if not isinstance(arguments, Sequence) or not all(
        isinstance(argument, torch.Tensor) for argument in arguments
    ):
        raise NetworkError(f"{name}: example inputs must be a tensor or a tuple of tensors")
    try:
        with _quiet(), _evaluating(module):
            return torch.export.export(module, tuple(arguments))
    except Exception as error:
        raise NetworkError(
            f"{name}: torch.export cannot trace it ({first_line(error)}); see its message by "
            "calling torch.export.export(module, example_inputs)"
        ) from error


def _network(program: torch.export.ExportedProgram, name: str) -> Network:
    from tvm.relax.frontend.torch import from_exported_program

    with _quiet():
        module = from_exported_program(program, unwrap_unit_return_tuple=True)
    signature = program.graph_signature
    main = module["main"]
    inputs = [
        _spec(input_name, variable.ty, name)
        for input_name, variable in zip(signature.user_inputs, main.params, strict=True)
    ]
    kind = main.ret_ty
    kinds = list(kind.fields) if isinstance(kind, relax.TupleType) else [kind]
    names = [str(n) for n in signature.user_outputs]
    outputs = [_spec(n, k, name) for n, k in zip(names, kinds, strict=True)]
    with tvm.transform.PassContext(opt_level=3):
        module = relax.transform.FoldBatchnormToConv2D()(module)
    module, params = tidy(module)
    return Network(
        name=name,
        module=module,
        params=params,
        inputs=tuple(inputs),
        outputs=tuple(outputs),
        layout="NCHW" if _has_images(module) else "",
        source={
            "kind": "torch",
            "module": name,
            "shapes": {spec.name: list(spec.shape) for spec in inputs},
        },
        parameter_count=sum(parameter.numel() for parameter in program.parameters()),
        reference=_reference(program, inputs, outputs),
    )


def _spec(spec_name: Any, kind: Any, name: str) -> TensorSpec:
    shape = kind.shape if isinstance(kind, relax.TensorType) else None
    if shape is None or not all(isinstance(e, int | tvm.tirx.IntImm) for e in shape):
        raise NetworkError(
            f"{name}: {spec_name} is {kind}, and only static shapes can be tuned; export it "
            "without dynamic_shapes, from example inputs of the shapes to tune for"
        )
    return TensorSpec(
        name=str(spec_name), shape=tuple(int(extent) for extent in shape), dtype=str(kind.dtype)
    )


def _has_images(module: tvm.ir.IRModule) -> bool:
    found = False

    def visit(expression: Any) -> None:
        nonlocal found
        if isinstance(expression, tvm.ir.Call):
            found = found or getattr(expression.op, "name", "") in _IMAGE_OPERATORS

    relax.analysis.post_order_visit(module["main"], visit)
    return found


def _reference(
    program: torch.export.ExportedProgram,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
) -> bytes | None:
    """Return the program as an ONNX model, if PyTorch can write one that computes the same."""
    import onnxruntime
    import torch

    generator = torch.Generator().manual_seed(0)
    examples = tuple(
        torch.randn(spec.shape, generator=generator).to(getattr(torch, spec.dtype))
        if spec.dtype.startswith(("float", "bfloat"))
        else torch.zeros(spec.shape, dtype=getattr(torch, spec.dtype))
        for spec in inputs
    )
    buffer = io.BytesIO()
    try:
        with _quiet(), torch.no_grad():
            module = program.module()
            expected = module(*examples)
            # The exporter calls these; what torch.export made knows one mode only and refuses.
            module.train = module.eval = lambda *_: module
            # The older exporter: the newer one needs another package, onnxscript.
            torch.onnx.export(
                module,
                examples,
                buffer,
                dynamo=False,
                input_names=[spec.name for spec in inputs],
                output_names=[spec.name for spec in outputs],
            )
            session = onnxruntime.InferenceSession(
                buffer.getvalue(), providers=["CPUExecutionProvider"]
            )
            feeds = {s.name: e.numpy() for s, e in zip(inputs, examples, strict=True)}
            results = session.run(None, feeds)
    except Exception:  # a reference is welcome, not needed: evaluation has others
        return None
    wanted = [expected] if isinstance(expected, torch.Tensor) else list(expected)
    for got, tensor in zip(results, wanted, strict=True):
        value = tensor.numpy()
        scale = np.abs(value).max(initial=0)
        if got.shape != value.shape or np.abs(got - value).max(initial=0) > 1e-4 * scale + 1e-6:
            return None
    return buffer.getvalue()
