"""Upstream's tuning of some of a network's tasks, in a process that can be killed.

    python benchmarks/upstream_tuning.py SETTINGS.json PROGRESS.jsonl

The benchmark of trials per second starts it. Each batch adds a line to the progress file, so that
a run that is cut off still tells how far it came. With ``timeout_s`` set the time-outs of builder
and runner are raised, and what their workers spend on importing, building, exporting, linking and
measuring is written down by functions passed in where upstream takes some; without it, upstream
runs as it is.
"""

from __future__ import annotations

import collections
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any


def timed_build(mod: Any, target: Any, params: Any) -> Any:
    """Upstream's build function; its first call in a process pays for the import."""
    import os
    import time

    start = time.perf_counter()
    import tvm.s_tir.tensor_intrin  # noqa: F401  as the function itself does
    from tvm.s_tir.meta_schedule.builder.local_builder import default_build

    imported = time.perf_counter()
    try:
        return default_build(mod, target, params)
    finally:
        with open(os.environ["UPSTREAM_COSTS"], "a") as file:  # noqa: PTH123
            file.write(f"import {imported - start}\nbuild {time.perf_counter() - imported}\n")


def timed_export(module: Any) -> str:
    """Upstream's export: packs object files; the runner links them."""
    import os
    import time

    from tvm.s_tir.meta_schedule.builder.local_builder import default_export

    start = time.perf_counter()
    path: str = default_export(module)
    with open(os.environ["UPSTREAM_COSTS"], "a") as file:  # noqa: PTH123
        file.write(f"export {time.perf_counter() - start}\n")
    return path


def timed_evaluator(module: Any, device: Any, config: Any, arguments: Any) -> list[float]:
    """Upstream's measurement."""
    import os
    import time

    from tvm.s_tir.meta_schedule.runner.local_runner import default_run_evaluator

    start = time.perf_counter()
    costs: list[float] = default_run_evaluator(module, device, config, arguments)
    with open(os.environ["UPSTREAM_COSTS"], "a") as file:  # noqa: PTH123
        file.write(f"measure {time.perf_counter() - start}\n")
    return costs


def main(settings_path: str, progress_path: str) -> None:
    settings = json.loads(Path(settings_path).read_text())
    os.environ["UPSTREAM_COSTS"] = costs = progress_path + ".costs"
    Path(costs).touch()

    import autotune_nb as at
    from autotune_nb.network.lowering import lower
    from autotune_nb.tuning import extract
    from autotune_nb.tuning import target as targets

    network = at.network(settings["network"], layout=settings["layout"], dtype=settings["dtype"])
    target = targets.resolve(settings["target"])
    module = lower(network, target)

    from tvm.ir.utils import derived_object
    from tvm.s_tir import meta_schedule as ms

    order = extract.first_uses(module)
    tasks = sorted(
        ms.relax_integration.extract_tasks(module, target), key=lambda t: order[t.task_name]
    )
    if settings["tasks"] is not None:
        tasks = [tasks[i] for i in settings["tasks"]]
    config = ms.runner.EvaluatorConfig(
        number=1, repeat=settings["repeats"], min_repeat_ms=settings["min_repeat_ms"]
    )

    progress = Path(progress_path).open("a")  # noqa: SIM115  until the process ends
    start = time.perf_counter()
    report(progress, what="start")

    @derived_object
    class Progress(ms.measure_callback.PyMeasureCallback):  # type: ignore[misc]
        def apply(
            self, _scheduler: Any, task: int, candidates: Any, builds: Any, runs: Any
        ) -> None:
            failures: collections.Counter[str] = collections.Counter()
            for build, run in zip(builds, runs, strict=True):
                if build.error_msg is not None:
                    failures["build: " + shorten(build.error_msg)] += 1
                elif run.error_msg is not None:
                    failures["measure: " + shorten(run.error_msg)] += 1
            current = ms.Profiler.current()
            report(
                progress,
                what="batch",
                at_s=time.perf_counter() - start,
                task=tasks[task].task_name,
                trials=len(candidates),
                failures=dict(failures),
                profile=seconds(current.get() if current else {}),
                costs=totals(costs),
            )

    with ms.Profiler() as profiler, tempfile.TemporaryDirectory() as work_dir:
        contexts, weights = ms.relax_integration.extracted_tasks_to_tune_contexts(
            tasks, work_dir, seed=settings["seed"]
        )
        timeout_s = settings["timeout_s"]
        if timeout_s is None:
            builder: Any = "local"
            runner = ms.runner.LocalRunner(evaluator_config=config)
        else:
            builder = ms.builder.LocalBuilder(
                max_workers=contexts[0].num_threads,
                timeout_sec=timeout_s,
                f_build=timed_build,
                f_export=timed_export,
            )
            runner = ms.runner.LocalRunner(
                timeout_sec=timeout_s, evaluator_config=config, f_run_evaluator=timed_evaluator
            )
        report(progress, what="ready", at_s=time.perf_counter() - start)
        ms.tune_tasks(
            tasks=contexts,
            task_weights=weights,
            work_dir=work_dir,
            max_trials_global=settings["trials"],
            num_trials_per_iter=settings["batch_size"],
            builder=builder,
            runner=runner,
            measure_callbacks=[*ms.measure_callback.MeasureCallback.create("default"), Progress()],
        )
    report(
        progress,
        what="end",
        at_s=time.perf_counter() - start,
        profile=seconds(profiler.get()),
        costs=totals(costs),
        threads=int(contexts[0].num_threads),
    )


def report(file: Any, **values: Any) -> None:
    file.write(json.dumps(values) + "\n")
    file.flush()


def shorten(message: str) -> str:
    lines = [line for line in str(message).splitlines() if line.strip()]
    return (lines[0] if len(lines) < 2 else f"{lines[0]} {lines[-1]}")[:120]


def seconds(profile: Any) -> dict[str, float]:
    return {str(name): float(value) for name, value in profile.items()}


def totals(path: str) -> dict[str, float]:
    found: dict[str, float] = collections.defaultdict(float)
    for line in Path(path).read_text().splitlines():
        name, _, value = line.partition(" ")
        found[name] += float(value)
    return dict(found)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
