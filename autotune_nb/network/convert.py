"""Converts imported networks: weights as arguments, another layout inside, another precision."""

from __future__ import annotations

import dataclasses
from typing import Any

import tvm
from tvm import relax

from autotune_nb.errors import NetworkError
from autotune_nb.network import folding, rewrites
from autotune_nb.network.constants import Array, detach_constants
from autotune_nb.network.network import Network

_LAYOUTS = {"NHWC": ["NHWC", "HWIO"], "NCHW": ["NCHW", "OIHW"]}
# TVM cannot compile transposed convolutions in any other layout, but would convert them too.
_FIXED = {"relax.nn.conv2d_transpose": ["NCHW", "IOHW"]}
_DTYPES = ("float32", "float16")


def tidy(module: tvm.ir.IRModule) -> tuple[tvm.ir.IRModule, dict[str, Array]]:
    """Simplify, fold what depends on constants only, then make the constants arguments.

    Returns
    -------
    module, params
        The new module, and the values of the new arguments by name, in their order.
    """
    transform = relax.transform
    passes = [
        transform.CanonicalizeBindings(),
        rewrites.UnstackReductions(),
        folding.FoldInNumpy(),
        transform.CanonicalizeBindings(),
        transform.DeadCodeElimination(),
    ]
    return detach_constants(tvm.transform.Sequential(passes)(module))


def check_options(layout: str | None, dtype: str | None) -> None:
    """Refuse a layout or dtype that no network can have.

    Raises
    ------
    NetworkError
        The message lists those that exist.
    """
    if layout is not None and layout not in _LAYOUTS:
        raise NetworkError(f"layout must be {' or '.join(_LAYOUTS)}, not {layout!r}")
    if dtype is not None and dtype not in _DTYPES:
        raise NetworkError(f"dtype must be {' or '.join(_DTYPES)}, not {dtype!r}")


def convert(network: Network, *, layout: str | None = None, dtype: str | None = None) -> Network:
    """Return the network with another layout or precision inside.

    Its inputs and outputs stay as they are, and so does its reference.

    Parameters
    ----------
    network
        An imported network.
    layout
        ``NHWC`` or ``NCHW``: of two-dimensional convolutions and what lies between them.
    dtype
        ``float16`` to compute products in float16 and sum them in float32, where that is safe.

    Raises
    ------
    NetworkError
        The network has no images, is float16 already, or cannot be converted.
    """
    check_options(layout, dtype)
    passes: list[Any] = []
    new_layout = network.layout
    if layout is not None and layout != network.layout:
        if not network.layout:
            raise NetworkError(f"{network.name}: has no images, so leave layout out")
        wanted = {"relax.nn.conv2d": _LAYOUTS[layout], **_FIXED}
        passes.append(relax.transform.ConvertLayout(wanted))
        new_layout = layout
    halves = {str(value.dtype) for value in network.params.values()} & {"float16"}
    if dtype == "float32" and halves:
        raise NetworkError(f"{network.name}: has float16 weights; import a float32 model instead")
    if dtype == "float16" and not halves:
        passes += [rewrites.ClipByConstants(), relax.transform.ToMixedPrecision("float32")]
    # What was asked for is remembered, also where it is what the network has already: a layout that
    # nobody asked for is chosen by measuring.
    asked = {"layout": layout, "dtype": dtype}
    source = {**network.source, **{k: v for k, v in asked.items() if v is not None}}
    if not passes:
        return dataclasses.replace(network, source=source)
    try:
        module = tvm.transform.Sequential(passes)(network.bound_module())
        module, params = tidy(module)
    except Exception as error:
        raise NetworkError(
            f"{network.name}: TVM cannot convert it to {layout or dtype} "
            f"({str(error).strip().splitlines()[-1][:200]}); leave that out"
        ) from error
    return dataclasses.replace(
        network,
        module=module,
        params=params,
        layout=new_layout,
        source=source,
    )
