"""Broken ONNX models: no crash, no hang, no raw traceback, no wrong result."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


def mutations(first: int, count: int, limit_s: float) -> None:
    """Run the mutations in a child, since a crash is one of the things that must not happen."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.network.mutations", str(first), str(count)],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
        timeout=limit_s,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, f"tried {count}\n"), done.stderr[-2000:]


def test_broken_models():
    mutations(0, 80, 200)


@pytest.mark.slow
def test_many_broken_models():
    mutations(10_000, 600, 280)
