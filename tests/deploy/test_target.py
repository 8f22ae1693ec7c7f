"""Targets: completed from this machine, or refused with what to do."""

from __future__ import annotations

import json
import subprocess

import pytest
from tvm.target import codegen

from autotune_nb.errors import TargetError
from autotune_nb.tuning import target as targets
from autotune_nb.tuning.cores import available_cores

FAKE_GPU = {
    "exists": True,
    "name": "NVIDIA Imaginary",
    "target": {
        "kind": "cuda",
        "tag": "",
        "keys": ["cuda", "gpu"],
        "arch": "sm_90",
        "max_threads_per_block": 1024,
        "max_shared_memory_per_block": 49152,
        "max_num_threads": 1024,
        "thread_warp_size": 32,
    },
}


@pytest.fixture
def gpu(monkeypatch):
    asked = []

    def probe(kind, index):
        asked.append((kind, index))
        return FAKE_GPU if (kind, index) in (("cuda", 0), ("cuda", 1)) else {"exists": False}

    monkeypatch.setattr(targets, "_probe", probe)
    return asked


def configuration(target):
    return json.loads(str(target))


@pytest.mark.parametrize("name", ["llvm", "cpu", " llvm ", {"kind": "llvm"}, '{"kind": "llvm"}'])
def test_a_cpu_is_completed(name):
    found = configuration(targets.resolve(name))
    assert found["mcpu"] == codegen.llvm_get_system_cpu()
    assert found["num-cores"] == available_cores()
    assert found["mtriple"] == codegen.llvm_get_system_triple()
    assert targets.device(name) == "cpu"


def test_what_is_given_is_kept():
    found = configuration(targets.resolve({"kind": "llvm", "mcpu": "x86-64-v3", "num-cores": 1}))
    assert (found["mcpu"], found["num-cores"]) == ("x86-64-v3", 1)


def test_resolving_twice_changes_nothing(target):
    assert configuration(targets.resolve(str(target))) == configuration(target)


def test_only_usable_cores_count(monkeypatch):
    monkeypatch.setattr(targets, "available_cores", lambda: 1)
    assert configuration(targets.resolve("llvm"))["num-cores"] == 1


def test_extensions_that_a_virtual_machine_hides_are_not_used(monkeypatch):
    flags = "flags\t\t: fpu sse sse2 avx avx2 fma f16c\n"
    monkeypatch.setattr(targets, "_cpuinfo", lambda: "model name\t: Some CPU\n" + flags)
    monkeypatch.setattr(targets.codegen, "llvm_get_system_cpu", lambda: "skylake-avx512")
    found = configuration(targets.resolve("llvm"))
    assert found["mcpu"] == "skylake-avx512"
    assert "-avx512f" in found["mattr"]
    assert "-avx2" not in found["mattr"]
    assert targets.cpu_name() == "Some CPU"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("lvm", r"target lvm: does not exist \(did you mean llvm\?\); use llvm for this machine"),
        ("cdua", "did you mean cuda"),
        ("nvidia/nvidia-h1000", "did you mean nvidia/nvidia-h100"),
        ("", "does not exist"),
        ("llvm -mcpu=znver3", "no longer understood; write it as JSON"),
        ('{"kind": ', "is no valid JSON"),
        ("{}", "has no kind"),
        ({"kind": "warp"}, "target warp: does not exist"),
        ({"kind": "llvm", "num-core": 2}, r"has no option num-core \(did you mean num-cores\?\)"),
        ({"kind": "llvm", "num-cores": 0}, "num-cores is 0; give a number"),
        ({"kind": "llvm", "mcpu": "znver33"}, "mcpu znver33 does not exist .did you mean znver3"),
        ("hexagon", "this toolkit does not tune for it; use llvm"),
        ("cuda:x", "write it like cuda:0"),
        ("llvm:1", "write it like cuda:0"),
        ("cuda:7", r"no such device on this machine \(cuda:7\)"),
        ("vulkan", r"no such device on this machine \(vulkan:0\)"),
    ],
)
def test_what_cannot_be_is_refused(name, message, gpu):
    with pytest.raises(TargetError, match=message) as caught:
        targets.resolve(name)
    assert caught.value.exit_code == 2
    assert "\n" not in str(caught.value)


def test_a_foreign_cpu_is_only_for_rpc():
    triple = codegen.llvm_get_system_triple()
    other = "aarch64-linux-gnu" if "aarch64" not in triple else "x86_64-linux-gnu"
    foreign = {"kind": "llvm", "mtriple": other}
    with pytest.raises(TargetError, match="does not run on this machine"):
        targets.resolve(foreign)
    assert "mcpu" not in configuration(targets.resolve(foreign, measured_here=False))


@pytest.mark.skipif("x86" not in codegen.llvm_get_system_triple(), reason="about x86 extensions")
def test_a_cpu_that_can_more_than_this_one_is_refused(monkeypatch):
    monkeypatch.setattr(targets, "_cpuinfo", lambda: "flags : sse sse2 avx avx2 fma f16c\n")
    monkeypatch.setattr(targets.codegen, "llvm_get_system_cpu", lambda: "haswell")
    with pytest.raises(TargetError, match=r"has .*avx512f.*, which this machine's CPU"):
        targets.resolve({"kind": "llvm", "mcpu": "skylake-avx512"})


@pytest.mark.parametrize(("name", "index"), [("cuda", 0), ("gpu", 0), ("cuda:1", 1)])
def test_a_gpu_is_completed_from_its_device(name, index, gpu):
    found = configuration(targets.resolve(name))
    assert found["arch"] == "sm_90"
    assert found["max_shared_memory_per_block"] == 49152
    assert gpu == [("cuda", index)]
    assert targets.device(name) == f"cuda:{index}"
    assert targets.device_name(targets.resolve(name), index) == "NVIDIA Imaginary"


def test_a_gpu_is_asked_for_in_a_child_process(monkeypatch):
    commands = []

    def run(command, **options):
        commands.append(command)
        return subprocess.CompletedProcess(command, -11, "", "boom\n")

    monkeypatch.setattr(targets.subprocess, "run", run)
    with pytest.raises(TargetError, match=r"asking for the device cuda:3 failed \(boom\)"):
        targets.resolve("cuda:3")
    assert commands[0][-2:] == ["cuda", "3"]


def test_a_tag_needs_its_device(gpu):
    found = configuration(targets.resolve("nvidia/nvidia-h100"))
    assert (found["kind"], found["arch"]) == ("cuda", "sm_90a")
