"""doctor names each fault that stops a tuning, and what mends it."""

from __future__ import annotations

import importlib.metadata
import json
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from autotune_nb import doctor
from autotune_nb.doctor import child, device, machine, software
from autotune_nb.doctor.child import Answer
from autotune_nb.doctor.finding import Finding
from autotune_nb.errors import EnvironmentProblem, TargetError
from autotune_nb.tuning import cores

Versions = Callable[..., None]


@pytest.fixture
def versions(monkeypatch: pytest.MonkeyPatch) -> Versions:
    """Pretend that other distributions are installed."""

    def install(**installed: str | None) -> None:
        def version(distribution: str) -> str:
            found = installed[distribution.replace("-", "_")]
            if found is None:
                raise importlib.metadata.PackageNotFoundError(distribution)
            return found

        monkeypatch.setattr(importlib.metadata, "version", version)

    return install


def answering(monkeypatch: pytest.MonkeyPatch, module: object, **answers: Answer) -> None:
    """Let a module's children give these answers."""
    monkeypatch.setattr(module, "ask", lambda question, *_, **__: answers[question])


def one(findings: list[Finding], name: str) -> Finding:
    """The only finding of that name."""
    (found,) = [finding for finding in findings if finding.name == name]
    return found


# This environment, for real.


def test_this_environment_can_tune() -> None:
    findings = doctor.check("llvm")
    assert [f for f in findings if f.status == "problem"] == []
    assert doctor.exit_code(findings) == 0
    doctor.require(findings)
    names = [finding.name for finding in findings]
    assert names == [
        "python", "tvm", "tvm abi", "packages", "linker", "target", "cores", "memory", "disk",
        "shared memory",
    ]  # fmt: skip


def test_the_quick_part_is_quick_and_loads_nothing() -> None:
    code = (
        "import sys, time; from autotune_nb import doctor; start = time.perf_counter(); "
        "findings = doctor.check('llvm', quick=True); print(time.perf_counter() - start); "
        "print([m for m in ('tvm', 'xgboost', 'pandas', 'plotly', 'onnx') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])},
    )
    seconds, loaded = done.stdout.splitlines()
    assert float(seconds) < 0.5
    assert loaded == "[]"


def test_pins_are_those_of_the_project(repository: Path) -> None:
    text = (repository / "pyproject.toml").read_text()
    assert f'"apache-tvm=={software.TVM_VERSION}"' in text
    assert f'"apache-tvm-ffi=={software.TVM_FFI_VERSION}"' in text


# Versions and the trial in a child.


def test_a_newer_tvm_ffi_is_named_with_the_command_that_mends_it(versions: Versions) -> None:
    versions(apache_tvm=software.TVM_VERSION, apache_tvm_ffi="0.1.15")
    finding = software.tvm_versions()
    assert finding.status == "problem"
    assert "apache-tvm-ffi 0.1.15" in finding.message
    assert "crashes the interpreter" in finding.message
    assert f"apache-tvm-ffi=={software.TVM_FFI_VERSION}" in finding.fix


@pytest.mark.parametrize(
    ("tvm", "ffi", "message"),
    [
        (None, "0.1.14.post1", "apache-tvm is not installed"),
        ("0.27.0.post1", None, "apache-tvm-ffi is not installed"),
        ("0.26.0", "0.1.14.post1", "apache-tvm 0.26.0 is installed"),
    ],
)
def test_missing_or_other_tvm(
    versions: Versions, tvm: str | None, ffi: str | None, message: str
) -> None:
    versions(apache_tvm=tvm, apache_tvm_ffi=ffi)
    finding = software.tvm_versions()
    assert finding.status == "problem"
    assert message in finding.message
    assert "apache-tvm==0.27.0.post1 apache-tvm-ffi==0.1.14.post1" in finding.fix


def test_a_crash_of_the_trial_is_a_problem_not_our_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    crash = [sys.executable, "-c", "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"]
    answer = child.run_child(crash, timeout_s=30)
    assert answer == Answer(value=None, failure="the interpreter crashed (SIGSEGV)", crashed=True)
    answering(monkeypatch, software, abi=answer)
    finding = software.tvm_abi()
    assert finding.status == "problem"
    assert "do not fit together" in finding.message
    assert "apache-tvm-ffi==" in finding.fix


def test_another_tvm_on_the_path_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    value = {"version": "0.28.dev0", "file": "/src/tvm/__init__.py", "spaces": 1}
    answering(monkeypatch, software, abi=Answer(value=value))
    finding = software.tvm_abi()
    assert finding.status == "problem"
    assert "0.28.dev0 from /src/tvm/__init__.py" in finding.message
    assert "PYTHONPATH" in finding.fix


def test_an_error_of_the_trial_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    failing = [sys.executable, "-c", "import sys; sys.exit('no LLVM in here')"]
    answering(monkeypatch, software, abi=child.run_child(failing, timeout_s=30))
    finding = software.tvm_abi()
    assert finding.status == "problem"
    assert "no LLVM in here" in finding.message


@pytest.mark.faults
def test_a_hanging_child_is_killed_with_its_own_children(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    code = (
        "import subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        f"open({str(pid_file)!r}, 'w').write(str(child.pid))\n"
        "time.sleep(600)\n"
    )
    answer = child.run_child([sys.executable, "-c", code], timeout_s=3)
    assert answer.failure == "no answer within 3 s"
    assert not answer.crashed
    grandchild = int(pid_file.read_text())
    deadline = time.monotonic() + 10
    while _alive(grandchild) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _alive(grandchild)


def _alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state not in "ZX"


def test_python_version(monkeypatch: pytest.MonkeyPatch) -> None:
    assert software.python_version().status == "ok"
    monkeypatch.setattr(sys, "version_info", (3, 14, 0, "final", 0))
    finding = software.python_version()
    assert (finding.status, finding.message) == ("problem", "3.14.0 is not supported")


# Modules.


@pytest.mark.parametrize("name", software.NEEDED)
def test_a_missing_module_is_a_problem(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(software, "present", lambda asked: asked != name)
    package, consequence = software.NEEDED[name]
    finding = one(software.modules(quick=True), package)
    assert finding.status == "problem"
    assert consequence in finding.message
    assert finding.fix.endswith(f"pip install {package}")


@pytest.mark.parametrize("name", software.WISHED)
def test_a_missing_extra_is_a_warning(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(software, "present", lambda asked: asked != name)
    package, consequence = software.WISHED[name]
    finding = one(software.modules(quick=True), package)
    assert finding.status == "warning"
    assert consequence in finding.message
    assert doctor.exit_code([finding]) == 0


def test_a_module_that_does_not_import_is_found_in_full_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    failure = Answer(value={"xgboost": "OSError: libgomp.so.1: cannot open shared object file"})
    answering(monkeypatch, software, modules=failure)
    assert [f.status for f in software.modules(quick=True)] == ["ok"]
    finding = one(software.modules(quick=False), "xgboost-cpu")
    assert finding.status == "problem"
    assert "libgomp.so.1" in finding.message


def test_modules_that_crash_when_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    crash = Answer(value=None, failure="the interpreter crashed (SIGILL)", crashed=True)
    answering(monkeypatch, software, modules=crash)
    finding = one(software.modules(quick=False), "packages")
    assert finding.status == "problem"
    assert "SIGILL" in finding.message
    assert "xgboost-cpu" in finding.fix


def test_the_probe_tells_why_an_import_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_module.py").write_text("raise OSError('no libfoo')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    answer = child.ask("modules", "json,broken_module")
    assert answer == Answer(value={"broken_module": "OSError: no libfoo"})


# The linker.


@pytest.mark.parametrize(("needed", "status"), [(False, "warning"), (True, "problem")])
def test_no_linker(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, needed: bool, status: str
) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    finding = machine.linker(needed=needed, quick=True)
    assert finding.status == status
    assert "no C++ compiler" in finding.message
    assert "apt install g++" in finding.fix


def test_a_compiler_variable_that_names_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    finding = machine.linker(needed=True, quick=True)
    assert finding.status == "problem"
    assert "no-such-compiler, which CXX or CC names, is no program" in finding.message


def test_a_compiler_that_cannot_link(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script = tmp_path / "c++"
    script.write_text("#!/bin/sh\necho 'cannot find crti.o' >&2\nexit 1\n")
    script.chmod(0o755)
    monkeypatch.setenv("CXX", str(script))
    assert machine.linker(needed=True, quick=True).status == "ok"
    finding = machine.linker(needed=True, quick=False)
    assert finding.status == "problem"
    assert "cannot find crti.o" in finding.message


# Targets and their devices.


@pytest.mark.parametrize(
    ("target", "message", "fix"),
    [
        ("lvm", "lvm: does not exist (did you mean llvm", "use llvm"),
        ("llvm -mcpu=znver3", "options after the name", "write it as JSON"),
        ('{"kind": ', "is no valid JSON", "write it like"),
        ('{"kind": "llvm", "mcpu": "pentium9"}', "mcpu pentium9 does not exist", "leave it out"),
        ("vulkan", "no such device on this machine", "use llvm"),
    ],
)
def test_a_target_that_cannot_be_tuned_for(target: str, message: str, fix: str) -> None:
    finding = one(device.target(target, quick=False), "target")
    assert finding.status == "problem"
    assert message in finding.message
    assert fix in finding.fix
    with pytest.raises(TargetError, match=re.escape(message)):
        doctor.require([finding])


def test_a_target_on_which_tvm_crashes(monkeypatch: pytest.MonkeyPatch) -> None:
    crash = Answer(value=None, failure="the interpreter crashed (SIGSEGV)", crashed=True)
    answering(monkeypatch, device, target=crash)
    finding = one(device.target("llvm", quick=False), "target")
    assert finding.status == "problem"
    assert "TVM failed on llvm: the interpreter crashed (SIGSEGV)" in finding.message


@pytest.mark.parametrize(
    ("target", "gpu"),
    [
        ("llvm", False),
        ("native", False),
        ('{"kind": "llvm", "mcpu": "znver3"}', False),
        ('{"kind": ', False),
        ("cuda:1", True),
        ("GPU", True),
        ("nvidia/nvidia-a100", True),
        ('{"kind": "cuda", "arch": "sm_90"}', True),
        ("vulkan", True),
    ],
)
def test_a_gpu_is_told_from_a_cpu_without_tvm(target: str, gpu: bool) -> None:
    assert device.is_gpu(target) is gpu


OK_TARGET = Answer(value={"target": "cuda -arch=sm_90", "error": ""})
NO_DEVICE = Answer(value={"target": "", "error": "target cuda: no such device; check the driver"})


def driver(*, loaded: bool = True, code: int = 0, devices: int = 1) -> Answer:
    """What the child says about the NVIDIA driver."""
    return Answer(value={"loaded": loaded, "code": code, "devices": devices})


@pytest.mark.parametrize(
    ("answer", "message", "fix"),
    [
        (driver(loaded=False, devices=0), "no NVIDIA driver", "install the driver"),
        (driver(code=803, devices=0), "answers error 803", "nvidia-smi"),
        (driver(devices=0), "sees no GPU", "CUDA_VISIBLE_DEVICES"),
        (Answer(value=None, failure="no answer within 30 s"), "no answer", "nvidia-smi"),
    ],
)
def test_cuda_without_its_device(
    monkeypatch: pytest.MonkeyPatch, answer: Answer, message: str, fix: str
) -> None:
    answering(monkeypatch, device, driver=answer, target=NO_DEVICE)
    for quick in (True, False):
        findings = device.target("cuda", quick=quick)
        finding = one(findings, "gpu")
        assert finding.status == "problem"
        assert message in finding.message
        assert fix in finding.fix
        assert all(f.name != "target" for f in findings)
        with pytest.raises(TargetError, match=message):
            doctor.require(findings)


def test_cuda_whose_runtime_does_not_load(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = Answer(value={"error": "libcudart.so.13: cannot open shared object file"})
    answering(monkeypatch, device, driver=driver(), target=NO_DEVICE, cuda_runtime=refused)
    findings = device.target("nvidia/nvidia-a100", quick=False)
    assert one(findings, "gpu").status == "ok"
    assert one(findings, "target") == Finding(
        name="target", status="problem", message="cuda: no such device", fix="check the driver"
    )
    finding = one(findings, "cuda runtime")
    assert finding.status == "problem"
    assert "libcudart.so.13" in finding.message
    assert "LD_LIBRARY_PATH" in finding.fix


def test_cuda_that_works(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = Answer(value={"error": ""})
    answering(monkeypatch, device, driver=driver(), target=OK_TARGET, cuda_runtime=loaded)
    monkeypatch.setattr(device, "present", lambda name: True)
    monkeypatch.delenv("TVM_CUDA_COMPILE_MODE", raising=False)
    findings = device.target("cuda", quick=False)
    assert [(f.name, f.status) for f in findings] == [
        ("target", "ok"),
        ("gpu", "ok"),
        ("cuda compiler", "ok"),
    ]


@pytest.mark.skipif(Path("/dev/nvidiactl").exists(), reason="this machine has a GPU")
def test_why_the_cuda_library_does_not_load_here() -> None:
    answer = child.ask("cuda_runtime")
    assert answer.value is not None
    assert "cannot open shared object file" in answer.value["error"]


@pytest.mark.gpu
def test_cuda_on_this_machine() -> None:
    findings = device.target("cuda", quick=False)
    assert [f for f in findings if f.status == "problem"] == []


@pytest.mark.parametrize("mode", ["nvrtc", "nvcc"])
def test_cuda_without_its_compiler(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, mode: str
) -> None:
    answering(monkeypatch, device, driver=driver(), target=OK_TARGET)
    monkeypatch.setenv("TVM_CUDA_COMPILE_MODE", mode)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(device, "present", lambda name: False)
    finding = one(device.target("cuda", quick=True), "cuda compiler")
    assert finding.status == "problem"
    assert {"nvrtc": "cuda-bindings", "nvcc": "nvcc is not on PATH"}[mode] in finding.message


def test_a_gpu_target_makes_the_linker_necessary(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    answering(monkeypatch, device, driver=driver(), target=OK_TARGET)
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert one(doctor.check("cuda", quick=True), "linker").status == "problem"
    assert one(doctor.check("llvm", quick=True), "linker").status == "warning"


def test_asking_for_a_gpu_leaves_this_process_without_cuda() -> None:
    doctor.check("cuda", quick=True)
    maps = Path("/proc/self/maps")
    if maps.exists():
        assert "libcuda.so" not in maps.read_text()


# The machine.


def test_more_workers_than_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "available_cores", lambda: 2)
    finding = machine.cores(16)
    assert finding.status == "warning"
    assert "16 workers on 2 cores" in finding.message
    assert finding.fix == "use at most 2 workers"
    assert machine.cores(2).status == "ok"


def test_more_threads_than_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "available_cores", lambda: 2)
    monkeypatch.setenv("TVM_NUM_THREADS", "8")
    finding = machine.cores(None)
    assert finding.status == "warning"
    assert "TVM_NUM_THREADS=8 on 2 cores" in finding.message


def test_a_container_limits_cores_and_memory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(cores, "CGROUP", tmp_path)
    monkeypatch.setattr(machine, "CGROUP", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(64)), raising=False)
    assert cores.available_cores() == 64
    (tmp_path / "cpu.max").write_text("150000 100000\n")
    assert cores.available_cores() == 2
    (tmp_path / "memory.max").write_text(f"{2**30}\n")
    (tmp_path / "memory.current").write_text(f"{2**29}\n")
    finding = machine.memory(None)
    assert finding.status == "problem"
    assert finding.message.startswith("0.5 GiB free; a tuner with 2 workers takes")
    assert "fewer workers" in finding.fix


def test_memory_for_fewer_workers_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_available_memory", lambda: 2 * 2**30)
    assert machine.memory(2).status == "ok"
    finding = machine.memory(16)
    assert finding.status == "warning"
    assert "16 workers takes about 7.4 GiB" in finding.message


@pytest.mark.parametrize(
    ("free", "status"), [(50 * 2**20, "problem"), (500 * 2**20, "warning"), (2 * 2**30, "ok")]
)
def test_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, free: int, status: str) -> None:
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda path: SimpleNamespace(free=free))
    finding = machine.disk(tmp_path / "runs" / "new")
    assert finding.status == status
    assert str(tmp_path) in finding.message
    assert not (tmp_path / "runs").exists()


def test_a_run_below_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    finding = machine.disk(tmp_path / "file" / "run")
    assert finding.status == "problem"
    assert "not a directory that can be written to" in finding.message


def test_no_shared_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    class Context:
        def Lock(self) -> None:
            raise FileNotFoundError(2, "No such file or directory")

    assert machine.shared_memory().status == "ok"
    monkeypatch.setattr(multiprocessing, "get_context", lambda method: Context())
    finding = machine.shared_memory()
    assert finding.status == "problem"
    assert "/dev/shm" in finding.fix


# What a person sees.


def test_the_table_shows_each_fix_below_its_finding() -> None:
    findings = [
        Finding(name="python", status="ok", message="3.11.7"),
        Finding(name="linker", status="warning", message="no C++ compiler", fix="install one"),
        Finding(name="tvm", status="problem", message="not installed", fix="install it"),
    ]
    assert doctor.render(findings).splitlines() == [
        "ok       python  3.11.7",
        "warning  linker  no C++ compiler",
        "                 -> install one",
        "problem  tvm     not installed",
        "                 -> install it",
        "",
        "This environment cannot tune: 1 problem, 1 warning.",
    ]
    assert doctor.exit_code(findings) == 1
    assert doctor.exit_code(findings[:2]) == 0
    assert "can tune, with limits: 0 problems, 1 warning." in doctor.render(findings[:2])


def test_require_names_the_first_problem_and_counts_the_others() -> None:
    broken = [
        Finding(name="tvm", status="problem", message="not installed", fix="install it"),
        Finding(name="disk", status="problem", message="full", fix="make room"),
    ]
    with pytest.raises(EnvironmentProblem) as caught:
        doctor.require(broken)
    assert str(caught.value) == (
        "tvm: not installed. To fix it: install it (1 more: see `autotune-nb doctor`)"
    )
    assert caught.value.exit_code == 1


def test_a_finding_is_json(tmp_path: Path) -> None:
    # The command line prints findings with --json.
    import dataclasses

    findings = doctor.check(quick=True, directory=tmp_path)
    rows = json.loads(json.dumps([dataclasses.asdict(finding) for finding in findings]))
    assert {tuple(row) for row in rows} == {("name", "status", "message", "fix")}


def test_signals_have_names() -> None:
    # run_child names the signal: a number would tell nobody anything.
    stopped = [sys.executable, "-c", f"import os; os.kill(os.getpid(), {int(signal.SIGABRT)})"]
    assert child.run_child(stopped, timeout_s=30).failure == "the interpreter crashed (SIGABRT)"
