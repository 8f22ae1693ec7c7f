"""Checks of the target: whether TVM knows it, and whether its device is here."""

from __future__ import annotations

import json
import os
import shutil
from typing import Any

from autotune_nb.doctor.child import Answer, ask
from autotune_nb.doctor.finding import Finding
from autotune_nb.doctor.software import PIP_INSTALL, present
from autotune_nb.errors import near_matches

# What TVM 0.27 calls a target kind; a test compares this with TVM.
GPU_KINDS = frozenset({"cuda", "metal", "nvptx", "opencl", "rocm", "vulkan", "webgpu"})
KINDS = GPU_KINDS | {"c", "composite", "cuda_host", "ext_dev", "hexagon", "llvm", "test", "trn"}


def kind_of(target: str) -> str:
    """Return the kind a target string names, or an empty string where TVM must be asked.

    TVM itself is not asked here: parsing a CUDA target can initialise CUDA.
    """
    text = target.strip()
    if text.startswith("{"):
        try:
            fields = json.loads(text)
        except ValueError:
            return ""
        return str(fields.get("kind", "")) if isinstance(fields, dict) else ""
    if text.startswith("nvidia/"):
        return "cuda"
    return text.split()[0] if text and "/" not in text else ""


def is_gpu(kind: str) -> bool:
    """Tell whether candidates for this kind of target run on a GPU."""
    return kind in GPU_KINDS


def target(text: str, *, quick: bool) -> list[Finding]:
    """Check how a target is written and, in full, let TVM parse it and find its device."""
    kind = kind_of(text)
    spelling = _spelling(text, kind)
    if spelling:
        return [spelling]
    parsed = Finding(name="target", status="ok", message=text)
    if not quick:
        parsed = _parsed(text, ask("target", text))
    if kind != "cuda":
        return [parsed]
    driver = _driver()
    # Without a driver TVM finds no device either; saying it once is enough.
    first = [driver] if driver.status == "problem" else [driver, parsed]
    return [*first, _compiler()]


def _problem(message: str, fix: str) -> Finding:
    return Finding(name="target", status="problem", message=message, fix=fix)


def _spelling(text: str, kind: str) -> Finding | None:
    """Refuse what TVM 0.27 cannot parse, without asking it."""
    text = text.strip()
    fix = 'write a kind (llvm, cuda), a tag (nvidia/nvidia-a100) or JSON ({"kind": "llvm"})'
    if not text:
        return _problem("the target is empty", fix)
    if text.startswith("{"):
        try:
            fields = json.loads(text)
        except ValueError as error:
            return _problem(f"{text} is not JSON ({error})", fix)
        if "kind" not in fields and "tag" not in fields:
            return _problem(f"{text} names no kind", fix)
    elif " -" in text:
        kind, *options = text.split()
        fields = {"kind": kind}
        for option in options:
            name, _, value = option.lstrip("-").partition("=")
            fields[name] = value
        return _problem(
            f"{text}: TVM no longer takes options in this form", f"write {json.dumps(fields)}"
        )
    if kind and kind not in KINDS:
        return _problem(f"TVM knows no target kind {kind}{near_matches(kind, KINDS)}", fix)
    return None


def _parsed(text: str, answer: Answer) -> Finding:
    """Judge what TVM in a child process says about a target."""
    if answer.value is None:
        return _problem(
            f"TVM failed on {text}: {answer.failure}", "put the other problems right first"
        )
    value = answer.value
    if value["error"]:
        return _problem(
            f"TVM refuses {text}: {value['error']}", "see `autotune-nb tune --help` for targets"
        )
    if value["kind"] == "llvm":
        return _cpu(text, value)
    if value["kind"] != "c" and not value["exists"]:
        why = (
            "there is no such device on this machine"
            if value["enabled"]
            else f"TVM's {value['kind']} runtime does not load or is not part of this TVM"
        )
        return _problem(
            f"{text}: {why}",
            "install the device's driver and libraries (CUDA: libcuda.so.1 and libcudart.so.13 on "
            "LD_LIBRARY_PATH), or tune for llvm",
        )
    return Finding(name="target", status="ok", message=text)


def _cpu(text: str, value: dict[str, Any]) -> Finding:
    """Judge an llvm target: an unknown CPU is ignored by LLVM, one with more features crashes."""
    native = f'write {{"kind": "llvm", "mcpu": "{value["native"]}"}} for this machine'
    if not value["known"]:
        return _problem(f"{text}: LLVM knows no CPU named {value['cpu']}", native)
    if value["missing"]:
        lacking = ", ".join(value["missing"])
        return _problem(f"{text}: this machine's CPU lacks {lacking}; code would crash", native)
    return Finding(name="target", status="ok", message=text)


def _driver() -> Finding:
    """Ask the NVIDIA driver for devices, in a child process."""
    answer = ask("driver", timeout_s=30)
    driver = answer.value or {"loaded": False, "code": 0, "devices": 0}
    if driver["loaded"] and driver["code"] == 0 and driver["devices"] > 0:
        plural = "s" if driver["devices"] > 1 else ""
        return Finding(name="gpu", status="ok", message=f"{driver['devices']} NVIDIA GPU{plural}")
    if answer.value is None:
        message, fix = f"the NVIDIA driver failed: {answer.failure}", "see what nvidia-smi says"
    elif not driver["loaded"]:
        message = "there is no NVIDIA driver (libcuda.so.1) on this machine"
        fix = "install the driver (in a container: start it with its GPUs), or tune for llvm"
    elif driver["code"]:
        message = f"the NVIDIA driver answers error {driver['code']}"
        fix = "see what nvidia-smi says: driver and kernel module may differ"
    else:
        message = "the NVIDIA driver sees no GPU"
        fix = "look at CUDA_VISIBLE_DEVICES and at how the container was started"
    return Finding(name="gpu", status="problem", message=message, fix=fix)


def _compiler() -> Finding:
    """Look for what TVM compiles CUDA code with."""
    if os.environ.get("TVM_CUDA_COMPILE_MODE", "nvrtc").lower() == "nvcc":
        nvcc = shutil.which("nvcc")
        if nvcc:
            return Finding(name="cuda compiler", status="ok", message=nvcc)
        message, fix = "TVM_CUDA_COMPILE_MODE is nvcc, and nvcc is not on PATH", "unset it"
    else:
        # find_spec of a submodule imports its parent, which may be missing as well.
        if present("cuda") and present("cuda.bindings"):
            return Finding(name="cuda compiler", status="ok", message="NVRTC")
        message = "cuda-bindings, through which TVM calls NVRTC, is not installed"
        fix = f"{PIP_INSTALL} 'autotune-nb[gpu]'"
    return Finding(name="cuda compiler", status="problem", message=message, fix=fix)
