"""This project's build workers, driven one batch after the other by a benchmark on a CPU."""

from __future__ import annotations

import json
from typing import Any

import psutil

from autotune_nb.tuning.cores import available_cores
from autotune_nb.tuning.messages import Candidate
from autotune_nb.tuning.preload import TARGET_VARIABLE
from autotune_nb.tuning.process import Worker, Workers

_JOBS = "autotune_nb.tuning.jobs"
_BUILD_TIMEOUT_S, _MEASURE_TIMEOUT_S = 20.0, 10.0


class Builders:
    """Warm workers that build candidates side by side and then time them one by one."""

    def __init__(self, target: str) -> None:
        cores = available_cores()
        self._target = target
        self._workers = Workers(
            {
                TARGET_VARIABLE: target,
                "TVM_NUM_THREADS": str(json.loads(target).get("num-cores", cores)),
                "OMP_NUM_THREADS": "1",
                "OPENBLAS_NUM_THREADS": "1",
            }
        )
        self._builders = self._workers.add("build", cores)

    def close(self) -> None:
        self._workers.close()

    def try_all(
        self, candidates: list[Candidate], best_s: float | None
    ) -> tuple[dict[str, list[float]], float, float]:
        """Build and time candidates.

        Returns the seconds of each repeat by key (none if it failed), the CPU seconds of the
        builds, and the seconds of the measurements.
        """
        cpu_before = {worker.pid: _cpu_s(worker) for worker in self._builders}
        holders, lost_s = self._build(candidates)
        build_s = lost_s + sum(_cpu_s(w) - cpu_before.get(w.pid, 0.0) for w in self._builders)
        results: dict[str, list[float]] = {}
        measure_s = 0.0
        for candidate in candidates:
            times, took_s = self._measure(holders, candidate, best_s)
            results[candidate.key] = times
            measure_s += took_s
            if times:
                best_s = min(times) if best_s is None else min(best_s, *times)
        return results, build_s, measure_s

    def time_again(self, candidates: list[Candidate], turns: int) -> dict[str, float]:
        """Return the least seconds of each candidate in all turns."""
        times: dict[str, list[float]] = {c.key: [] for c in candidates}
        for _ in range(turns):
            holders, _ = self._build(candidates)
            for candidate in candidates:
                found, _ = self._measure(holders, candidate, None)
                times[candidate.key] += [min(found)] if found else []
        return {key: min(t, default=float("inf")) for key, t in times.items()}

    def _build(self, candidates: list[Candidate]) -> tuple[dict[str, Worker], float]:
        """Build; return who holds each candidate, and the seconds of builds that were killed."""
        queued = list(candidates)
        holders: dict[str, Worker] = {}
        lost_s = 0.0
        while queued or any(w.busy for w in self._builders):
            for worker in self._builders:
                if queued and not worker.busy:
                    candidate = queued.pop(0)
                    worker.submit(
                        candidate,
                        f"{_JOBS}:build",
                        candidate.key,
                        candidate.module,
                        self._target,
                        None,
                        timeout_s=_BUILD_TIMEOUT_S,
                    )
            for answer in self._workers.wait(0.5):
                if answer.status == "done":
                    holders[answer.job.key] = answer.worker
                elif answer.status != "error":  # what the dead worker held must be built again
                    lost_s += answer.duration_s
                    lost = {key for key, holder in holders.items() if holder is answer.worker}
                    queued += [c for c in candidates if c.key in lost]
                    for key in lost:
                        del holders[key]
        return holders, lost_s

    def _measure(
        self, holders: dict[str, Worker], candidate: Candidate, best_s: float | None
    ) -> tuple[list[float], float]:
        worker = holders.get(candidate.key)
        if worker is None:
            return [], 0.0
        worker.submit(
            candidate,
            "patient_timing:measure",  # the workers look for modules where this one lies too
            candidate.key,
            json.dumps(candidate.args_info),
            best_s,
            timeout_s=_MEASURE_TIMEOUT_S,
        )
        answers: list[Any] = []
        while not answers:
            answers = self._workers.wait(0.5)
        answer = answers[0]
        if answer.status == "done":
            return [float(t) for t in answer.value], answer.duration_s
        if answer.status != "error":
            for key in [key for key, holder in holders.items() if holder is worker]:
                del holders[key]
        return [], answer.duration_s


def _cpu_s(worker: Worker) -> float:
    try:
        times = psutil.Process(worker.pid).cpu_times()
    except psutil.Error:
        return 0.0
    return float(times.user + times.system)
