"""The cores and memory this process may use: for the tuner's plan, CPU targets and the doctor."""

from __future__ import annotations

import math
import os
from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")


def available_cores() -> int:
    """Return how many cores this process may really use: affinity and container limit."""
    if hasattr(os, "sched_getaffinity"):
        count = len(os.sched_getaffinity(0))
    else:
        count = os.cpu_count() or 1
    try:
        limit = (CGROUP / "cpu.max").read_text().split()
    except OSError:
        limit = []
    if len(limit) == 2 and limit[0].isdigit():
        count = min(count, math.ceil(int(limit[0]) / int(limit[1])))
    return max(count, 1)


def total_memory() -> int | None:
    """Return the bytes of this machine or of its container, whichever is less; None if unknown."""
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return None
    try:
        limit = (CGROUP / "memory.max").read_text().strip()
    except OSError:
        limit = ""
    return min(total, int(limit)) if limit.isdigit() else total
