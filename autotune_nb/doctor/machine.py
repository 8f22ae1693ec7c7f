"""Checks of the machine: linker, cores, memory, disk, shared memory."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from autotune_nb.doctor.finding import Finding, Status
from autotune_nb.tuning.cores import CGROUP, available_cores

_MIB = 2**20
_GIB = 2**30
# Resident memory of one warm worker while it builds, and of the tuner with its cost model.
_WORKER_BYTES = 400 * _MIB
_TUNER_BYTES = 1200 * _MIB
_FIX_LINKER = (
    "install a C++ compiler (Debian and Ubuntu: apt install g++; conda: conda install "
    "cxx-compiler) or point CXX at one"
)


def linker(*, needed: bool, quick: bool) -> Finding:
    """Look for the compiler with which TVM links libraries; in full, link one.

    Parameters
    ----------
    needed
        Whether tuning itself links (it does for GPU targets); otherwise only exporting does.
    quick
        Only look for the program.
    """
    status: Status = "problem" if needed else "warning"
    loss = "candidates cannot be built" if needed else "tuning works, exporting a library does not"
    command = _compiler()
    named = os.environ.get("CXX") or os.environ.get("CC")
    if command is None:
        what = f"{named}, which CXX or CC names, is no program" if named else "no C++ compiler"
        return Finding(name="linker", status=status, message=f"{what}: {loss}", fix=_FIX_LINKER)
    if not quick:
        failure = _link(command)
        if failure:
            message = f"{command} cannot link a library ({failure}): {loss}"
            return Finding(name="linker", status=status, message=message, fix=_FIX_LINKER)
    return Finding(name="linker", status="ok", message=command)


def _compiler() -> str | None:
    """Return the program TVM links with: CXX, CC, or the first of its names on PATH."""
    named = os.environ.get("CXX") or os.environ.get("CC")
    names = [named] if named else ["g++", "gcc", "clang++", "clang", "c++", "cc"]
    return next((path for name in names if (path := shutil.which(name))), None)


def _link(command: str) -> str:
    """Link a tiny shared library; return what went wrong, or nothing."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        source = directory / "probe.cc"
        source.write_text('#include <cmath>\nextern "C" double f(double x) { return sin(x); }\n')
        try:
            done = subprocess.run(
                [command, "-shared", "-fPIC", "-o", str(directory / "probe.so"), str(source)],
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return str(error)
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    return "" if done.returncode == 0 else (lines[0] if lines else f"exit {done.returncode}")


def cores(workers: int | None) -> Finding:
    """Compare the workers, and the threads TVM was told to use, with the cores there are."""
    count = available_cores()
    plural = "s" if count > 1 else ""
    if workers is not None and workers > count:
        return Finding(
            name="cores",
            status="warning",
            message=f"{workers} workers on {count} core{plural}: they only get in each other's way",
            fix=f"use at most {count} workers",
        )
    for variable in ("TVM_NUM_THREADS", "OMP_NUM_THREADS"):
        value = os.environ.get(variable, "")
        if value.isdigit() and int(value) > count:
            return Finding(
                name="cores",
                status="warning",
                message=f"{variable}={value} on {count} core{plural}: measurements are wrong",
                fix=f"unset {variable}, or set it to {count} or less",
            )
    return Finding(name="cores", status="ok", message=f"{count} core{plural}")


def memory(workers: int | None) -> Finding:
    """Compare free memory with what the tuner and its workers take."""
    free = _available_memory()
    if free is None:
        return Finding(name="memory", status="ok", message="unknown on this system")
    count = workers or available_cores()
    wanted = _TUNER_BYTES + count * _WORKER_BYTES
    message = f"{free / _GIB:.1f} GiB free"
    if free >= wanted:
        return Finding(name="memory", status="ok", message=message)
    return Finding(
        name="memory",
        status="problem" if free < _TUNER_BYTES else "warning",
        message=f"{message}; a tuner with {count} workers takes about {wanted / _GIB:.1f} GiB",
        fix="end other programs, use fewer workers, or raise the container's limit",
    )


def _available_memory() -> int | None:
    """Return the free bytes of the machine or of its container, whichever is less."""
    for line in _read(Path("/proc/meminfo")).splitlines():
        if line.startswith("MemAvailable:"):
            free = int(line.split()[1]) * 1024
            break
    else:
        return None
    limit, used = _read(CGROUP / "memory.max").strip(), _read(CGROUP / "memory.current").strip()
    if limit.isdigit() and used.isdigit():
        free = min(free, int(limit) - int(used))
    return free


def disk(directory: Path) -> Finding:
    """Check that the run directory can be written and has room."""
    existing = directory.absolute()
    while not existing.exists():
        existing = existing.parent
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        return Finding(
            name="disk",
            status="problem",
            message=f"{existing} is not a directory that can be written to",
            fix="put the run somewhere else, or change its permissions",
        )
    free = shutil.disk_usage(existing).free
    message = f"{free / _GIB:.1f} GiB free in {existing}"
    if free >= _GIB:
        return Finding(name="disk", status="ok", message=message)
    return Finding(
        name="disk",
        status="problem" if free < 100 * _MIB else "warning",
        message=f"only {message}; a run takes up to 1 GiB",
        fix="make room, or put the run on another disk",
    )


def shared_memory() -> Finding:
    """Try what worker processes are synchronised with; on Linux it lives in /dev/shm."""
    try:
        with multiprocessing.get_context("spawn").Lock():
            pass
    except OSError as error:
        return Finding(
            name="shared memory",
            status="problem",
            message=f"worker processes cannot be synchronised ({error})",
            fix="mount /dev/shm writable (Docker: --shm-size=1g; by hand: mount -t tmpfs tmpfs "
            "/dev/shm)",
        )
    return Finding(name="shared memory", status="ok", message="usable")


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
