"""Refuses resizes that TVM would compute differently. Knows no TVM."""

from __future__ import annotations

import onnx
from onnx import numpy_helper

from autotune_nb.errors import NetworkError
from autotune_nb.network import onnx_model

# Of an extent: what rounding a scale to float32 can bring.
_ROUNDING = 1e-5
_WAY = "coordinate_transformation_mode"


def refuse_inexact(model: onnx.ModelProto, name: str) -> None:
    """Refuse resizes by a scale that leads to no whole number of pixels.

    ONNX then cuts the extent off and goes on computing positions with the scale; TVM computes them
    with the ratio of the extents, which is another one.

    Parameters
    ----------
    model
        With static input shapes, its constants folded.
    name
        Of the model, in messages.

    Raises
    ------
    NetworkError
        There is such a resize; the message names it and what to do.
    """
    nodes = [node for node in model.graph.node if node.op_type == "Resize" and len(node.input) == 3]
    if not nodes:
        return
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    shapes = _shapes(model)
    for node in nodes:
        shape, scales = shapes.get(node.input[0]), constants.get(node.input[2])
        corners = any(a.name == _WAY and a.s == b"align_corners" for a in node.attribute)
        if corners or shape is None or scales is None:
            continue
        factors = [float(factor) for factor in numpy_helper.to_array(scales)]
        for extent, factor in zip(shape, factors, strict=False):
            wanted = extent * factor
            if abs(wanted - round(wanted)) > _ROUNDING * max(1.0, wanted):
                raise NetworkError(
                    f"{name}: Resize of {node.input[0]} scales {extent} pixels by {factor:.6g}, "
                    "which is no whole number of pixels, and TVM would compute it differently; "
                    "bind inputs of which it makes one, or export the model with sizes instead of "
                    "scales"
                )


def _shapes(model: onnx.ModelProto) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the values that ONNX can tell."""
    light, _ = onnx_model.without_weights(model)
    inferred = onnx.shape_inference.infer_shapes(light)
    found = {}
    for value in (*inferred.graph.value_info, *inferred.graph.input):
        dims = value.type.tensor_type.shape.dim
        if dims and all(dim.HasField("dim_value") for dim in dims):
            found[value.name] = tuple(int(dim.dim_value) for dim in dims)
    return found
