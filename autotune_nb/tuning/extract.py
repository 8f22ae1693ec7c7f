"""Extracts the tasks of a network: the TensorIR functions to tune, and how often each occurs."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections import Counter
from functools import cache
from typing import Any

import tvm
import tvm_ffi
from tvm import relax
from tvm.s_tir import meta_schedule as ms

from autotune_nb.errors import NetworkError
from autotune_nb.network import winograd
from autotune_nb.network.lowering import lower
from autotune_nb.network.network import Network
from autotune_nb.run.records import Choice, Formulation, TaskInfo


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Extraction:
    """The tasks of a network on a target.

    Attributes
    ----------
    tasks
        In order of their first use in the network; ids count from 0. Those of formulations other
        than the direct ones come after all others.
    workloads
        The line of each task in TVM's workload file, as JSON values.
    listings
        The TensorIR of each task, as TVMScript.
    modules
        The TensorIR of each task, as a module with the one function ``main``.
    choices
        The functions that have several formulations.
    """

    tasks: tuple[TaskInfo, ...]
    workloads: list[Any]
    listings: list[str]
    modules: tuple[tvm.ir.IRModule, ...]
    choices: tuple[Choice, ...] = ()


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
    tasks = _Tasks()
    for task in found:
        tasks.add(str(task.task_name), int(task.weight), task.dispatched[0])
    choices = _choices(module, tasks)
    return Extraction(
        tasks=tuple(tasks.infos),
        workloads=tasks.workloads,
        listings=[task.script() for task in tasks.modules],
        modules=tuple(tasks.modules),
        choices=choices,
    )


class _Tasks:
    """Tasks as they are found, each workload once."""

    def __init__(self) -> None:
        self.infos: list[TaskInfo] = []
        self.workloads: list[Any] = []
        self.modules: list[tvm.ir.IRModule] = []

    def add(self, name: str, weight: int, module: tvm.ir.IRModule) -> int:
        """Add a task and return its id."""
        number = len(self.infos)
        workload = ms.database.Workload(module).as_json()
        self.infos.append(_describe(number, name, weight, module, workload))
        self.workloads.append(workload)
        self.modules.append(module)
        return number

    def find(self, module: tvm.ir.IRModule) -> int | None:
        """Return the id of the task with this workload."""
        found = (i for i, m in enumerate(self.modules) if tvm_ffi.structural_equal(m, module))
        return next(found, None)

    def use(self, name: str, weight: int, function: Any) -> int:
        """Return the id of a function's task, which the network calls `weight` more times."""
        module = normalized(function)
        number = self.find(module)
        if number is None:
            taken = {task.name for task in self.infos}
            names = itertools.chain([name], (f"{name}{i}" for i in itertools.count(1)))
            return self.add(next(n for n in names if n not in taken), weight, module)
        info = self.infos[number]
        self.infos[number] = dataclasses.replace(info, weight=info.weight + weight)
        return number


def _choices(module: tvm.ir.IRModule, tasks: _Tasks) -> tuple[Choice, ...]:
    """Return the choices of a lowered module, and add the tasks of their formulations."""
    calls = called(module)
    offers = winograd.offers(module)
    direct: dict[int, tuple[str, int]] = {}
    for name in offers:
        # The same function twice, under two names, is one task.
        task = tasks.find(normalized(module[name]))
        if task is not None:
            first, weight = direct.get(task, (name, 0))
            direct[task] = (first, weight + calls[name])
    choices = []
    for task, (name, weight) in direct.items():
        formulations = [Formulation(name=winograd.DIRECT, tasks=(task,))]
        for formulation in offers[name]:
            made = winograd.formulated(module[name], formulation)
            parts = zip(
                winograd.names(name, formulation),
                (made.input, made.products, made.output),
                strict=True,
            )
            used = tuple(tasks.use(label, weight, function) for label, function in parts)
            formulations.append(Formulation(name=formulation, tasks=used))
        choices.append(Choice(name=name, weight=weight, formulations=tuple(formulations)))
    return tuple(choices)


def normalized(function: Any) -> tvm.ir.IRModule:
    """Return a function in the form in which workloads are stored and compared."""
    return ms.tune_context._normalize_mod(function)


def called(module: tvm.ir.IRModule) -> Counter[str]:
    """Return how often each TensorIR function of a lowered module is called."""
    calls: Counter[str] = Counter()

    def visit(expr: Any) -> None:
        if isinstance(expr, tvm.ir.Call) and getattr(expr.op, "name", "") == "relax.call_tir":
            calls[expr.args[0].name_hint] += 1

    for function in module.functions.values():
        if isinstance(function, relax.Function):
            relax.analysis.post_order_visit(function, visit)
    return calls


def first_uses(module: tvm.ir.IRModule) -> dict[str, int]:
    """Return the TensorIR functions that a lowered module calls, and when each is first called."""
    return {name: number for number, name in enumerate(called(module))}


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
    known |= winograd.OPERATORS
    words = "|".join(re.escape(word) for word in sorted(known, key=lambda w: (-len(w), w)))
    return re.compile(rf"(?:tir_|te_|topi_)?(?P<name>{words})\d*(?:_|$)")
