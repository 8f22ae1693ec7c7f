"""Warm worker processes seen from the tuner: they keep TVM loaded, and can be killed in a job.

A process pool of the standard library can neither kill one job nor keep state in a chosen worker,
and starting a Python with TVM in it costs seconds. So a fork server that has loaded TVM once, and
has touched no device, forks each worker in milliseconds; each worker has a pipe of its own.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import multiprocessing
import os
import queue
import signal
import threading
import time
from multiprocessing.connection import Connection
from typing import Any

import psutil

from autotune_nb.errors import TuningFailed
from autotune_nb.tuning import worker_main
from autotune_nb.tuning.plan import TVM_MODULES

_MOST_IDLE_DEATHS = 20
_START_TRIES = 8
_WEIGH_S = 0.1
_GIB = 2**30


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What became of a job.

    Attributes
    ----------
    worker, job
        Who did it, and the tag it was submitted with.
    status
        ``done`` (with `value`), ``error`` (with `message`), ``timeout`` or ``crash``; after the
        last two the worker is a fresh process that has lost what it held.
    """

    worker: Worker
    job: Any
    status: str
    value: Any = None
    message: str = ""
    duration_s: float = 0.0


class Worker:
    """One worker process; made by `Workers.add`."""

    _numbers = itertools.count()

    def __init__(self, owner: Workers, role: str, context: Any, memory_bytes: int | None) -> None:
        self.role = role
        self.most_bytes = memory_bytes
        self._context = context
        self.number = next(self._numbers)
        self.job: Any = None
        self.started = 0.0
        self.deadline: float | None = None
        self.generation = 0
        self.stopped = False
        self._owner = owner
        self._spawn()

    def __repr__(self) -> str:
        return f"<{self.role} worker {self.number}>"

    @property
    def busy(self) -> bool:
        """True while it has a job."""
        return self.job is not None

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid or 0

    def submit(self, job: Any, function: str, *arguments: Any, timeout_s: float | None) -> None:
        """Give an idle worker a job; `job` is any tag that is not None.

        A time-out counts only while the worker is not suspended.
        """
        if self.busy:
            raise RuntimeError(f"{self!r} is busy")
        self.job = job
        self.started = time.monotonic()
        self.deadline = None if timeout_s is None else self.started + timeout_s
        # a worker that has just died is reported through its closed pipe
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._connection.send((function, arguments))

    def memory_bytes(self) -> int:
        """Return its resident memory in bytes, 0 if it is gone."""
        try:
            return int(psutil.Process(self.pid).memory_info().rss)
        except psutil.Error:
            return 0

    def suspend(self) -> None:
        """Stop it from using any CPU until `resume`."""
        if not self.stopped:
            self.stopped = True
            self._suspended_at = time.monotonic()
            self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on after `suspend`."""
        if self.stopped:
            self.stopped = False
            self._signal(signal.SIGCONT)
            if self.deadline is not None:
                self.deadline += time.monotonic() - self._suspended_at

    def restart(self) -> None:
        """Kill the process and start a fresh one; its job is forgotten."""
        self.kill()
        self._spawn()

    def kill(self) -> None:
        """Kill the process."""
        self.job = self.deadline = None
        self.stopped = False
        self.generation += 1  # what its reader still delivers is of the past
        if self._process.exitcode is None:  # else its number may be another process's by now
            self._signal(signal.SIGKILL)
        self._process.join(timeout=5)
        self._connection.close()

    def _spawn(self) -> None:
        ours, theirs = multiprocessing.Pipe()
        self.job = self.deadline = None
        self._connection: Connection = ours
        self._process = self._start(theirs)
        theirs.close()
        # One thread a worker reads its answers: a large answer of a worker that is suspended in the
        # middle of sending must not block the tuner, which alone can resume it.
        threading.Thread(
            target=_read, args=(self, ours, self.generation, self._owner.answers), daemon=True
        ).start()

    def _start(self, theirs: Connection) -> Any:
        """Start the process; a fork server that died is replaced by the next attempt."""
        for attempt in range(_START_TRIES):
            process = self._context.Process(
                target=worker_main.main,
                args=(theirs, self._owner.environment, self._owner.preload, os.getpid()),
                daemon=True,
                name=f"autotune-nb-{self.role}-{self.number}",
            )
            try:
                process.start()
            except (EOFError, OSError) as error:
                if attempt == _START_TRIES - 1:
                    raise TuningFailed(
                        f"a {self.role} process cannot be started ({type(error).__name__}: "
                        f"{error}); look into the run's tuner.log, and resume"
                    ) from error
                time.sleep(0.1 * attempt)
            else:
                return process
        raise AssertionError

    def _signal(self, number: int) -> None:
        if self.pid:  # 0 would be everything in our process group
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)


class Workers:
    """All workers of a tuner.

    Parameters
    ----------
    environment
        Variables set in the fork server and in every worker.
    preload
        Module that is imported once, by the fork server.
    """

    def __init__(self, environment: dict[str, str], preload: str = TVM_MODULES.preload) -> None:
        self.environment = environment
        self.preload = preload
        self.answers: queue.SimpleQueue[tuple[Worker, int, bool, Any]] = queue.SimpleQueue()
        self._fork = multiprocessing.get_context("forkserver")
        self._spawn = multiprocessing.get_context("spawn")
        os.environ.update(environment)  # the fork server takes its preload's settings from here
        self._fork.set_forkserver_preload([preload])
        self._workers: list[Worker] = []
        self._idle_deaths = 0
        self._weighed = 0.0

    def add(
        self,
        role: str,
        count: int = 1,
        *,
        owns_device: bool = False,
        memory_bytes: int | None = None,
    ) -> list[Worker]:
        """Start `count` workers with a role for their names.

        One that `owns_device` is started afresh instead of forked: loading TVM is enough for CUDA
        to fail in every process that is forked afterwards, though not for compiling there. One
        whose job takes more than `memory_bytes` is killed.
        """
        context = self._spawn if owns_device else self._fork
        new = [Worker(self, role, context, memory_bytes) for _ in range(count)]
        self._workers += new
        return new

    def __iter__(self) -> Any:
        return iter(self._workers)

    def wait(self, timeout_s: float) -> list[Answer]:
        """Return what has ended within `timeout_s`, at once if anything has.

        Workers past their time-out or their memory are killed and restarted here.
        """
        answers: list[Answer] = []
        now = time.monotonic()
        deadlines = [w.deadline for w in self._workers if w.deadline is not None and not w.stopped]
        until = min([now + timeout_s, *deadlines])
        block = max(0.0, until - now)
        while True:
            try:
                worker, generation, fine, payload = self.answers.get(timeout=block)
            except queue.Empty:
                break
            block = 0.0
            if generation == worker.generation:
                answers.append(self._answer(worker, fine, payload))
        now = time.monotonic()
        for worker in self._workers:
            if worker.deadline is None or worker.stopped or worker.deadline > now:
                continue
            job, took = worker.job, now - worker.started
            worker.restart()
            answers.append(
                Answer(
                    worker=worker,
                    job=job,
                    status="timeout",
                    message=f"killed after {took:.1f} s",
                    duration_s=took,
                )
            )
        return answers + self._weigh(now)

    def _weigh(self, now: float) -> list[Answer]:
        """Kill workers that have taken too much memory, before the whole machine suffers."""
        if now - self._weighed < _WEIGH_S:
            return []
        self._weighed = now
        answers: list[Answer] = []
        for worker in self._workers:
            most = worker.most_bytes
            if most is None or worker.stopped or not worker.busy:
                continue
            taken = worker.memory_bytes()
            if taken <= most:
                continue
            job, took = worker.job, now - worker.started
            worker.restart()
            message = (
                f"killed because it took {taken / _GIB:.1f} GiB of memory; a build process may "
                f"take {most / _GIB:.1f} GiB here, or more if there are fewer of them"
            )
            answers.append(
                Answer(worker=worker, job=job, status="crash", message=message, duration_s=took)
            )
        return answers

    def close(self) -> None:
        """Kill all workers."""
        for worker in self._workers:
            worker.kill()
        self._workers.clear()

    def _answer(self, worker: Worker, fine: bool, payload: Any) -> Answer:
        job, took = worker.job, time.monotonic() - worker.started
        if not fine:
            code = _exit_text(worker._process)
            if job is None:
                self._idle_deaths += 1
                if self._idle_deaths > _MOST_IDLE_DEATHS:
                    raise TuningFailed(
                        f"the {worker.role} workers die before they have done anything ({code}); "
                        "run 'autotune-nb doctor' and look into the run's tuner.log"
                    )
            worker.restart()
            return Answer(worker=worker, job=job, status="crash", message=code, duration_s=took)
        worker.job = worker.deadline = None
        self._idle_deaths = 0
        good, value = payload
        if good:
            return Answer(worker=worker, job=job, status="done", value=value, duration_s=took)
        return Answer(worker=worker, job=job, status="error", message=value, duration_s=took)


def _read(
    worker: Worker, connection: Connection, generation: int, answers: queue.SimpleQueue[Any]
) -> None:
    while True:
        try:
            payload = connection.recv()
        except (EOFError, OSError, TypeError, ValueError):
            answers.put((worker, generation, False, None))
            return
        answers.put((worker, generation, True, payload))


def _exit_text(process: Any) -> str:
    process.join(timeout=5)
    code = process.exitcode
    if code is None:
        return "the process hung up without exiting"
    if code < 0:
        try:
            return f"the process was killed by {signal.Signals(-code).name}"
        except ValueError:
            return f"the process was killed by signal {-code}"
    return f"the process exited with code {code}"
