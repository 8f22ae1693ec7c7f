"""TuningSession: a run directory in the user's hands, from its creation to its report."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune_nb.errors import BudgetError, InputError, RunError
from autotune_nb.run import requests as rq
from autotune_nb.run.directory import RunDirectory, require_free
from autotune_nb.run.lock import Holder
from autotune_nb.run.manifest import Manifest, Options
from autotune_nb.run.records import Budget
from autotune_nb.run.state import State

if TYPE_CHECKING:
    import pandas as pd

    from autotune_nb.deploy.evaluate import Evaluation
    from autotune_nb.deploy.library import Library
    from autotune_nb.network.network import Network
    from autotune_nb.run.measure import Measure
    from autotune_nb.view.schedule import Schedules
    from autotune_nb.view.snapshot import Snapshot
    from autotune_nb.view.widgets import View


class TuningSession:
    """A run, to look at and to steer; made by `create` or `open`.

    All it knows is in the run directory; any number may be open on one run, in any process.

    Parameters
    ----------
    path
        A run directory.

    Raises
    ------
    RunError
        If it is none.
    """

    def __init__(self, path: str | Path) -> None:
        self.directory = RunDirectory(path)

    @classmethod
    def create(
        cls,
        path: str | Path,
        network: Network,
        target: str | Mapping[str, Any] = "llvm",
        *,
        seed_from: Sequence[str | Path] = (),
        measure: Measure | None = None,
        **options: Any,
    ) -> TuningSession:
        """Extract a network's tasks and make a run directory for them; nothing is tuned yet.

        Parameters
        ----------
        path
            The run directory to make; it must not hold anything yet.
        network
            What to tune; an imported one in the layout that is faster, unless one was asked for.
        target
            ``llvm`` for this CPU, ``cuda`` or ``cuda:1`` for GPUs, or a TVM configuration.
        seed_from
            Runs, or directories of runs, whose records of equal workloads the search starts from.
        measure
            Where to measure: `at.measure.rpc` or `at.measure.local`; None for the target's device.
        **options
            Fields of `autotune_nb.run.manifest.Options`, such as ``batch_size`` or ``seed``.

        Raises
        ------
        RunError
            If `path` is taken or cannot be written.
        InputError
            If the target or an option does not exist, or nothing in the network can be tuned.
        """
        from autotune_nb.deploy.layout import settle
        from autotune_nb.tuning.create import create

        checked = Options.checked(**options)
        require_free(path)
        network = network if measure and measure.remote else settle(network, target)
        create(path, network, target, checked, seed_from, measure=measure)
        return cls(path)

    @classmethod
    def open(cls, path: str | Path) -> TuningSession:
        """Open a run, whether it is being tuned at this moment or not."""
        return cls(path)

    def __repr__(self) -> str:
        state = self.state
        total = state.estimated_total_latency_s
        shown = "no result yet" if total is None else f"estimated total {total * 1e3:.4g} ms"
        shown += " (partial)" if total is not None and state.partial else ""
        return (
            f"<TuningSession {str(self.directory.path)!r}: {self.manifest.name}, "
            f"{len(state.tasks)} tasks, {state.trials} trials, {shown}>"
        )

    @property
    def path(self) -> Path:
        """The run directory."""
        return self.directory.path

    @property
    def manifest(self) -> Manifest:
        """What is tuned, for what, and how."""
        return self.directory.manifest

    @property
    def state(self) -> State:
        """The newest state of the run, as a frozen snapshot."""
        return self.directory.poll()

    @property
    def holder(self) -> Holder:
        """The tuner process, if one lives, and its last sign of life."""
        return self.directory.holder()

    @property
    def running(self) -> bool:
        """True while a tuner process holds the run (it may be paused)."""
        return self.holder.alive

    @property
    def tasks(self) -> pd.DataFrame:
        """The extracted tasks: name, weight, FLOPs, operators and shapes of each."""
        from autotune_nb.view import tables

        return tables.info_table(self.manifest.tasks)

    def task_table(self) -> pd.DataFrame:
        """Return the tasks with what tuning has reached: latency, speed, trials, share, state."""
        from autotune_nb.view import tables

        return tables.task_table(self.state)

    def trial_table(self) -> pd.DataFrame:
        """Return every trial of the run: latency or error, cost, schedule record."""
        from autotune_nb.view import source, tables

        return tables.trial_table(source.events_of(self.directory), self.manifest.tasks)

    def schedule(self, task: int) -> Schedules:
        """Return a task's best schedules so far, their decisions and how they differ."""
        from autotune_nb.view.schedule import schedule

        return schedule(self.directory, task)

    def listing(self, task: int) -> str:
        """Return the TensorIR of a task before any schedule, as readable TVMScript.

        Raises
        ------
        InputError
            If there is no such task.
        """
        count = len(self.manifest.tasks)
        if not 0 <= task < count:
            raise InputError(f"task {task} does not exist; ids go from 0 to {count - 1}")
        return (self.directory.network / "tasks" / f"{task}.py").read_text()

    def tune(self, trials: int | None = None, seconds: float | None = None) -> TuningSession:
        """Start tuning in a process of its own and return at once; follow it with `wait`.

        Parameters
        ----------
        trials, seconds
            The run's budget in all, with what earlier sessions spent; None for no limit, and both
            None for the budget it has. A tuner that is at work already gets the new budget.

        Raises
        ------
        BudgetError
            If the budget is not positive or already spent, or if there is none at all.
        EnvironmentProblem
            If this environment cannot tune.
        RunError, TuningFailed
            If the tuner cannot be started.
        """
        from autotune_nb import doctor
        from autotune_nb.run import follow
        from autotune_nb.tuning import launch

        state = self.state
        budget = self._next_budget(trials, seconds, state)
        if self.running:
            self._ask("budget", trials=budget.trials, seconds=budget.seconds)
            if self.state.phase == "paused":
                self._ask("resume")
            return self
        target = json.dumps(self.manifest.target)
        remote = self.manifest.measure.get("kind") == "rpc"
        doctor.require(doctor.check(target, quick=True, directory=self.path, remote=remote))
        request = self._ask("budget", trials=budget.trials, seconds=budget.seconds)
        launch.start(self.path)
        follow.until_done(self.directory, request.id)
        return self

    def pause(self) -> None:
        """Pause the tuning; the measurement under way is let end. Raises RunError if idle."""
        if not self.running:
            raise RunError(f"{self.path}: is not being tuned, there is nothing to pause")
        self._ask("pause")

    def resume(self) -> None:
        """Go on after `pause`, or start a tuner again with the budget the run has."""
        if self.running:
            self._ask("resume")
        else:
            self.tune()

    def stop(self, timeout_s: float = 30.0) -> None:
        """End the tuning and wait until the tuner is gone; what was measured is kept.

        Raises
        ------
        TuningFailed
            If it is still there after `timeout_s` seconds.
        """
        from autotune_nb.run import follow

        if self.running:
            self._ask("stop")
            follow.until_idle(self.directory, timeout_s)

    def set_budget(self, trials: int | None = None, seconds: float | None = None) -> None:
        """Change the run's budget, now if a tuner is at work, else for the next one."""
        if trials is None and seconds is None:
            raise BudgetError("no budget given; pass trials=, seconds= or both")
        budget = self._next_budget(trials, seconds, self.state)
        self._ask("budget", trials=budget.trials, seconds=budget.seconds)

    def focus(self, tasks: Sequence[int] | None) -> None:
        """Spend trials only on these tasks from now on; None for all of them."""
        count = len(self.manifest.tasks)
        for task in tasks or ():
            if not 0 <= task < count:
                raise InputError(f"task {task} does not exist; ids go from 0 to {count - 1}")
        if tasks is not None and not tasks:
            raise InputError("an empty focus leaves nothing to tune; pass None for all tasks")
        self._ask("focus", tasks=None if tasks is None else tuple(tasks))

    def wait(
        self,
        timeout_s: float | None = None,
        on_change: Callable[[State, Holder], None] | None = None,
    ) -> State:
        """Wait until the tuner has stopped; return the last state.

        Parameters
        ----------
        timeout_s
            Return after this many seconds even if it goes on.
        on_change
            Called with the state and the tuner's process about four times a second. By default a
            text table is printed now and then, unless this is a notebook, where `view` shows more.

        Raises
        ------
        TuningFailed
            If the tuner failed, or died without a word.
        """
        from autotune_nb.run import follow
        from autotune_nb.view import console

        show = on_change or (None if console.in_notebook() else console.progress_printer())
        return follow.until_stopped(self.directory, timeout_s, show)

    def network(self) -> Network:
        """Return the network that the run tunes, from the run directory."""
        from autotune_nb.network import store

        return store.load(self.directory.network)

    def compile(self) -> Library:
        """Compile the network with its best schedules; `Library.coverage` tells which it has."""
        from autotune_nb.deploy.compile import compile_run

        return compile_run(self.directory)

    def evaluate(
        self, library: Library | None = None, baselines: Sequence[str] = ("untuned", "onnxruntime")
    ) -> Evaluation:
        """Check the compiled network and then measure it beside baselines.

        Parameters
        ----------
        library
            What `compile` returned; compiled anew if None.
        baselines
            Any of ``untuned``, ``fallback`` and ``onnxruntime``.
        """
        from autotune_nb.deploy.evaluate import evaluate_run
        from autotune_nb.run import evaluations

        result = evaluate_run(self.directory, library or self.compile(), baselines)
        evaluations.store(self.directory, result.to_json())
        return result

    def view(self) -> View:
        """Return live widgets of the run for a notebook: tables, curve, controls."""
        from autotune_nb.view.widgets import View

        return View(self.directory, start=self.tune)

    def snapshot(self) -> Snapshot:
        """Return the last state as static HTML and text: for where no live widget can be."""
        from autotune_nb.view.snapshot import Snapshot

        return Snapshot.take(self)

    @staticmethod
    def replay(run: str | Path, speed: float = 20.0) -> View:
        """Return a view in which a recorded run happens again, `speed` times as fast."""
        from autotune_nb.view.replay import replay

        return replay(run, speed)

    def report(self, path: str | Path) -> Path:
        """Write a report to pass on: ``.html`` (opens offline), ``.md`` or ``.csv`` by suffix."""
        from autotune_nb.view.report import write_report

        return write_report(self, path)

    def _next_budget(self, trials: int | None, seconds: float | None, state: State) -> Budget:
        budget = Budget.checked(trials, seconds)
        if budget == Budget():
            budget = state.budget
        if budget == Budget():
            raise BudgetError("the run has no budget yet; pass trials=, seconds= or both")
        if budget.reached(state.trials, state.used_s):
            raise BudgetError(
                f"{self.path}: a budget of {budget} is spent already ({state.trials} trials, "
                f"{state.used_s:.0f} s); budgets count from the start of the run, pass a larger one"
            )
        return budget

    def _ask(self, wish: str, **details: Any) -> rq.Request:
        if self.manifest.read_only:
            raise RunError(f"{self.path}: was {self.manifest.origin} and is read-only")
        return rq.append(self.directory.requests, wish, **details)
