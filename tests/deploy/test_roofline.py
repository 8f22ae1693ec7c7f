"""Peak and bandwidth of this machine, from kernels that really do the work."""

import json

import numpy as np
import pytest
import tvm

from autotune_nb.deploy import roofline
from autotune_nb.errors import EnvironmentProblem, InputError
from autotune_nb.run.directory import RunDirectory
from autotune_nb.run.manifest import Manifest, Options
from autotune_nb.run.records import TaskInfo
from autotune_nb.tuning.target import resolve


@pytest.fixture
def target():
    return json.loads(str(resolve("llvm")))


@pytest.fixture
def make_run(tmp_path, target):
    def make(**changes):
        fields = {
            "name": "toy",
            "network_fingerprint": "f",
            "network": {},
            "target": target,
            "device": "cpu",
            "device_name": "a CPU",
            "versions": {},
            "options": Options(),
            "tasks": (TaskInfo(id=0, name="t", weight=1, flops=1.0, workload_hash="1"),),
            "created": 1.0,
        }
        Manifest(**{**fields, **changes}).write(tmp_path)
        return RunDirectory(tmp_path)

    return make


def built(text, target):
    function = tvm.script.from_source(text).with_attr("global_symbol", "main")
    return tvm.tirx.build(tvm.ir.IRModule({"main": function}), tvm.target.Target(target))


def test_the_kernel_of_the_peak_does_every_step(target):
    text = roofline._PEAK_CPU.format(workers=2, sums=3, floats=8, steps=4)
    x = tvm.runtime.tensor(np.array([0.5, 0.5], dtype=np.float32))
    out = tvm.runtime.empty((2, 3, 8), "float32")
    built(text, target)["main"](x, out)
    np.testing.assert_array_equal(out.numpy(), np.full((2, 3, 8), 0.96875, np.float32))


def test_the_kernel_of_the_bandwidth_touches_every_element(target):
    text = roofline._COPY_CPU.format(size=1024, parts=4)
    x = np.arange(1024, dtype=np.float32)
    out = tvm.runtime.empty((1024,), "float32")
    built(text, target)["main"](tvm.runtime.tensor(x), tvm.runtime.tensor(2 * x), out)
    np.testing.assert_array_equal(out.numpy(), 7 * x)


@pytest.mark.parametrize("kernel", ["_PEAK_GPU", "_COPY_GPU"])
def test_kernels_for_gpus_are_functions_of_threads(kernel):
    text = getattr(roofline, kernel).format(blocks=4, threads=256, sums=8, steps=10, size=1 << 20)
    assert 'thread="threadIdx.x"' in tvm.script.from_source(text).script()


def test_measured_once_and_kept(make_run, monkeypatch):
    monkeypatch.setattr(roofline, "_CPU_FLOATS", 1 << 20)
    monkeypatch.setattr(roofline, "_CPU_SHAPES", ((8, 8),))
    run = make_run()
    found = roofline.of_run(run)
    # one core of any machine of this century, and all of the largest
    assert 1 < found.peak_gflops < 100_000
    assert 0.5 < found.bandwidth_gbs < 20_000
    assert found.device_name == "a CPU"
    assert "GFLOPS" in str(found)
    monkeypatch.setattr(roofline, "measure", None)
    assert roofline.of_run(run) == found
    (run.artifacts / roofline.FILE).write_text("{broken")
    with pytest.raises(TypeError):  # it would measure anew
        roofline.of_run(run)


def test_what_cannot_be_measured_is_told(make_run, target):
    with pytest.raises(InputError, match="may have been tuned on another machine"):
        roofline.of_run(make_run(read_only=True))
    with pytest.raises(EnvironmentProblem, match="no such device"):
        roofline.measure({"kind": "llvm"}, "cuda:77")


@pytest.mark.gpu
def test_a_gpu_is_faster_than_this(target):
    found = roofline.measure(json.loads(str(resolve("cuda"))), "cuda:0")
    assert found.peak_gflops > 500
    assert found.bandwidth_gbs > 50
