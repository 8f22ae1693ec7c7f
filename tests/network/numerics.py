"""Runs a network in plain TVM and its reference in ONNX Runtime, for comparison."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import tvm
from tvm import relax

from autotune_nb.network.network import Network, TensorSpec


def random_inputs(specs: tuple[TensorSpec, ...], seed: int = 0, limit: int = 8) -> list[Any]:
    """Return one array for each spec: normal floats, or integers below `limit`."""
    rng = np.random.default_rng(seed)
    arrays = []
    for spec in specs:
        if spec.dtype.startswith("float"):
            arrays.append(rng.standard_normal(spec.shape).astype(spec.dtype))
        else:
            arrays.append(rng.integers(0, limit, spec.shape).astype(spec.dtype))
    return arrays


def run_tvm(net: Network, inputs: list[Any]) -> list[Any]:
    """Build a network untuned for this CPU and run it."""
    target = tvm.target.Target("llvm")
    library = tvm.relax.build(net.module, target)
    machine = relax.VirtualMachine(library, tvm.cpu())
    arguments = [tvm.runtime.tensor(a) for a in [*inputs, *net.params.values()]]
    result = machine["main"](*arguments)
    results = [result] if hasattr(result, "numpy") else list(result)
    return [r.numpy() for r in results]


def run_reference(net: Network, inputs: list[Any]) -> list[Any]:
    """Run a network's ONNX reference."""
    assert net.reference is not None
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 2
    session = onnxruntime.InferenceSession(
        net.reference, options, providers=["CPUExecutionProvider"]
    )
    names = [spec.name for spec in net.inputs]
    return list(session.run(None, dict(zip(names, inputs, strict=True))))


def relative_error(got: list[Any], expected: list[Any]) -> float:
    """Return the largest difference over the largest expected magnitude, of the worst output."""
    assert [g.shape for g in got] == [e.shape for e in expected]
    assert [g.dtype for g in got] == [e.dtype for e in expected]
    worst = 0.0
    for g, e in zip(got, expected, strict=True):
        assert np.isfinite(e.astype("float64")).all()
        difference = np.abs(g.astype("float64") - e.astype("float64")).max(initial=0)
        worst = max(
            worst, float(difference / max(np.abs(e.astype("float64")).max(initial=0), 1e-9))
        )
    return worst
