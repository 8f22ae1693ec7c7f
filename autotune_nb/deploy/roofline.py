"""What a device can do: its peak speed and its memory bandwidth, measured by small kernels."""

from __future__ import annotations

import dataclasses
import json
import math
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import tvm

from autotune_nb.errors import EnvironmentProblem, InputError
from autotune_nb.run import lines
from autotune_nb.run.directory import RunDirectory
from autotune_nb.tuning import nvrtc
from autotune_nb.tuning.cores import available_cores

FILE = "roofline.json"
_STEPS = 20_000  # of a kernel's loop: a few milliseconds
_CPU_FLOATS = 1 << 25  # of one array: three of them are beyond most caches
_GPU_FLOATS = 1 << 27
# Independent sums, and floats in each: enough of them to hide the latency of an addition, few
# enough to stay in registers. Which is best depends on the device, so all are tried.
_CPU_SHAPES = ((8, 8), (12, 8), (10, 16), (12, 16), (24, 16))
_GPU_SHAPES = ((8, 1), (16, 1), (32, 1))
_GPU_THREADS = 256
_GPU_BLOCKS_EACH = 16  # for each multiprocessor

_PEAK_CPU = """
@T.prim_func(s_tir=True)
def main(x: T.Buffer((2,), "float32"), out: T.Buffer(({workers}, {sums}, {floats}), "float32")):
    for worker in T.parallel({workers}):
        total = T.alloc_buffer(({sums}, {floats}), "float32")
        for i in T.unroll({sums}):
            for j in T.vectorized({floats}):
                total[i, j] = x[0]
        for step in range({steps}):
            for i in T.unroll({sums}):
                for j in T.vectorized({floats}):
                    total[i, j] = total[i, j] * x[1] + x[0]
        for i in T.unroll({sums}):
            for j in T.vectorized({floats}):
                out[worker, i, j] = total[i, j]
"""
_COPY_CPU = """
@T.prim_func(s_tir=True)
def main(x: T.Buffer(({size},), "float32"), y: T.Buffer(({size},), "float32"),
         out: T.Buffer(({size},), "float32")):
    for part in T.parallel({parts}):
        for i in range({size} // {parts} // 16):
            for j in T.vectorized(16):
                out[part * ({size} // {parts}) + i * 16 + j] = (
                    x[part * ({size} // {parts}) + i * 16 + j]
                    + y[part * ({size} // {parts}) + i * 16 + j] * T.float32(3))
"""
_PEAK_GPU = """
@T.prim_func(s_tir=True)
def main(x: T.Buffer((2,), "float32"), out: T.Buffer(({blocks}, {threads}), "float32")):
    for block in T.thread_binding({blocks}, thread="blockIdx.x"):
        for thread in T.thread_binding({threads}, thread="threadIdx.x"):
            total = T.alloc_buffer(({sums},), "float32", scope="local")
            for i in T.unroll({sums}):
                total[i] = x[0] + T.Cast("float32", i)
            for step in range({steps}):
                for i in T.unroll({sums}):
                    total[i] = total[i] * x[1] + x[0]
            out[block, thread] = T.float32(0)
            for i in T.unroll({sums}):
                out[block, thread] = out[block, thread] + total[i]
"""
_COPY_GPU = """
@T.prim_func(s_tir=True)
def main(x: T.Buffer(({size},), "float32"), y: T.Buffer(({size},), "float32"),
         out: T.Buffer(({size},), "float32")):
    for block in T.thread_binding({size} // 1024, thread="blockIdx.x"):
        for thread in T.thread_binding(256, thread="threadIdx.x"):
            for j in T.vectorized(4):
                out[block * 1024 + thread * 4 + j] = (
                    x[block * 1024 + thread * 4 + j]
                    + y[block * 1024 + thread * 4 + j] * T.float32(3))
"""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Roofline:
    """What a device can do in float32.

    Attributes
    ----------
    peak_gflops
        10⁹ multiplications and additions a second, with all cores, from registers.
    bandwidth_gbs
        10⁹ bytes a second between memory and cores, two read for each one written.
    device_name
        Of what.
    """

    peak_gflops: float
    bandwidth_gbs: float
    device_name: str = ""

    def __str__(self) -> str:
        name = f"{self.device_name}: " if self.device_name else ""
        return f"{name}{self.peak_gflops:.4g} GFLOPS, {self.bandwidth_gbs:.4g} GB/s"


def of_run(run: RunDirectory, *, again: bool = False) -> Roofline:
    """Return what the device of a run can do: measured once, then kept among its artifacts.

    Measure while nothing else is running. For about two seconds the device is fully busy.

    Raises
    ------
    InputError
        If the run is read-only, so that its device is not this machine's.
    EnvironmentProblem
        If the device is not here, or the kernels cannot be built for it.
    """
    path = run.path / "artifacts" / FILE
    if not again:
        try:
            value = json.loads(path.read_bytes())
            return Roofline(
                peak_gflops=float(value["peak_gflops"]),
                bandwidth_gbs=float(value["bandwidth_gbs"]),
                device_name=str(value.get("device_name", "")),
            )
        except (OSError, ValueError, TypeError, KeyError):
            pass  # not measured yet, or damaged
    manifest = run.manifest
    if manifest.read_only:
        raise InputError(
            f"{run.path}: is read-only, it may have been tuned on another machine; give the plot "
            "the peak and bandwidth of that one"
        )
    found = dataclasses.replace(
        measure(manifest.target, manifest.device), device_name=manifest.device_name
    )
    lines.replace(run.artifacts / FILE, json.dumps(dataclasses.asdict(found)).encode())
    return found


def measure(target: Mapping[str, Any], device: str = "cpu") -> Roofline:
    """Measure what a device can do.

    Parameters
    ----------
    target
        TVM's target configuration, complete.
    device
        ``cpu`` or for example ``cuda:0``.

    Raises
    ------
    EnvironmentProblem
        If the device is not here, or the kernels cannot be built for it.
    """
    kind, _, index = device.partition(":")
    dev = tvm.runtime.device(kind, int(index or 0))
    if not dev.exist:
        raise EnvironmentProblem(f"{device}: no such device here; 'autotune-nb doctor' says why")
    made = tvm.target.Target(dict(target))
    on_gpu = kind != "cpu"
    if kind == "cuda":
        nvrtc.install(made)
    try:
        peak = max(_peaks(made, dev, on_gpu))
        bandwidth = _bandwidth(made, dev, on_gpu)
    except (tvm.error.TVMError, RuntimeError, ValueError) as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[-1]
        raise EnvironmentProblem(
            f"{device}: its peak cannot be measured ({reason}); pass it to the plot"
        ) from error
    return Roofline(peak_gflops=peak / 1e9, bandwidth_gbs=bandwidth / 1e9)


def _peaks(target: Any, dev: Any, on_gpu: bool) -> list[float]:
    """Return operations a second, for each of the shapes."""
    found = []
    for sums, floats in _GPU_SHAPES if on_gpu else _CPU_SHAPES:
        blocks = _GPU_BLOCKS_EACH * int(dev.multi_processor_count) if on_gpu else available_cores()
        threads = _GPU_THREADS if on_gpu else 1
        text = (_PEAK_GPU if on_gpu else _PEAK_CPU).format(
            blocks=blocks, workers=blocks, threads=threads, sums=sums, floats=floats, steps=_STEPS
        )
        shape = (blocks, threads) if on_gpu else (blocks, sums, floats)
        arguments = [
            tvm.runtime.tensor(np.array([0.5, 0.5], dtype=np.float32), dev),
            tvm.runtime.empty(shape, "float32", dev),
        ]
        operations = 2.0 * blocks * threads * sums * floats * _STEPS
        found.append(operations / _fastest_s(text, target, dev, arguments))
    return found


def _bandwidth(target: Any, dev: Any, on_gpu: bool) -> float:
    size = _GPU_FLOATS if on_gpu else _CPU_FLOATS
    # a power of two, so that the parts are equal
    parts = 1 << max(0, math.ceil(math.log2(available_cores())))
    text = (_COPY_GPU if on_gpu else _COPY_CPU).format(size=size, parts=parts)
    # written once, so that every page is there
    ones = np.ones(size, dtype=np.float32)
    arguments = [tvm.runtime.tensor(ones, dev) for _ in range(3)]
    return 3.0 * ones.nbytes / _fastest_s(text, target, dev, arguments)


def _fastest_s(text: str, target: Any, dev: Any, arguments: list[Any]) -> float:
    """Return the seconds of the fastest of some runs: what the device can do, not what it did."""
    function = tvm.script.from_source(text)
    named = function.with_attrs({"global_symbol": "main", "tirx.noalias": True})
    module = tvm.ir.IRModule({"main": named})
    built = tvm.tirx.build(module, target=target)
    evaluator = built.time_evaluator("main", dev, number=1, repeat=3)
    evaluator(*arguments)  # wakes threads and clocks
    best, deadline = math.inf, time.monotonic() + 0.3
    while time.monotonic() < deadline:
        best = min(best, *(float(s) for s in evaluator(*arguments).results))
    return best
