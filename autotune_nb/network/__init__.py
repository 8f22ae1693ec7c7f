"""Networks: from the zoo, from ONNX, from PyTorch. Nothing heavy is imported before a call."""

from __future__ import annotations

import sys
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune_nb.network.zoo import NetworkInfo, list_networks, network

if TYPE_CHECKING:
    import onnx
    import torch

    from autotune_nb.network.network import Network

__all__ = ["NetworkInfo", "from_onnx", "from_torch", "list_networks", "network"]


def from_onnx(
    model: str | Path | onnx.ModelProto,
    *,
    shapes: Mapping[str, Sequence[int] | int] | None = None,
    layout: str | None = None,
    dtype: str | None = None,
) -> Network:
    """Import an ONNX model.

    Parameters
    ----------
    model
        Path of a model, whose external data lies beside it, or a model in memory.
    shapes
        Shape of each input that has unknown, symbolic or zero dimensions, by name. A symbol may be
        given instead: ``{"N": 2}``.
    layout
        ``NHWC`` or ``NCHW``: how images lie inside the network; by default as in the model.
    dtype
        ``float16`` to compute in mixed precision inside; by default as in the model.

    Returns
    -------
    Network
        Its inputs and outputs are those of the model; its reference is the model, with its shapes
        bound and otherwise as it was.

    Raises
    ------
    NetworkError
        The model cannot be read or imported, or a shape is missing or wrong. The message names the
        model, what is wrong and what to do.
    """
    from autotune_nb.network import onnx as frontend

    return frontend.from_onnx(model, shapes=shapes, layout=layout, dtype=dtype)


def from_torch(
    module: torch.nn.Module | torch.export.ExportedProgram,
    example_inputs: Any = None,
    *,
    name: str | None = None,
    layout: str | None = None,
    dtype: str | None = None,
) -> Network:
    """Import a PyTorch module, in evaluation mode.

    Parameters
    ----------
    module
        A module, or what torch.export made of one.
    example_inputs
        A tensor or a tuple of tensors, of the shapes to tune for. Not needed for an
        ExportedProgram.
    name
        What to call the network; by default the module's class.
    layout
        ``NHWC`` or ``NCHW``: how images lie inside the network; by default as in PyTorch, NCHW.
    dtype
        ``float16`` to compute in mixed precision inside; by default as in the module.

    Returns
    -------
    Network
        Its inputs and outputs have the names that torch.export gave them. Its reference is an ONNX
        export of the module where PyTorch can make one, else None.

    Raises
    ------
    EnvironmentProblem
        PyTorch is not installed.
    NetworkError
        The module cannot be exported or imported, or has dynamic shapes.
    """
    from autotune_nb.network import torch as frontend

    return frontend.from_torch(module, example_inputs, name=name, layout=layout, dtype=dtype)


class _CallablePackage(types.ModuleType):
    """This package, which also is the public function `autotune_nb.network`.

    Importing a submodule binds its name in the package that holds it. So once anything has imported
    this package, `autotune_nb.network` is the package: it has to answer the call. And importing
    `autotune_nb.network.network` must not hide the function of that name.
    """

    def __call__(self, name: str, **options: Any) -> Network:
        """Make a network of the zoo: see `network`."""
        return network(name, **options)

    def __setattr__(self, name: str, value: object) -> None:
        if not (name == "network" and isinstance(value, types.ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _CallablePackage
