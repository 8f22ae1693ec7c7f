"""Compiles a network with the best schedules that a run has found so far."""

from __future__ import annotations

import dataclasses
import json
import platform
from collections import Counter
from collections.abc import Mapping
from typing import Any, Literal

import tvm
from tvm import relax

import autotune_nb
from autotune_nb.deploy.history import History
from autotune_nb.deploy.library import Coverage, Library, Signature, Tuned
from autotune_nb.errors import CompileError, RunError
from autotune_nb.network import store, winograd
from autotune_nb.network.lowering import lower
from autotune_nb.network.network import Network
from autotune_nb.run import choices
from autotune_nb.run.directory import RunDirectory
from autotune_nb.run.records import State
from autotune_nb.tuning import fallback
from autotune_nb.tuning.extract import first_uses

Schedules = Literal["best", "untuned"]


def compile_run(run: RunDirectory, *, cuda_graph: bool = True) -> Library:
    """Compile the network of a run, at any moment, also while it is being tuned.

    See `compile_network` for `cuda_graph`.

    Raises
    ------
    RunError
        If the run's network is not the one its tasks were extracted from, or was imported without
        one.
    CompileError
        If the network cannot be compiled.
    """
    manifest = run.manifest
    network = store.load(run.network)
    if network.fingerprint() != manifest.network_fingerprint:
        raise RunError(
            f"{run.network}: holds another network than the one this run tunes; restore it from a "
            "copy, or tune anew in another directory"
        )
    target = tvm.target.Target(manifest.target)
    state = run.poll()
    return compile_network(
        network,
        target,
        History.read(run.path, spare={t.info.id for t in state.tasks if t.uses is not None}),
        device=manifest.device,
        cuda_graph=cuda_graph,
        formulations=_chosen(state, target),
    )


def compile_network(
    network: Network,
    target: tvm.target.Target,
    history: History | None = None,
    *,
    device: str = "cpu",
    schedules: Schedules = "best",
    cuda_graph: bool = True,
    formulations: Mapping[str, str] | None = None,
) -> Library:
    """Compile a network.

    Parameters
    ----------
    network
        What to compile.
    target
        What for; complete, as `autotune_nb.tuning.target.resolve` returns it.
    history
        Tuning records to use. Functions without one get a fallback schedule; with no history at
        all, every function does.
    device
        The device to run on.
    schedules
        ``best`` for records and fallbacks; ``untuned`` for what TVM makes of the network by
        itself: naive loops on a CPU, DLight's schedules on a GPU.
    cuda_graph
        Whether a network on CUDA is launched as one graph where it can be.
    formulations
        As `autotune_nb.network.lowering.lower` takes them. None for those that are best without
        tuning, unless there is a history or nothing is to be scheduled.

    Returns
    -------
    Library
        Its coverage says which function runs which schedule.

    Raises
    ------
    CompileError
        If the network cannot be compiled even with the simplest schedules.
    """
    lowered = lower(network, target, formulations)
    if formulations is None and history is None and schedules == "best":
        lowered = winograd.rewritten(lowered, winograd.untuned(lowered, target))
    plan = _Plan(lowered, target, history, schedules)
    executable = plan.build(cuda_graph)
    signature = Signature(
        name=network.name,
        network_fingerprint=network.fingerprint(),
        target=json.loads(str(target)),
        inputs=network.inputs,
        outputs=network.outputs,
        versions={
            "python": platform.python_version(),
            "tvm": tvm.__version__,
            "autotune_nb": autotune_nb.__version__,
        },
    )
    return Library(executable, signature, plan.coverage(), device=device)


def _chosen(state: State, target: tvm.target.Target) -> dict[str, str]:
    """Return the fastest formulations, or what is best without tuning where none has a result."""
    found = choices.chosen(state)
    for choice in state.choices:
        tasks = {task for formulation in choice.formulations for task in formulation.tasks}
        if all(state.tasks[task].best_latency_s is None for task in tasks):
            found[choice.name] = winograd.untuned_one([f.name for f in choice.formulations], target)
    return found


@dataclasses.dataclass(slots=True, kw_only=True)
class _Choice:
    """What was chosen for one function; `record` is None for a fallback."""

    function: Any
    rule: str = ""
    record: Tuned | None = None
    skipped_rules: int = 0
    skipped_records: frozenset[str] = frozenset()


class _Plan:
    """A schedule for each function of a lowered module, revised where one does not build."""

    def __init__(
        self,
        lowered: tvm.ir.IRModule,
        target: tvm.target.Target,
        history: History | None,
        schedules: Schedules,
    ) -> None:
        self.lowered = lowered
        self.target = target
        self.history = history
        self.untuned = schedules == "untuned" and str(target.kind) == "llvm"
        self.problems: list[str] = []
        self.calls, self.library = _calls(lowered)
        self.choices: dict[str, _Choice] = {}
        for name in first_uses(lowered):
            self.choices[name] = self._choose(name, _Choice(function=lowered[name]))

    def _choose(self, name: str, before: _Choice) -> _Choice:
        original = self.lowered[name]
        if self.untuned:
            return _Choice(function=original, rule="as is")
        if self.history is not None:
            found = self.history.apply(name, original, self.target, skip=before.skipped_records)
            if found is not None:
                record = Tuned(
                    name=name,
                    task=found.task,
                    record=found.digest,
                    latency_s=found.latency_s,
                    calls=self.calls[name],
                )
                return dataclasses.replace(before, function=found.function, record=record, rule="")
        made = fallback.schedule(original, self.target, skip=before.skipped_rules)
        return dataclasses.replace(before, function=made.function, rule=made.rule, record=None)

    def build(self, cuda_graph: bool) -> Any:
        """Build the module; where a function's schedule does not build, choose another."""
        while True:
            try:
                return self._build(cuda_graph)
            except Exception as error:  # any of TVM's or LLVM's
                if not self._revise():
                    reason = (str(error).strip().splitlines() or [type(error).__name__])[-1]
                    raise CompileError(
                        f"the network cannot be compiled for {self.target.kind} ({reason}); "
                        "'autotune-nb doctor' tells whether the environment is at fault"
                    ) from error

    def _build(self, cuda_graph: bool) -> Any:
        module = self.lowered.clone()
        for name, choice in self.choices.items():
            module.update_func(module.get_global_var(name), choice.function)
        graph = cuda_graph and str(self.target.kind) == "cuda"
        config = {"relax.backend.use_cuda_graph": True} if graph else {}
        pipeline = tvm.transform.Sequential(_finish(graph))
        with tvm.transform.PassContext(opt_level=3, config=config):
            return relax.build(module, target=self.target, relax_pipeline=pipeline)

    def _revise(self) -> bool:
        """Choose another schedule for each function that does not build by itself."""
        changed = False
        for name, choice in self.choices.items():
            try:
                function = choice.function.with_attr("global_symbol", "main")
                tvm.compile(tvm.IRModule({"main": function}), target=self.target)
            except Exception as error:  # any of TVM's or LLVM's
                reason = (str(error).strip().splitlines() or [type(error).__name__])[-1]
                if choice.record is not None:
                    what = f"record {choice.record.record}"
                    skip = dataclasses.replace(
                        choice, skipped_records=choice.skipped_records | {choice.record.record}
                    )
                elif choice.skipped_rules < fallback.rules_for(self.target) and not self.untuned:
                    what = f"fallback {choice.rule}"
                    skip = dataclasses.replace(choice, skipped_rules=choice.skipped_rules + 1)
                else:
                    continue
                self.problems.append(f"{name}: {what} does not build ({reason})")
                self.choices[name] = self._choose(name, skip)
                changed = True
        return changed

    def coverage(self) -> Coverage:
        """Return which function runs what."""
        problems = list(self.problems)
        if self.history is not None:
            problems += [*self.history.problems, *self.history.unused()]
        return Coverage(
            tuned=tuple(c.record for c in self.choices.values() if c.record is not None),
            fallback=tuple(
                (name, choice.rule)
                for name, choice in self.choices.items()
                if choice.record is None
            ),
            library=self.library,
            problems=tuple(problems),
        )


def _calls(module: tvm.ir.IRModule) -> tuple[Mapping[str, int], tuple[str, ...]]:
    """Return how often each TensorIR function is called, and which library functions are."""
    calls: Counter[str] = Counter()
    library: dict[str, None] = {}

    def visit(expr: Any) -> None:
        if not isinstance(expr, tvm.ir.Call):
            return
        name = getattr(expr.op, "name", "")
        if name == "relax.call_tir":
            calls[expr.args[0].name_hint] += 1
        elif name == "relax.call_dps_packed":
            library[str(expr.args[0].global_symbol)] = None

    for function in module.functions.values():
        if isinstance(function, relax.Function):
            relax.analysis.post_order_visit(function, visit)
    return calls, tuple(library)


def _finish(cuda_graph: bool) -> list[Any]:
    """Return the passes from scheduled functions to what the virtual machine runs."""
    transform = relax.transform
    return [
        transform.ToNonDataflow(),
        transform.RemovePurityChecking(),
        transform.CallTIRRewrite(),
        transform.StaticPlanBlockMemory(),
        *([transform.RewriteCUDAGraph()] if cuda_graph else []),
        transform.LowerAllocTensor(),
        transform.KillAfterLastUse(),
        transform.LowerRuntimeBuiltin(),
        transform.ComputePrimValue(),
        transform.VMShapeLower(),
        transform.AttachGlobalSymbol(),
    ]
