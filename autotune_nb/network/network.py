"""Network: a Relax module, its weights and what goes in and comes out."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import tvm
from tvm import relax


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TensorSpec:
    """Name, shape and dtype of one input or output of a network."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype}[{', '.join(map(str, self.shape))}]"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Network:
    """A network ready to be tuned.

    Attributes
    ----------
    name
        What the user calls it, for example ``resnet-18``.
    module
        Relax module whose function ``main`` takes the inputs, then one argument per weight, in
        the order of `inputs` and then `params`. All shapes are static.
    params
        The weights by argument name.
    inputs, outputs
        Specs of what ``main`` takes before its weights, and of what it returns.
    layout
        ``NHWC``, ``NCHW``, or ``""`` where the network has no images.
    source
        How the network was made, in a form that lets a person make it again (JSON values only).
    parameter_count
        Number of trainable scalars of the original network (before batch norms are folded).
    reference
        The ONNX model (serialised) the network was imported from, or None. Evaluation runs it in
        ONNX Runtime as the reference.
    """

    name: str
    module: tvm.ir.IRModule
    params: Mapping[str, np.ndarray[Any, Any]]
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    layout: str = ""
    source: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    parameter_count: int = 0
    reference: bytes | None = None

    def __repr__(self) -> str:
        """Return what a person wants to see of it; the module alone would fill pages."""
        inputs = ", ".join(map(str, self.inputs))
        outputs = ", ".join(map(str, self.outputs))
        layout = f", {self.layout}" if self.layout else ""
        return (
            f"<Network {self.name!r}{layout}: {inputs} -> {outputs}; "
            f"{self.parameter_count:,} parameters>"
        )

    def bound_module(self) -> tvm.ir.IRModule:
        """Return the module with its weights bound as constants: ``main`` takes only `inputs`."""
        if not self.params:
            return self.module
        return relax.transform.BindParams("main", dict(self.params))(self.module)

    def fingerprint(self) -> str:
        """Return a hex digest of structure and weights: equal networks have equal fingerprints."""
        digest = hashlib.blake2b(digest_size=16)
        digest.update(tvm.ir.save_json(self.module).encode())
        for name, value in sorted(self.params.items()):
            digest.update(json.dumps([name, str(value.dtype), list(value.shape)]).encode())
            # As bytes, since bfloat16 has no buffer of its own type.
            digest.update(np.ascontiguousarray(value).reshape(-1).view(np.uint8).data)
        return digest.hexdigest()
