"""Rewrites a bound ONNX model into one that TVM imports well, with ONNX Runtime. Knows no TVM.

ONNX Runtime's basic optimisations fold constants (shape computations included, since all shapes are
bound) and batch norms, and keep to standard operators. It takes milliseconds where TVM's own
folding compiles a function for each operator. The result is compared with the original on random
inputs before it is used.
"""

from __future__ import annotations

import contextlib
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, inliner, version_converter

from autotune_nb.errors import NetworkError
from autotune_nb.network import onnx_model
from autotune_nb.network.onnx_model import first_line

# TVM reads operators of older versions as if they were newer; several changed their meaning.
OPSET = 18
_ACTIVATIONS = {"Softmax", "LogSoftmax", "Sigmoid", "HardSigmoid", "Tanh"}
_RESHAPING = {"Identity", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose"}

Arrays = dict[str, np.ndarray[Any, Any]]
Results = list[np.ndarray[Any, Any]]


def simplify(model: onnx.ModelProto, name: str) -> tuple[onnx.ModelProto, Results | None]:
    """Return a model that computes the same in fewer and simpler operators.

    Parameters
    ----------
    model
        Checked, and with static input shapes.
    name
        Of the model, in messages.

    Returns
    -------
    model, results
        The new model, and what the original returned for random inputs; None if it refused them.

    Raises
    ------
    NetworkError
        ONNX Runtime cannot load the model; the message says why.
    """
    outputs = len(model.graph.output)
    model.graph.output.extend(_logits(model))
    # Weights can be large: nothing below serialises or copies them more often than it must.
    data = _serialised(model, name)
    session = _session(data, name)
    inputs = random_inputs(session)
    expected = _first_run(session, inputs, name)
    del session
    simple = None
    if onnx_model.opset(model) < OPSET and (converted := _converted(model)) is not None:
        simple = _optimised(_serialised(converted, name), inputs, expected)
    if simple is None:
        simple = _optimised(data, inputs, expected)
    del model.graph.output[outputs:]
    if simple is None:
        simple = model
    else:
        del simple.graph.output[outputs:]
    return simple, None if expected is None else expected[:outputs]


def _logits(model: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    """Return what goes into the final activations of a model, as further outputs.

    A softmax or sigmoid hides differences, or makes much of small ones.
    """
    made = {output: node for node in model.graph.node for output in node.output}
    found = {}
    for output in model.graph.output:
        node = made.get(output.name)
        while node is not None and node.op_type in _RESHAPING:
            node = made.get(node.input[0])
        if node is not None and node.op_type in _ACTIVATIONS and node.input[0] in made:
            found[node.input[0]] = helper.make_empty_tensor_value_info(node.input[0])
    for output in model.graph.output:
        found.pop(output.name, None)
    return list(found.values())


def _serialised(model: onnx.ModelProto, name: str) -> bytes:
    try:
        return bytes(model.SerializeToString())
    except Exception as error:
        raise NetworkError(
            f"{name}: too large for one ONNX message, which ends at 2 GiB ({first_line(error)})"
        ) from error


def expand(model: onnx.ModelProto, kinds: set[str]) -> onnx.ModelProto:
    """Replace operators that ONNX defines by simpler ones, where it does, by those."""
    try:
        return inliner.inline_selected_functions(
            model, [("", kind) for kind in sorted(kinds)], inline_schema_functions=True
        )
    except Exception:  # an older onnx, or no definition for this version: leave the model alone
        return model


def check_opset(model: onnx.ModelProto, name: str) -> None:
    """Refuse a version of ONNX's operators that does not exist, or not yet for us."""
    version, newest = onnx_model.opset(model), newest_opset()
    if not 1 <= version <= newest:
        raise NetworkError(
            f"{name}: uses opset {version}, and the newest one supported is {newest}; "
            f"export it with opset_version={min(newest, OPSET)}"
        )


@cache
def newest_opset() -> int:
    """Return the newest opset that the installed onnx and ONNX Runtime both know."""
    for version in range(onnx.defs.onnx_opset_version(), OPSET, -1):
        value = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])
        result = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1])
        node = helper.make_node("Identity", ["x"], ["y"])
        graph = helper.make_graph([node], "probe", [value], [result])
        model = helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", version)], ir_version=8
        )
        # ONNX Runtime has no other way of telling which versions are too new for it.
        with contextlib.suppress(Exception):
            onnxruntime.InferenceSession(
                model.SerializeToString(), _options(), providers=["CPUExecutionProvider"]
            )
            return version
    return OPSET


# -- ONNX Runtime -----------------------------------------------------------------------------


def _options() -> Any:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.use_deterministic_compute = True
    return options


def _session(data: bytes, name: str) -> Any:
    try:
        return onnxruntime.InferenceSession(data, _options(), providers=["CPUExecutionProvider"])
    except Exception as error:
        raise NetworkError(f"{name}: ONNX Runtime refuses it ({first_line(error)})") from error


def _optimised(data: bytes, inputs: Arrays, expected: list[Any] | None) -> onnx.ModelProto | None:
    """Return the model that ONNX Runtime makes of a model, unless it computes something else."""
    options = _options()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "optimised.onnx"
        options.optimized_model_filepath = str(path)
        try:
            session = onnxruntime.InferenceSession(
                data, options, providers=["CPUExecutionProvider"]
            )
        except Exception:  # a conversion that is no valid model is no conversion
            return None
        if expected is not None:
            got = _run(session, inputs)
            if got is None or not all(map(_close, got, expected)):
                return None
        return onnx.load(path)


def _converted(model: onnx.ModelProto) -> onnx.ModelProto | None:
    """Return the model with operators of the version we want, if there is a way."""
    light, weights = onnx_model.without_weights(model)
    try:
        light = version_converter.convert_version(light, OPSET)
    except Exception:  # not every operator has a way up; the version it has is tried then
        return None
    onnx_model.restore_weights(light, weights)
    return light


def random_inputs(session: Any, seed: int = 0) -> Arrays:
    """Return random inputs for a session: normal floats, small integers, coin tosses."""
    rng = np.random.default_rng(seed)
    values = {}
    for spec in session.get_inputs():
        kind = spec.type.removeprefix("tensor(").removesuffix(")")
        if kind in ("float", "float16", "double", "bfloat16"):
            dtype = {"float": "float32", "double": "float64"}.get(kind, kind)
            values[spec.name] = rng.standard_normal(spec.shape).astype(dtype)
        else:
            values[spec.name] = rng.integers(0, 2, spec.shape).astype(kind)
    return values


def _first_run(session: Any, inputs: Arrays, name: str) -> list[Any] | None:
    """Run the original model; None if that needs integers that only its author knows."""
    integers = [key for key, value in inputs.items() if value.dtype.kind in "iu"]
    try:
        return list(session.run(None, inputs, _quietly()))
    except Exception as error:
        if not integers:
            raise NetworkError(
                f"{name}: ONNX Runtime cannot run it ({first_line(error)})"
            ) from error
    # The least likely indices to be out of range, lengths to be too long.
    inputs.update({key: np.zeros_like(inputs[key]) for key in integers})
    return _run(session, inputs)


def _run(session: Any, inputs: Arrays) -> list[Any] | None:
    try:
        return list(session.run(None, inputs, _quietly()))
    except Exception:  # the caller then has nothing to compare with, or a reason not to trust it
        return None


def _quietly() -> Any:
    options = onnxruntime.RunOptions()
    options.log_severity_level = 4
    return options


def _close(got: Any, expected: Any) -> bool:
    got, expected = np.asarray(got), np.asarray(expected)
    if got.shape != expected.shape or got.dtype != expected.dtype:
        return False
    if got.dtype.kind not in "fV":
        return bool(np.mean(got != expected) < 0.01) if got.size else True
    tolerance = 1e-2 if expected.dtype.itemsize < 4 else 1e-4
    got, expected = got.astype("float64"), expected.astype("float64")
    finite = np.isfinite(expected)
    if not (finite == np.isfinite(got)).all():
        return False
    scale = np.abs(expected[finite]).max(initial=0.0)
    # ONNX Runtime's sigmoid and softmax are good to about 1e-7, however small their values.
    worst = np.abs(got - expected)[finite].max(initial=0.0)
    return bool(worst <= tolerance * scale + 1e-6)
