"""Schedules for functions that have no tuning record: by operator kind on CPUs, DLight on GPUs."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any

import tvm
import tvm_ffi
from tvm.s_tir import Schedule

from autotune_nb.network.winograd_functions import INPUT, OUTPUT
from autotune_nb.tuning import cpu_rules
from autotune_nb.tuning.blocks import Block, Machine
from autotune_nb.tuning.cpu_rules import Variation


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

_THREADS = 128  # of a block on a GPU

_VARIATIONS = tuple(
    Variation(tile=tile, flip=flip)
    for tile, flip in itertools.product(range(3), (False, True))
    if tile or flip
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
    found = _cpu(tvm.IRModule({"main": function}), target, skip)
    if found is None:
        return Fallback(function=function, rule="as is")
    name, scheduled = found
    return Fallback(function=_finished(function, scheduled.mod["main"]), rule=name)


def candidates(module: tvm.ir.IRModule, target: tvm.target.Target) -> list[Schedule]:
    """Return a task's fallback, and variations of it, as schedules to measure like any other.

    Measured before a search's own, they see to it that no tuned network is slower than one with
    no trial at all, and a search goes on from them: the sizes of their tiles are decisions that
    it can change.

    Parameters
    ----------
    module
        A task's module, with the one function ``main``.
    target
        What it will run on.

    Returns
    -------
    list of tvm.s_tir.Schedule
        The fallback first; all different. Empty where there is no rule, and on GPUs.
    """
    if str(target.kind) != "llvm":
        return []
    found = _cpu(module, target, 0)
    if found is None:
        return []
    name, first = found
    schedules = [first]
    if name == "tiled":
        machine = Machine.of(target)
        for variation in _VARIATIONS:
            varied = Schedule(module, debug_mask="none")
            cpu_rules.tiled(varied, machine, variation)
            if not any(tvm_ffi.structural_equal(varied.mod, other.mod) for other in schedules):
                schedules.append(varied)
    return schedules


def is_enough(module: tvm.ir.IRModule, target: tvm.target.Target) -> bool:
    """Tell whether nothing faster is to be found than `candidates`, so that none is searched for.

    So it is for the transforms of Winograd's algorithm on CPUs: a tile at a time for as many
    channels as fill a vector leaves nothing to decide.
    """
    if str(target.kind) != "llvm":
        return False
    schedule = Schedule(module, debug_mask="none")
    blocks = schedule.get_child_blocks(schedule.get_sblock("root"))
    return [schedule.get(block).name_hint for block in blocks] in ([INPUT], [OUTPUT])


def _cpu(
    module: tvm.ir.IRModule, target: tvm.target.Target, skip: int
) -> tuple[str, Schedule] | None:
    """Return the first rule that applies, and the schedule it made."""
    machine = Machine.of(target)
    for name, rule in _CPU_RULES[skip:]:
        scheduled = Schedule(module, debug_mask="none")
        try:
            rule(scheduled, machine)
        except Exception:  # noqa: S112  a rule that does not apply may fail in any way TVM has
            continue
        return name, scheduled
    return None


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

    def dlighted() -> Any:
        with target:
            return rules(tvm.IRModule({"main": function}))["main"]

    for name, rule in (("dlight", dlighted), ("threads", lambda: _in_threads(function))):
        try:
            return Fallback(function=_finished(function, rule()), rule=name)
        except Exception:  # noqa: S112  DLight raises several kinds
            continue
    return Fallback(function=function, rule="as is")


def _in_threads(function: Any) -> Any:
    """Run each element of each block in a thread of its own; raises where blocks reduce."""
    schedule = Schedule(tvm.IRModule({"main": function}), debug_mask="none")
    for block in schedule.get_child_blocks(schedule.get_sblock("root")):
        if Block.of(schedule, block).is_reduction:
            raise ValueError("a reduction needs another rule")
        outer, inner = schedule.split(schedule.fuse(*schedule.get_loops(block)), [None, _THREADS])
        schedule.bind(outer, "blockIdx.x")
        schedule.bind(inner, "threadIdx.x")
    return schedule.mod["main"]


def _finished(original: Any, scheduled: Any) -> Any:
    """Return `scheduled` with the attributes of `original`, marked as needing nothing more."""
    attributes = dict(original.attrs.items()) if original.attrs is not None else {}
    return scheduled.with_attrs({**attributes, "tirx.is_scheduled": True})
