"""Schedules for functions that have no tuning record: by operator kind on CPUs, DLight on GPUs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import tvm
from tvm.s_tir import Schedule

from autotune_nb.deploy import cpu_rules
from autotune_nb.deploy.blocks import Machine


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Fallback:
    """A scheduled function.

    Attributes
    ----------
    function
        The TensorIR function, scheduled or (if `rule` is ``as is``) not.
    rule
        Which rule made it.
    """

    function: Any
    rule: str


_CPU_RULES: tuple[tuple[str, Callable[[Schedule, Machine], None]], ...] = (
    ("tiled", cpu_rules.tiled),
    ("parallel", cpu_rules.parallel),
)


def schedule(function: Any, target: tvm.target.Target, *, skip: int = 0) -> Fallback:
    """Schedule a TensorIR function without a tuning record.

    Parameters
    ----------
    function
        A ``PrimFunc`` as `autotune_nb.network.lowering.lower` leaves it.
    target
        What it will run on.
    skip
        How many of the rules to leave out, the best first: for a function whose schedule turned
        out not to build.

    Returns
    -------
    Fallback
        By the best rule that applies; the function as it was if none does. Never raises.
    """
    if str(target.kind) != "llvm":
        return _gpu(function, target)
    machine = Machine.of(target)
    for name, rule in _CPU_RULES[skip:]:
        try:
            scheduled = Schedule(tvm.IRModule({"main": function}), debug_mask="none")
            rule(scheduled, machine)
            result = scheduled.mod["main"]
        except Exception:  # noqa: S112  a rule that does not apply may fail in any way TVM has
            continue
        return Fallback(function=_finished(function, result), rule=name)
    return Fallback(function=function, rule="as is")


def rules_for(target: tvm.target.Target) -> int:
    """Return how many rules there are for a target: `schedule` with that `skip` changes nothing."""
    return len(_CPU_RULES) if str(target.kind) == "llvm" else 1


def _gpu(function: Any, target: tvm.target.Target) -> Fallback:
    from tvm.s_tir import dlight

    rules = dlight.ApplyDefaultSchedule(
        dlight.gpu.Matmul(),
        dlight.gpu.GEMV(),
        dlight.gpu.Reduction(),
        dlight.gpu.GeneralReduction(),
        dlight.gpu.Fallback(),
    )
    try:
        with target:
            result = rules(tvm.IRModule({"main": function}))["main"]
    except Exception:  # DLight raises several kinds
        return Fallback(function=function, rule="as is")
    return Fallback(function=_finished(function, result), rule="dlight")


def _finished(original: Any, scheduled: Any) -> Any:
    """Return `scheduled` with the attributes of `original`, marked as needing nothing more."""
    attributes = dict(original.attrs.items()) if original.attrs is not None else {}
    return scheduled.with_attrs({**attributes, "tirx.is_scheduled": True})
