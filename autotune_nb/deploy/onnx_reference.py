"""ONNX Runtime on a network's reference model, as a reference and as a baseline."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort

from autotune_nb.network import store

Array = np.ndarray[Any, Any]
_OPSET_OF_PLAIN_SOFTMAX = 13


class OnnxContestant:
    """ONNX Runtime on the CPU; see `autotune_nb.deploy.contestant.Contestant`.

    As a reference it stops before a last sigmoid or softmax, which is then computed in double
    precision: ONNX Runtime's own are off by about 1e-7, whatever their size, so that the small
    outputs of a network that finds nothing in random inputs could not be compared.

    Parameters
    ----------
    folder
        Where the network is stored.
    threads
        How many threads to use.
    """

    def __init__(self, folder: str, threads: int) -> None:
        network = store.load(folder)
        if network.reference is None:
            raise RuntimeError("the network has no ONNX model to run")
        self.names = [spec.name for spec in network.inputs]
        self.outputs = [spec.shape for spec in network.outputs]
        self.session = _session(network.reference, threads)
        exact, self._last = without_last_activation(network.reference)
        self._exact = self.session if exact is None else _session(exact, threads)
        self._feeds: dict[str, Array] = {}

    def run(self, inputs: Sequence[Array]) -> list[Array]:
        """Return the outputs for these inputs, and keep the inputs for `seconds_per_run`."""
        wanted = {value.name: tuple(value.shape) for value in self.session.get_inputs()}
        # The names of inputs survive an import unless they are no identifiers.
        if set(self.names) == set(wanted):
            pairs = list(zip(self.names, inputs, strict=True))
        else:
            pairs = list(zip(wanted, inputs, strict=True))
        self._feeds = {name: fit_layout(array, wanted[name]) for name, array in pairs}
        results = self._exact.run(None, self._feeds)
        return [
            fit_layout(last(np.asarray(result)), shape)
            for result, last, shape in zip(results, self._last, self.outputs, strict=True)
        ]

    def seconds_per_run(self, min_repeat_ms: int) -> float:
        """Return the mean time of a run of the whole model."""
        self.session.run(None, self._feeds)
        count, spent = 0, 0.0
        start = time.perf_counter()
        while spent * 1e3 < min_repeat_ms:
            self.session.run(None, self._feeds)
            count += 1
            spent = time.perf_counter() - start
        return spent / count


def without_last_activation(
    data: bytes,
) -> tuple[bytes | None, list[Callable[[Array], Array]]]:
    """Cut off the sigmoids and softmaxes that a model ends with.

    Parameters
    ----------
    data
        An ONNX model.

    Returns
    -------
    model, functions
        The model without them, or None if it has none; and for each output what takes its place.
    """
    model = onnx.load_model_from_string(data)
    opset = next((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), 0)
    producers = {name: node for node in model.graph.node for name in node.output}
    functions: list[Callable[[Array], Array]] = []
    cut = False
    for output in model.graph.output:
        node = producers.get(output.name)
        function = None if node is None else _activation(node, opset)
        if function is None or output.type.tensor_type.elem_type != onnx.TensorProto.FLOAT:
            functions.append(lambda array: array)
            continue
        assert node is not None
        functions.append(function)
        output.name = node.input[0]
        cut = True
    return (model.SerializeToString() if cut else None), functions


def _activation(node: Any, opset: int) -> Callable[[Array], Array] | None:
    if node.op_type == "Sigmoid":
        return lambda array: 1 / (1 + np.exp(-array.astype(np.float64)))
    if node.op_type == "Softmax" and opset >= _OPSET_OF_PLAIN_SOFTMAX:
        axis = next((int(a.i) for a in node.attribute if a.name == "axis"), -1)

        def softmax(array: Array) -> Array:
            shifted = array.astype(np.float64) - array.max(axis=axis, keepdims=True)
            return np.asarray(np.exp(shifted) / np.exp(shifted).sum(axis=axis, keepdims=True))

        return softmax
    return None


def _session(data: bytes, threads: int) -> Any:
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    return ort.InferenceSession(data, options, providers=["CPUExecutionProvider"])


def fit_layout(array: Array, shape: Sequence[Any]) -> Array:
    """Return an array in the layout in which it has `shape`: as it is, or between NHWC and NCHW."""
    fixed = tuple(extent if isinstance(extent, int) else None for extent in shape)

    def fits(found: tuple[int, ...]) -> bool:
        return len(found) == len(fixed) and all(
            want in (None, have) for have, want in zip(found, fixed, strict=True)
        )

    if fits(array.shape):
        return array
    if array.ndim > 2:
        for turned in (np.moveaxis(array, -1, 1), np.moveaxis(array, 1, -1)):
            if fits(turned.shape):
                return np.ascontiguousarray(turned)
    raise ValueError(f"an array of shape {array.shape} does not fit {tuple(shape)}")
