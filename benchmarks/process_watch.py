"""Watches a tree of processes at work: its memory over time, and which of them stay behind."""

from __future__ import annotations

import contextlib
import os
import statistics
import threading
import time
from collections.abc import Callable

import psutil

Series = list[tuple[float, float]]


class ProcessWatch:
    """Samples a process and its descendants until `stop`, in a thread of its own.

    Parameters
    ----------
    pid
        The root of the tree, or a function that returns it, or 0 while there is none.
    period_s
        Time between two samples; a process that lives for less may be missed.
    """

    def __init__(self, pid: int | Callable[[], int], period_s: float = 1.0) -> None:
        self._root = pid if callable(pid) else lambda: pid
        self._period_s = period_s
        self._seen: dict[tuple[int, float], float] = {}
        self._started = time.perf_counter()
        self._busy_before = _busy_s() - time.process_time()
        self._wall_s = 0.0
        self._foreign_s = 0.0
        self.memory: Series = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Take no more samples."""
        if not self._ended.is_set():
            self._ended.set()
            self._thread.join()
            self._wall_s = time.perf_counter() - self._started
            busy_s = _busy_s() - time.process_time() - self._busy_before
            self._foreign_s = busy_s - sum(self._seen.values())

    def _run(self) -> None:
        while not self._ended.wait(self._period_s):
            total = 0
            for process in _tree(self._root()):
                with contextlib.suppress(psutil.Error):
                    key = (process.pid, process.create_time())
                    times = process.cpu_times()
                    self._seen[key] = times.user + times.system
                    total += process.memory_info().rss
            if total:
                self.memory.append((round(time.perf_counter() - self._started, 1), total / 2**20))

    def left_behind(self, grace_s: float = 5.0) -> list[str]:
        """Return the processes seen that are still there after `grace_s` seconds."""
        until = time.monotonic() + grace_s
        while (alive := self._alive()) and time.monotonic() < until:
            time.sleep(0.1)
        return [_describe(process) for process in alive]

    def kill_left_behind(self) -> None:
        """Kill the processes seen that are still there."""
        for process in self._alive():
            with contextlib.suppress(psutil.Error):
                process.kill()

    def _alive(self) -> list[psutil.Process]:
        alive = []
        for pid, created in self._seen:
            with contextlib.suppress(psutil.Error):
                process = psutil.Process(pid)
                same = abs(process.create_time() - created) < 0.01
                if same and process.status() != psutil.STATUS_ZOMBIE:
                    alive.append(process)
        return alive

    def summary(self) -> dict[str, object]:
        """Return what was seen, in MiB and cores.

        `flat_over_last_half` compares the medians of the last two quarters: True if the last one
        is at most 5 % larger. The memory is the sum of resident sizes, so what processes share
        is counted once for each of them.
        """
        values = [value for _, value in self.memory]
        quarter = len(values) // 4
        third = statistics.median(values[2 * quarter : 3 * quarter]) if quarter else None
        last = statistics.median(values[3 * quarter :]) if quarter else None
        return {
            "peak_memory_mib": round(max(values, default=0.0)),
            "third_quarter_mib": None if third is None else round(third),
            "last_quarter_mib": None if last is None else round(last),
            "flat_over_last_half": None if third is None or last is None else last <= 1.05 * third,
            "memory_mib": [(t, round(m)) for t, m in _thinned(self.memory)],
            "cores_used_by_others": round(max(0.0, self._foreign_s) / max(self._wall_s, 1e-9), 2),
        }


def _thinned(series: Series, most: int = 60) -> Series:
    step = max(1, -(-len(series) // most))
    return [max(series[i : i + step], key=lambda p: p[1]) for i in range(0, len(series), step)]


def _tree(pid: int) -> list[psutil.Process]:
    if not pid:
        return []
    try:
        root = psutil.Process(pid)
        return [root, *root.children(recursive=True)]
    except psutil.Error:
        return []


def _describe(process: psutil.Process) -> str:
    try:
        return f"{process.pid} {os.path.basename(' '.join(process.cmdline()[:3]))}"  # noqa: PTH119
    except psutil.Error:
        return str(process.pid)


def _busy_s() -> float:
    times = psutil.cpu_times()
    return float(times.user + times.system + getattr(times, "nice", 0.0))
