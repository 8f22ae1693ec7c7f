"""Starts a tuner: as a process of its own that outlives who started it, or in this one."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.metadata
import json
import os
import platform
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from autotune_nb.errors import AutotuneError, RunError, RunLockedError, TuningFailed
from autotune_nb.run import database
from autotune_nb.run import events as ev
from autotune_nb.run.directory import RunDirectory, RunWriter
from autotune_nb.run.measure import Measure, cores_of
from autotune_nb.tuning import cores, rpc_ask
from autotune_nb.tuning.clock import Clock
from autotune_nb.tuning.messages import TARGET_VARIABLE
from autotune_nb.tuning.pipeline import Pipeline
from autotune_nb.tuning.plan import TVM_MODULES, Modules, make_plan
from autotune_nb.tuning.process import Workers
from autotune_nb.tuning.tuner import Tuner

_START_TIMEOUT_S = 30.0
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_RESERVE_BYTES = 64 << 10
_COMMAND = ("-m", "autotune_nb.tuning")
_PACKAGES = ("apache-tvm", "apache-tvm-ffi", "xgboost-cpu", "autotune-nb")


def versions() -> dict[str, str]:
    """Return the versions that decide what a run's candidates are."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def check_versions(made_by: Mapping[str, str], path: Path) -> None:
    """Raise RunError if a run was made by another TVM: its schedules may mean something else."""
    for package in ("apache-tvm", "apache-tvm-ffi"):
        made, here = made_by.get(package), versions().get(package)
        if made and here and made != here:
            raise RunError(
                f"{path}: was made with {package} {made}, this environment has {here}; tune it "
                f"there, install {package}=={made}, or tune the network in a new directory"
            )


def check_origin(run: RunDirectory) -> None:
    """Raise RunError if a run's trials would not fit those it has.

    That is so with another TVM, on another processor, or with workloads that are not the run's.
    What such a run holds can still be read, plotted, compiled and exported.
    """
    manifest = run.manifest
    check_versions(manifest.versions, run.path)
    here = cores.cpu_name(cores.cpuinfo())
    remote = Measure.from_json(manifest.measure).remote
    if not remote and manifest.device.startswith("cpu") and manifest.device_name not in ("", here):
        raise RunError(
            f"{run.path}: was measured on {manifest.device_name}, this machine has {here}: their "
            "times cannot be compared; tune it there, or make a new run here from its records"
        )
    if database.workload_hashes(run.path) != [task.workload_hash for task in manifest.tasks]:
        raise RunError(
            f"{run.path / database.WORKLOAD_FILE}: holds other workloads than the tasks of this "
            "run; restore it from a copy, or tune the network in a new directory"
        )


def start(path: Path) -> int:
    """Start a tuner for a run as a process of its own and return its process id.

    It goes on when the caller ends; it stops when the run's budget is spent or on request.

    Raises
    ------
    RunLockedError
        If the run is being tuned already.
    RunError
        If the run is read-only, or does not belong here: see `check_origin`.
    TuningFailed
        If the process ends before it holds the run.
    """
    run = RunDirectory(path)
    if run.manifest.read_only:
        raise RunError(
            f"{path}: was {run.manifest.origin} and is read-only; tune the network in a new "
            "directory"
        )
    check_origin(run)
    holder = run.holder()
    if holder.alive:
        raise RunLockedError(
            f"{path}: process {holder.pid or '?'} is tuning this run already; watch it with "
            f"'autotune-nb watch {path}' or end it with 'autotune-nb stop {path}'"
        )
    measure = Measure.from_json(run.manifest.measure)
    if measure.remote:
        rpc_ask.probe(measure, run.manifest.target, run.manifest.device)
    try:
        log = run.tuner_log.open("ab")
    except OSError as error:
        raise RunError(
            f"{path}: cannot be written to ({error.strerror}); make the directory writable, or "
            "copy it and tune the copy"
        ) from error
    offset = log.tell()
    with log:
        process = subprocess.Popen(
            [sys.executable, *_COMMAND, str(path.resolve())],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,  # a Ctrl-C in a notebook or terminal is not for the tuner
            cwd=path,
        )
    deadline = time.monotonic() + _START_TIMEOUT_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            if process.returncode == 0:
                return process.pid  # it had nothing left to do
            with run.tuner_log.open("rb") as written:
                written.seek(offset)
                said = written.read().decode("utf-8", "replace").strip().splitlines()
            last = said[-1] if said else f"exit code {process.returncode}"
            if process.returncode == RunError.exit_code:
                raise RunError(last)
            raise TuningFailed(f"{path}: the tuner did not start: {last} (see {run.tuner_log})")
        holder = run.holder()
        if holder.alive and holder.pid == process.pid:
            return process.pid
        time.sleep(0.02)
    process.kill()
    raise TuningFailed(f"{path}: the tuner did not start within {_START_TIMEOUT_S:.0f} s")


def serve(path: str, modules: Modules = TVM_MODULES) -> int:
    """Tune a run in this process; return an exit code: 0 done, 1 failed, 2 bad run."""
    heard: list[int] = []
    for number in _SIGNALS:  # from the start: a run that is being mended is not cut off either
        signal.signal(number, lambda n, _: heard.append(n))
    try:
        with RunWriter(path) as writer:
            outcome = _tune(writer, modules, heard)
    except AutotuneError as error:
        with contextlib.suppress(OSError):  # the log may lie on the disk that is full
            sys.stderr.write(f"{error}\n")
        return error.exit_code
    return 1 if outcome == "failed" else 0


def _tune(writer: RunWriter, modules: Modules, heard: list[int]) -> str:
    manifest = writer.directory.manifest
    measure = Measure.from_json(manifest.measure)
    sets = {n for d in measure.devices if d.startswith("cpu") for n in cores_of(d)}
    if sets:  # all but what measures stays off them, this process and so those that it starts
        os.sched_setaffinity(0, cores.core_numbers() - sets or sets)
    count = cores.available_cores()
    plan = make_plan(manifest, count, cores.total_memory())
    plan = dataclasses.replace(plan, modules=modules)
    clock = Clock(writer.state.used_s)
    writer.commit(
        [
            ev.TunerStarted(
                time=time.time(),
                used_s=clock.used_s,
                pid=os.getpid(),
                host=socket.gethostname(),
                versions=versions(),
                workers={"search": plan.searchers, "build": plan.builders},
            )
        ],
        sync=True,
    )
    target = json.dumps(manifest.target)
    threads = manifest.target.get("num-cores", count)
    workers = Workers(
        {
            TARGET_VARIABLE: target,
            "TVM_NUM_THREADS": str(threads),
            # TVM binds threads to the machine's first cores, whatever set the process is kept on
            **({"TVM_BIND_THREADS": "0"} if sets else {}),
            # the workers are the parallelism; libraries in them must not start threads of their own
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
        },
        modules.preload,
    )
    scratch = writer.directory.path / "scratch"
    try:
        _prepare(scratch)
        pipeline = Pipeline(
            workers,
            plan,
            manifest.options,
            directory=str(writer.directory.path.resolve()),
            target=target,
            device=manifest.device,
            scratch=str(scratch),
            measure=measure,
        )
        tuner = Tuner(writer, pipeline, clock)
        for number in _SIGNALS:
            signal.signal(number, lambda n, _: tuner.interrupt(signal.Signals(n).name))
        for early in heard:
            tuner.interrupt(signal.Signals(early).name)
        return tuner.run()
    except Exception as error:
        shutil.rmtree(scratch, ignore_errors=True)  # a full disk has room for the reason then
        known = isinstance(error, AutotuneError)
        stopped = ev.TunerStopped(
            time=time.time(),
            used_s=clock.used_s,
            outcome="failed",
            reason=str(error) if known else f"{type(error).__name__}: {error}",
        )
        with contextlib.suppress(AutotuneError):
            writer.commit([stopped], sync=True)
        raise
    finally:
        workers.close()
        shutil.rmtree(scratch, ignore_errors=True)


def _prepare(scratch: Path) -> None:
    """Make the folder for exported candidates, and in it a file to be freed on a full disk."""
    try:
        shutil.rmtree(scratch, ignore_errors=True)  # of a tuner that was killed
        scratch.mkdir()
        (scratch / "reserve").write_bytes(bytes(_RESERVE_BYTES))
    except OSError as error:
        raise TuningFailed(
            f"{scratch}: cannot be made ({error.strerror}); free some space and resume"
        ) from error
