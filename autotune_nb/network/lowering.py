"""Lowers a network to the TensorIR functions that are tuned and compiled: one way for both.

A tuning record is found again only if the function that is compiled equals the function that was
tuned, so extraction and compilation must not differ in a single pass. Variants of the lowering
(layouts or precisions) belong into `stages`, as stages of their own; other formulations replace
whole functions of the lowered module, in `autotune_nb.network.winograd`.
"""

from __future__ import annotations

from collections.abc import Mapping

import tvm
from tvm import relax

from autotune_nb.network import folding, winograd
from autotune_nb.network.network import Network


def lower(
    network: Network,
    target: tvm.target.Target,
    formulations: Mapping[str, str] | None = None,
) -> tvm.ir.IRModule:
    """Lower a network for a target.

    Parameters
    ----------
    network
        What to lower; its weights are bound as constants.
    target
        What to lower for; a few operators have forms of their own on some targets.
    formulations
        Formulations other than the direct one, as `autotune_nb.network.winograd.offers` names
        them, by the name that the direct lowering gives the function.

    Returns
    -------
    tvm.ir.IRModule
        ``main`` takes the network's inputs and calls TensorIR functions, one for each group of
        fused operators, none of them scheduled. Equal networks and targets give equal modules.
    """
    module = network.bound_module()
    with target, tvm.transform.PassContext(opt_level=3):
        for stage in stages():
            module = stage(module)
    return winograd.rewritten(module, formulations) if formulations else module


def stages() -> tuple[tvm.transform.Pass, ...]:
    """Return the passes of `lower`, in order."""
    transform = relax.transform
    return (
        transform.DecomposeOpsForInference(),
        transform.CanonicalizeBindings(),
        # In NumPy first: TVM folds by compiling a function for each operator and shape, seconds
        # for a common network.
        folding.FoldInNumpy(),
        transform.CanonicalizeBindings(),
        transform.DeadCodeElimination(),
        # What TVM's own pipelines dispatch on every target; asked for CUDA's, TVM 0.27 fails.
        relax.backend.DispatchSampling(),
        relax.backend.DispatchSortScan(),
        transform.LegalizeOps(),
        transform.AnnotateTIROpPattern(),
        transform.FoldConstant(),
        transform.FuseOps(),
        transform.FuseTIR(),
        # A reshape becomes a view; what is left of it needs no tuning.
        transform.RewriteDataflowReshape(),
        transform.DeadCodeElimination(),
    )
