"""Builds the Network of a plan: weights, folding, Relax module and ONNX reference."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autotune_nb.network.network import Network
from autotune_nb.network.zoo import to_onnx, to_relax
from autotune_nb.network.zoo.plan import Plan
from autotune_nb.network.zoo.weights import draw, fold_batch_norms


def build(
    name: str, plan: Plan, *, layout: str, dtype: str, seed: int, source: Mapping[str, Any]
) -> Network:
    """Return the network that a plan describes.

    Parameters
    ----------
    name
        Of the network.
    plan
        Its layers.
    layout
        ``NHWC``, ``NCHW``, or ``""`` where there are no images.
    dtype
        Of inputs, weights and outputs.
    seed
        Of the weights.
    source
        Kept in the network.
    """
    weights = draw(plan, seed)
    layers, folded = fold_batch_norms(plan, weights)
    last = layout == "NHWC"
    module, params, inputs, outputs = to_relax.emit(
        plan, layers, folded, channels_last=last, dtype=dtype
    )
    return Network(
        name=name,
        module=module,
        params=params,
        inputs=inputs,
        outputs=outputs,
        layout=layout,
        source=source,
        parameter_count=plan.parameter_count,
        reference=to_onnx.export(plan, weights, inputs, outputs, channels_last=last),
    )
