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
import os
import time
from pathlib import Path
from typing import Any

import tvm
from tvm.driver import build as tvm_build
from tvm.s_tir.transform import RemoveWeightLayoutRewriteBlock

from autotune_nb.tuning import nvrtc
from autotune_nb.tuning.messages import MeasureOptions

_FILL = "tvm.contrib.random.random_fill_for_measure"
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
        built.export_library(str(_library(directory, key)))


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
        For example ``cpu`` or ``cuda:0``.
    options
        How it is timed.

    Returns
    -------
    list of float
        Seconds a run, one for each repeat; a single one if it was given up as far too slow.
    """
    kind, _, index = device.partition(":")
    dev = tvm.runtime.device(kind, int(index or 0))
    if directory is None:
        module, _ = _held.pop(key)
    else:
        path = _library(directory, key)
        module = tvm.runtime.load_module(str(path))
        path.unlink(missing_ok=True)
    fill = tvm.get_global_func(_FILL)
    arguments = []
    for _, dtype, shape in json.loads(args_info):
        tensor = tvm.runtime.empty(tuple(shape), dtype=dtype, device=dev)
        fill(tensor)
        arguments.append(tensor)
    if options.cool_down_ms:
        time.sleep(options.cool_down_ms / 1e3)
    dev.sync()
    return _time(module, dev, arguments, options)


@functools.cache
def _target(config: str) -> Any:
    target = tvm.target.Target(json.loads(config))
    if str(target.kind) == "cuda" and os.environ.get("TVM_CUDA_COMPILE_MODE", "nvrtc") == "nvrtc":
        nvrtc.install(target)
    return target


def _time(module: Any, dev: Any, arguments: list[Any], options: MeasureOptions) -> list[float]:
    first = _evaluate(module, dev, arguments, number=1, repeat=1)[0]
    if options.best_s is not None and first > options.give_up * options.best_s:
        # The first run is also the coldest: look once more before giving up.
        first = min(first, _evaluate(module, dev, arguments, number=1, repeat=1)[0])
        if first > options.give_up * options.best_s:
            return [first]
    # TVM's own min_repeat_ms doubles the count from 1 and throws the shorter runs away; the first
    # run tells the count at once.
    number = max(1, math.ceil(options.min_repeat_ms / 1e3 / max(first, 1e-8)))
    number = min(number, 1_000_000)
    return _evaluate(module, dev, arguments, number=number, repeat=options.repeats)


def _evaluate(
    module: Any, dev: Any, arguments: list[Any], *, number: int, repeat: int
) -> list[float]:
    evaluator = module.time_evaluator("main", dev, number=number, repeat=repeat)
    return [float(s) for s in evaluator(*arguments).results]


def _library(directory: str, key: str) -> Path:
    return Path(directory) / f"{key}.so"
