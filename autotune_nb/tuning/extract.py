"""Extracts the tasks of a network: the TensorIR functions to tune, and how often each occurs."""

from __future__ import annotations

import dataclasses
import re
from functools import cache
from typing import Any

import tvm
from tvm import relax
from tvm.s_tir import meta_schedule as ms

from autotune_nb.errors import NetworkError
from autotune_nb.network.lowering import lower
from autotune_nb.network.network import Network
from autotune_nb.run.records import TaskInfo


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Extraction:
    """The tasks of a network on a target.

    Attributes
    ----------
    tasks
        In order of their first use in the network; ids count from 0.
    workloads
        The line of each task in TVM's workload file, as JSON values.
    listings
        The TensorIR of each task, as TVMScript.
    modules
        The TensorIR of each task, as a module with the one function ``main``.
    """

    tasks: tuple[TaskInfo, ...]
    workloads: list[Any]
    listings: list[str]
    modules: tuple[tvm.ir.IRModule, ...]


def extract(network: Network, target: tvm.target.Target) -> Extraction:
    """Extract the tasks of a network.

    Parameters
    ----------
    network
        Lowered as compilation will lower it.
    target
        A complete target, as `autotune_nb.tuning.target.resolve` returns it.

    Raises
    ------
    NetworkError
        If the network computes nothing that could be tuned.
    """
    module = lower(network, target)
    order = first_uses(module)
    found = ms.relax_integration.extract_tasks(module, target)
    # TVM returns them in the order of a hash table; each is named after its first use.
    found = sorted(found, key=lambda task: order[task.task_name])
    if not found:
        raise NetworkError(
            f"{network.name}: has no operator to tune (it only moves or returns its inputs); "
            "check that this is the network you meant"
        )
    tasks, workloads, modules = [], [], []
    for number, task in enumerate(found):
        workload = ms.database.Workload(task.dispatched[0]).as_json()
        tasks.append(
            _describe(number, str(task.task_name), int(task.weight), task.dispatched[0], workload)
        )
        workloads.append(workload)
        modules.append(task.dispatched[0])
    return Extraction(
        tasks=tuple(tasks),
        workloads=workloads,
        listings=[module.script() for module in modules],
        modules=tuple(modules),
    )


def first_uses(module: tvm.ir.IRModule) -> dict[str, int]:
    """Return the TensorIR functions that a lowered module calls, and when each is first called."""
    uses: dict[str, int] = {}

    def visit(expr: Any) -> None:
        if isinstance(expr, tvm.ir.Call) and getattr(expr.op, "name", "") == "relax.call_tir":
            uses.setdefault(expr.args[0].name_hint, len(uses))

    for function in module.functions.values():
        if isinstance(function, relax.Function):
            relax.analysis.post_order_visit(function, visit)
    return uses


def _describe(
    number: int, name: str, weight: int, module: tvm.ir.IRModule, workload: Any
) -> TaskInfo:
    buffers = [parameter.ty for parameter in module["main"].params]
    flops = estimate_flops(module)
    return TaskInfo(
        id=number,
        name=name,
        weight=weight,
        flops=flops,
        workload_hash=str(workload[0]),
        operators=operators(name),
        shapes=tuple(f"{b.dtype}[{', '.join(map(_extent, b.shape))}]" for b in buffers),
        trivial=flops == 0 and not has_reduction(module),
    )


def _extent(value: Any) -> str:
    return str(int(value)) if isinstance(value, int | tvm.tirx.IntImm) else str(value)


def estimate_flops(module: tvm.ir.IRModule) -> float:
    """Return TVM's estimate of a module's floating-point operations; 0 where it cannot tell."""
    try:
        return float(tvm.s_tir.analysis.estimate_tir_flops(module))
    except Exception:  # TVM raises several kinds for what it does not know, symbolic loops say
        return 0.0


def has_reduction(module: tvm.ir.IRModule) -> bool:
    """Tell whether the function ``main`` of a module reduces over any axis."""
    schedule = tvm.s_tir.Schedule(module, debug_mask="none")
    return any(
        axis.iter_type == axis.CommReduce
        for block in schedule.get_child_blocks(schedule.get_sblock("root"))
        for axis in schedule.get(block).iter_vars
    )


def operators(name: str) -> tuple[str, ...]:
    """Return the operators of a fused function by its name, which joins theirs by ``_``.

    >>> operators("fused_conv2d_transpose1_add50_tir_sigmoid")
    ('conv2d_transpose', 'add', 'sigmoid')
    """
    rest = name.removeprefix("fused_")
    result = []
    while rest:
        match = _operator_pattern().match(rest)
        if match is None:  # not an operator of Relax: up to the next _ then
            word, _, rest = rest.partition("_")
            word = word.rstrip("0123456789") or word
        else:
            word, rest = match["name"], rest[match.end() :]
        if word:
            result.append(word)
    return tuple(result)


@cache
def _operator_pattern() -> re.Pattern[str]:
    names = {str(name) for name in tvm.ir.Op.list_op_names()}
    known = {name.rpartition(".")[2] for name in names if name.startswith("relax.")}
    # The longest first: conv2d_transpose is no conv2d.
    words = "|".join(re.escape(word) for word in sorted(known, key=lambda w: (-len(w), w)))
    return re.compile(rf"(?:tir_|te_|topi_)?(?P<name>{words})\d*(?:_|$)")
