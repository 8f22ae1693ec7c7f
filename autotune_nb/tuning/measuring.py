"""Who measures what others have built: the devices of this machine, or the servers of a tracker.

Where candidates are timed on the cores that build them, the pipeline lets the builders do it; see
`pipeline`. Everywhere else one of these hands compiled candidates out.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from autotune_nb.errors import TrackerError, TuningFailed
from autotune_nb.run.manifest import Options
from autotune_nb.run.measure import Measure, cores_of
from autotune_nb.tuning import tracker
from autotune_nb.tuning.messages import MeasureOptions
from autotune_nb.tuning.plan import Modules, Plan
from autotune_nb.tuning.process import Answer, Worker, Workers
from autotune_nb.tuning.rounds import Gone, Item

Timing = Callable[[Item], MeasureOptions]

_WAIT_S = 1.0  # for a free server, before the worker listens to the tuner again
_STALE_S = 3.0  # a server whose key nobody uses takes another one after some six seconds
_POLL_S = 2.0
_MOST_WORKERS = 64
_MOST_LOSSES = 3
_MOST_DROPPED = 24
_PATIENCE_S = 300.0
_SESSION_S = 10.0  # sending a library and filling tensors, beside the measurement itself
_GRACE_S = 5.0  # what a server that lives may be late


class Together:
    """The builders, which time what they have built, one at a time and with nothing beside it.

    Parameters
    ----------
    workers, modules, options, device
        As in `Pipeline`.
    """

    present: tuple[str, ...] = ()

    def __init__(self, workers: Workers, modules: Modules, options: Options, device: str) -> None:
        self._workers = workers
        self._module = modules.candidates
        self._options = options
        self._device = device

    def serve(self, built: list[Item], timing: Timing) -> None:
        """Measure the first of the candidates."""
        if not built or built[0].holder is None:
            return
        item, holder = built[0], built[0].holder
        # idle workers are suspended too: their TVM threads spin for a while yet
        for worker in self._workers:
            (worker.resume if worker is holder else worker.suspend)()
        item.status, item.device = "measuring", self._device
        holder.submit(
            ("measure", item),
            f"{self._module}:measure",
            item.key,
            json.dumps(item.source.args_info),
            self._device,
            None,
            timing(item),
            timeout_s=self._options.measure_timeout_s,
        )

    def judge(self, answer: Answer, item: Item) -> Answer | Gone:  # noqa: ARG002  as Remote's
        """Return what a measurement came to."""
        return answer

    def acquired(self, answer: Answer) -> None:
        """Nothing is acquired here."""


class Local:
    """Devices of this machine, each owned by one process.

    Parameters
    ----------
    workers, modules, options, scratch
        As in `Pipeline`.
    devices
        Their names; a set of cores such as ``cpu:0-3`` is a device as well.
    """

    def __init__(
        self,
        workers: Workers,
        modules: Modules,
        options: Options,
        *,
        scratch: str,
        devices: Sequence[str],
    ) -> None:
        self._module = modules.candidates
        self._options = options
        self._scratch = scratch
        self._devices = {workers.add("measure", owns_device=True)[0]: d for d in devices}
        self._bound: dict[Worker, int] = {}

    def serve(self, built: list[Item], timing: Timing) -> None:
        """Give idle processes candidates to measure, taking them from `built`."""
        for worker, device in self._devices.items():
            if worker.busy or not built:
                continue
            item = built.pop(0)
            item.status, item.device = "measuring", device
            self._bind(worker, device)
            worker.submit(
                ("measure", item),
                f"{self._module}:measure",
                item.key,
                json.dumps(item.source.args_info),
                device,
                self._scratch,
                timing(item),
                timeout_s=self._options.measure_timeout_s,
            )

    def _bind(self, worker: Worker, device: str) -> None:
        """Keep a fresh process on its set of cores, before TVM starts threads in it."""
        if device.startswith("cpu:") and self._bound.get(worker) != worker.generation:
            self._bound[worker] = worker.generation
            with contextlib.suppress(ProcessLookupError):  # it has just died: told elsewhere
                os.sched_setaffinity(worker.pid, cores_of(device))

    def judge(self, answer: Answer, item: Item) -> Answer | Gone:  # noqa: ARG002  as Remote's
        """Return what a measurement came to."""
        return answer

    def acquired(self, answer: Answer) -> None:
        """Nothing is acquired here."""

    @property
    def present(self) -> tuple[str, ...]:
        """The devices, where there are several."""
        return tuple(self._devices.values()) if len(self._devices) > 1 else ()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Server:
    """A server that a worker may use: since when."""

    grant: tracker.Grant
    since: float


class Remote:
    """Servers of a tracker, asked for one by one for each candidate.

    A worker first takes a server, then measures a candidate on it, so that it is known which server
    was at work when the worker has to be killed. A measurement that is lost is tried again, on
    another server if there is one; a candidate that is lost time and again is dropped: it is no
    trial, since nobody knows whether it or the servers are to blame.
    """

    def __init__(
        self,
        workers: Workers,
        modules: Modules,
        options: Options,
        *,
        scratch: str,
        device: str,
        measure: Measure,
    ) -> None:
        self._workers = workers
        self._module = modules.remote
        self._options = options
        self._scratch = scratch
        self._device = device
        self._measure = measure
        self._measurers: list[Worker] = workers.add("measure")
        self._held: dict[Worker, _Server] = {}
        self._polled = float("-inf")
        self._good = time.monotonic()
        self._last = "the tracker had no free server"
        self._dropped = 0
        self._present: tuple[str, ...] = ()

    @property
    def present(self) -> tuple[str, ...]:
        """The servers that the tracker last knew of."""
        return self._present

    def serve(self, built: list[Item], timing: Timing) -> None:
        """Let idle workers take servers, and those that have one measure candidates of `built`.

        Raises
        ------
        TuningFailed
            If for minutes no server has measured anything though there was something to measure.
        """
        now = time.monotonic()
        self._grow(now)
        for worker in self._measurers:
            if worker.busy:
                continue
            held = self._held.pop(worker, None)
            if not built:
                continue  # a server that waited for nothing takes another key by itself
            if held is None or now - held.since > _STALE_S:
                waiting = sum(w.busy and w.job[0] == "acquire" for w in self._measurers)
                if waiting < len(built):
                    self._acquire(worker)
                continue
            device = held.grant.device
            item = next((i for i in built if device not in i.lost_on), built[0])
            built.remove(item)
            self._submit(worker, item, held.grant, timing(item))
        measuring = any(w.busy and w.job[0] == "measure" for w in self._measurers)
        if not built or measuring:
            self._good = max(self._good, now if not built else self._good)
        elif now - self._good > _PATIENCE_S:
            raise TuningFailed(
                f"no server of key {self._measure.key} has measured anything for "
                f"{_PATIENCE_S:.0f} s, the last time because {self._last}; start servers for the "
                f"tracker {self._measure.tracker} and resume"
            )

    def acquired(self, answer: Answer) -> None:
        """Take note of what asking the tracker for a server came to."""
        if answer.status == "done" and answer.value is not None:
            self._held[answer.worker] = _Server(grant=answer.value, since=time.monotonic())
        elif answer.status != "done":
            self._last = answer.message or answer.status

    def judge(self, answer: Answer, item: Item) -> Answer | Gone:
        """Return what a measurement came to: an answer to count, or how it was lost."""
        if answer.status == "done":
            status, value = answer.value
            if status == "done":
                self._good = time.monotonic()
                self._dropped = 0
                return self._end(item, dataclasses.replace(answer, value=value))
            if status in ("error", "timeout"):
                self._good = time.monotonic()
                return self._end(item, dataclasses.replace(answer, status=status, message=value))
            reason = value
        elif answer.status == "error":
            status, reason = "lost", answer.message
        else:
            # the server says itself when a candidate takes too long: this one has not answered
            status, reason = "lost", f"the server does not answer ({answer.message})"
        self._last = reason
        item.status = "built"
        if status == "lost":
            item.losses += 1
            item.lost_on.add(item.device)
        if item.losses >= _MOST_LOSSES:
            item.status = "done"
            self._forget(item)
            self._dropped += 1
            if self._dropped >= _MOST_DROPPED:
                raise TuningFailed(
                    f"{self._dropped} candidates in a row were lost {_MOST_LOSSES} times each, the "
                    f"last with: {reason}; look at what the servers say, and resume"
                )
        return Gone(item=item, device=item.device, reason=reason, dropped=item.status == "done")

    def _submit(
        self, worker: Worker, item: Item, grant: tracker.Grant, timing: MeasureOptions
    ) -> None:
        item.status, item.device = "measuring", grant.device
        session_s = self._options.measure_timeout_s + _SESSION_S
        worker.submit(
            ("measure", item),
            f"{self._module}:measure",
            str(self._library(item)),
            json.dumps(item.source.args_info),
            self._device,
            timing,
            (grant, session_s),
            timeout_s=session_s + _GRACE_S,
        )

    def _acquire(self, worker: Worker) -> None:
        worker.submit(
            ("acquire", None),
            f"{self._module}:acquire",
            self._measure,
            _WAIT_S,
            timeout_s=_WAIT_S + _GRACE_S,
        )

    def _grow(self, now: float) -> None:
        """Have as many workers as the tracker has servers."""
        if now - self._polled < _POLL_S:
            return
        self._polled = now
        try:
            self._present = tracker.summary(self._measure, timeout_s=0.5).servers
        except TrackerError as error:
            self._present, self._last = (), str(error)
            return
        wanted = min(_MOST_WORKERS, len(self._present))
        if wanted > len(self._measurers):
            self._measurers += self._workers.add("measure", wanted - len(self._measurers))

    def _end(self, item: Item, answer: Answer) -> Answer:
        self._forget(item)
        return answer

    def _forget(self, item: Item) -> None:
        self._library(item).unlink(missing_ok=True)

    def _library(self, item: Item) -> Path:
        return Path(self._scratch) / f"{item.key}.so"  # as `jobs.library` has it, which loads TVM


def measurers(
    workers: Workers,
    plan: Plan,
    options: Options,
    *,
    scratch: str,
    device: str,
    measure: Measure,
) -> Together | Local | Remote:
    """Return who measures for a run; see `Pipeline` for the parameters."""
    modules = plan.modules
    if measure.remote:
        return Remote(workers, modules, options, scratch=scratch, device=device, measure=measure)
    if plan.exclusive:
        return Together(workers, modules, options, device)
    devices = measure.devices or (device,)
    return Local(workers, modules, options, scratch=scratch, devices=devices)
