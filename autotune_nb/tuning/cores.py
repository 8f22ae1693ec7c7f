"""How many cores this process may use; asked by the tuner's plan, CPU targets and the doctor."""

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
