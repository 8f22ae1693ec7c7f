"""Checks of Python, TVM's two libraries and the modules that tuning uses."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import sys

from autotune_nb.doctor.child import ask
from autotune_nb.doctor.finding import Finding

TVM_VERSION = "0.27.0.post1"
TVM_FFI_VERSION = "0.1.14.post1"

# Import name -> what to install, and what happens without it.
NEEDED = {
    "cloudpickle": ("cloudpickle", "nothing can be sent to TVM's workers"),
    "filelock": ("filelock", "a run directory cannot be locked"),
    "psutil": ("psutil", "TVM cannot count cores and workers cannot be watched"),
    "xgboost": ("xgboost-cpu", "the cost model that guides the search cannot be trained"),
}
WISHED = {
    "anywidget": ("anywidget", "live plots in notebooks fall back to static ones"),
    "ipywidgets": ("ipywidgets", "there is no live view in notebooks"),
    "onnxruntime": ("onnxruntime", "ONNX networks have no reference and no baseline"),
    "plotly": ("plotly", "there are no plots"),
    "tornado": ("tornado", "nothing can be measured on other machines"),
}

NOT_INSTALLED = "not installed"
PIP_INSTALL = f"{sys.executable} -m pip install"
_FIX_VERSIONS = f"{PIP_INSTALL} apache-tvm=={TVM_VERSION} apache-tvm-ffi=={TVM_FFI_VERSION}"


def python_version() -> Finding:
    """Check that this Python is one TVM's wheels and our tests cover."""
    version = ".".join(map(str, sys.version_info[:3]))
    if (3, 10) <= sys.version_info[:2] <= (3, 13):
        return Finding(name="python", status="ok", message=version)
    return Finding(
        name="python",
        status="problem",
        message=f"{version} is not supported",
        fix="make the environment with Python 3.10, 3.11, 3.12 or 3.13",
    )


def tvm_versions() -> Finding:
    """Compare the installed TVM and tvm-ffi with the one pair that works together."""
    tvm = _installed("apache-tvm")
    ffi = _installed("apache-tvm-ffi")
    if tvm == TVM_VERSION and ffi == TVM_FFI_VERSION:
        return Finding(name="tvm", status="ok", message=f"apache-tvm {tvm}, apache-tvm-ffi {ffi}")
    if tvm is None or ffi is None:
        missing = "apache-tvm" if tvm is None else "apache-tvm-ffi"
        message = f"{missing} is not installed"
    elif tvm != TVM_VERSION:
        message = f"apache-tvm {tvm} is installed; this package drives {TVM_VERSION}"
    else:
        message = (
            f"apache-tvm-ffi {ffi} is installed; apache-tvm {tvm} was built for "
            f"{TVM_FFI_VERSION} and crashes the interpreter with others as soon as it tunes"
        )
    return Finding(name="tvm", status="problem", message=message, fix=_FIX_VERSIONS)


def tvm_abi() -> Finding:
    """Do in a child process what crashes when TVM and tvm-ffi do not fit together."""
    answer = ask("abi")
    if answer.value is None:
        what = (
            "TVM and tvm-ffi do not fit together"
            if answer.crashed
            else "TVM cannot set up a tuning"
        )
        return Finding(
            name="tvm abi",
            status="problem",
            message=f"{what}: {answer.failure}",
            fix=_FIX_VERSIONS,
        )
    version, file = answer.value["version"], answer.value["file"]
    if version != TVM_VERSION:
        # What pip lists is not what Python imports.
        return Finding(
            name="tvm abi",
            status="problem",
            message=f"Python imports TVM {version} from {file}; this package drives {TVM_VERSION}",
            fix="take that directory out of PYTHONPATH or remove that TVM",
        )
    return Finding(name="tvm abi", status="ok", message="a tuning context can be made")


def modules(*, quick: bool) -> list[Finding]:
    """Look for the modules that tuning needs (problems) and that extras need (warnings)."""
    everything = NEEDED | WISHED
    failures = {name: NOT_INSTALLED for name in everything if not present(name)}
    if not quick:
        others = [name for name in everything if name not in failures]
        answer = ask("modules", ",".join(others))
        if answer.value is None:
            failures[" ".join(others)] = answer.failure
        else:
            failures |= answer.value
    findings = []
    for name, reason in failures.items():
        # All of them at once where the child that imported them crashed.
        packages = " ".join(everything[part][0] for part in name.split())
        consequence = everything[name][1] if name in everything else "so would a tuning"
        findings.append(
            Finding(
                name=packages if name in everything else "packages",
                status="warning" if name in WISHED else "problem",
                message=f"cannot be imported ({reason}): {consequence}",
                fix=f"{PIP_INSTALL} --force-reinstall {packages}"
                if reason != NOT_INSTALLED
                else f"{PIP_INSTALL} {packages}",
            )
        )
    if not findings:
        found = f"{len(everything)} needed packages are there"
        findings.append(Finding(name="packages", status="ok", message=found))
    return findings


def _installed(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def present(name: str) -> bool:
    """Tell whether a module could be imported, without importing it."""
    return importlib.util.find_spec(name) is not None
