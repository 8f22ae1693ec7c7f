"""Checks of the target: whether TVM knows it, and whether its device is here."""

from __future__ import annotations

import json
import os
import shutil

from autotune_nb.doctor.child import Answer, ask
from autotune_nb.doctor.finding import Finding
from autotune_nb.doctor.software import PIP_INSTALL, present
from autotune_nb.tuning import cross

_GPUS = ("cuda", "gpu", "metal", "nvidia", "opencl", "rocm", "vulkan")


def is_gpu(text: str) -> bool:
    """Guess whether a target's candidates run on a GPU, from how it is written.

    TVM is not asked: parsing a CUDA target can initialise CUDA, and loading TVM takes seconds.
    """
    return _kind(text).startswith(_GPUS)


def cross_compiler(text: str) -> list[Finding]:
    """Look for the compiler for a target that is not of this machine; nothing for one that is."""
    try:
        config = json.loads(text)
    except ValueError:
        return []
    if not isinstance(config, dict) or not cross.is_foreign(config):
        return []
    triple = cross.triple_of(config)
    path = cross.find(triple)
    if path:
        return [Finding(name="cross compiler", status="ok", message=path)]
    message, _, fix = cross.missing(triple).partition("; ")
    message = message.removeprefix("target ")
    return [Finding(name="cross compiler", status="problem", message=message, fix=fix)]


def target(text: str, *, quick: bool, here: bool = True) -> list[Finding]:
    """Check a target and, for CUDA, its driver and compiler.

    Parameters
    ----------
    text
        The target as the user wrote it.
    quick
        Leave out what only TVM can tell: whether it knows the target and drives its device. Who
        asks for the quick part resolves the target next anyway.
    here
        Whether its device is to be on this machine.
    """
    findings = []
    if not quick:
        findings.append(_resolved(text, ask("target", text, *([] if here else ["elsewhere"]))))
    if here and _kind(text).startswith(("cuda", "gpu", "nvidia")):
        driver = _driver()
        if driver.status == "problem":
            # Then TVM finds no device either: it is said once, with what mends it.
            findings = []
        elif not quick:
            findings += _runtime()
        findings += [driver, _compiler()]
    return findings


def _kind(text: str) -> str:
    """Return the kind, device or tag with which a target begins."""
    text = text.strip()
    if text.startswith("{"):
        try:
            return str(json.loads(text).get("kind", ""))
        except ValueError:
            return ""
    return text.lower()


def _resolved(text: str, answer: Answer) -> Finding:
    """Judge what resolving a target in a child process came to."""
    if answer.value is None:
        return Finding(
            name="target",
            status="problem",
            message=f"TVM failed on {text}: {answer.failure}",
            fix="put the other problems right first",
        )
    if answer.value["error"]:
        # An error's message says what is wrong; what to do.
        message, _, fix = answer.value["error"].partition("; ")
        return Finding(
            name="target", status="problem", message=message.removeprefix("target "), fix=fix
        )
    return Finding(name="target", status="ok", message=answer.value["target"])


def _runtime() -> list[Finding]:
    """Find out why TVM's CUDA library does not load, if it does not."""
    answer = ask("cuda_runtime")
    error = answer.failure if answer.value is None else answer.value["error"]
    if not error:
        return []
    return [
        Finding(
            name="cuda runtime",
            status="problem",
            message=f"TVM's CUDA library does not load ({error})",
            fix=f"{PIP_INSTALL} 'autotune-nb[gpu]', and put the directory of libcudart.so.13 into "
            "LD_LIBRARY_PATH",
        )
    ]


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
