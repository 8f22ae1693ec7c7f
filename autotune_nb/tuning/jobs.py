"""Jobs of the build and measure workers: compile one candidate, time one compiled candidate.

On CPU targets a candidate is timed in the process that built it, through LLVM's JIT: nothing is
exported, linked or loaded, which was half the cost of a build, and a crash still takes only that
worker. On other targets the build is exported to a shared library for the process that owns the
device.
"""

from __future__ import annotations

import functools
import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tvm
from tvm.driver import build as tvm_build
from tvm.s_tir.transform import RemoveWeightLayoutRewriteBlock
from tvm.support import cc

from autotune_nb.tuning import cold, cross, nvrtc
from autotune_nb.tuning.messages import MeasureOptions

FILL = "tvm.contrib.random.random_fill_for_measure"
_held: dict[str, tuple[Any, Any]] = {}


def build(key: str, module: str, target: str, directory: str | None) -> None:
    """Compile one candidate.

    Parameters
    ----------
    key
        Its name until it is measured or dropped.
    module
        The scheduled module, as ``tvm.ir.save_json`` gives it.
    target
        TVM's target configuration as JSON.
    directory
        Where to export it, or None to keep it in this process, ready to run.
    """
    mod = RemoveWeightLayoutRewriteBlock(skip_tensor_rewrite=True)(tvm.ir.load_json(module))
    built = tvm_build(mod, target=_target(target))
    if directory is None:
        _held[key] = (built, built["main"])  # looking it up is what emits machine code
    else:
        built.export_library(str(library(directory, key)), **_linking(target))


def measure(
    key: str, args_info: str, device: str, directory: str | None, options: MeasureOptions
) -> list[float]:
    """Time one candidate that was built, and forget it.

    Parameters
    ----------
    key, directory
        As in `build`.
    args_info
        JSON of TVM's argument descriptions: ``["TENSOR", dtype, shape]`` each.
    device
        For example ``cpu``, ``cuda:0``, or a set of cores such as ``cpu:0-3``, to which this
        process is bound.
    options
        How it is timed.

    Returns
    -------
    list of float
        Seconds a run, one for each repeat; a single one if it was given up as far too slow.
    """
    kind, _, text = device.partition(":")
    index = 0 if kind == "cpu" else int(text or 0)
    dev = tvm.runtime.device(kind, index)
    if directory is None:
        module, _ = _held.pop(key)
    else:
        path = library(directory, key)
        module = tvm.runtime.load_module(str(path))
        path.unlink(missing_ok=True)
    # how cold weights are on a GPU has not been measured
    between_bytes = options.between_bytes if kind == "cpu" else 0
    copies = _arguments(args_info, kind, index, between_bytes)
    if options.cool_down_ms:
        time.sleep(options.cool_down_ms / 1e3)
    dev.sync()
    if len(copies) > 1:
        return _time(cold.Turns(module["main"], copies).seconds, options)
    return time_candidate(module, dev, list(copies[0]), options)


@functools.lru_cache(maxsize=2)
def _arguments(
    args_info: str, kind: str, index: int, between_bytes: int
) -> tuple[cold.Arguments, ...]:
    """Return filled tensors and copies of them; all candidates of a task take the same."""
    dev = tvm.runtime.device(kind, index)
    fill = tvm.get_global_func(FILL)
    tensors = []
    for _, dtype, shape in json.loads(args_info):
        tensor = tvm.runtime.empty(tuple(shape), dtype=dtype, device=dev)
        fill(tensor)
        tensors.append(tensor)
    return cold.copies_of(tensors, between_bytes)


@functools.cache
def _target(config: str) -> Any:
    target = tvm.target.Target(json.loads(config))
    if str(target.kind) == "cuda":
        nvrtc.install(target)
    return target


@functools.cache
def _linking(config: str) -> dict[str, Any]:
    """Return how libraries of a target are linked, as arguments of TVM's ``export_library``."""
    command = cross.compiler(json.loads(config))
    return {"fcompile": cc.cross_compiler(command)} if command else {}


def time_candidate(
    module: Any, dev: Any, arguments: list[Any], options: MeasureOptions
) -> list[float]:
    """Time a candidate whose every run takes the same arguments."""
    return _time(functools.partial(_evaluate, module, dev, arguments), options)


def _time(seconds: Callable[[int, int], list[float]], options: MeasureOptions) -> list[float]:
    """Time what `seconds(number, repeat)` runs, with as few runs as tell what it is worth.

    TVM's own ``min_repeat_ms`` doubles the count from 1 and throws the shorter measurements away;
    here the first run tells the count at once, and a candidate far slower than the best, of which
    nobody needs a second digit, is not run again.
    """
    least_s = options.min_repeat_ms / 1e3
    first = seconds(1, 1)[0]
    far = math.inf if options.best_s is None else options.give_up * options.best_s
    if first < least_s or first > far:
        # the first run is the coldest, and a stall in it would make the measurement far too short
        first = min(first, *seconds(1, 2))
    if first > far or (options.repeats == 1 and first >= least_s):
        return [first]
    number = min(1_000_000, max(1, math.ceil(least_s / max(first, 1e-8))))
    return seconds(number, options.repeats)


def _evaluate(module: Any, dev: Any, arguments: list[Any], number: int, repeat: int) -> list[float]:
    evaluator = module.time_evaluator("main", dev, number=number, repeat=repeat)
    return [float(s) for s in evaluator(*arguments).results]


def library(directory: str, key: str) -> Path:
    """Return where a candidate is exported to."""
    return Path(directory) / f"{key}.so"
