"""This machine's processor, and the cores and memory this process may use of it."""

from __future__ import annotations

import math
import os
import platform
import re
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


def core_numbers() -> set[int]:
    """Return the numbers of the cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return set(os.sched_getaffinity(0))
    return set(range(os.cpu_count() or 1))


def cpuinfo() -> str:
    """Return what Linux says about the processors; '' elsewhere."""
    try:
        return Path("/proc/cpuinfo").read_text()
    except OSError:
        return ""


def cpu_name(info: str) -> str:
    """Return the maker's name of the processor that `info` is about."""
    match = re.search(r"^model name\s*:\s*(.+)$", info, re.MULTILINE)
    return match[1].strip() if match else platform.processor() or platform.machine()


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
