"""A run of the tiny MLP, made once; each test tunes a copy of it."""

import os
import shutil
import time

import psutil
import pytest

from autotune_nb.session import TuningSession


@pytest.fixture(scope="session")
def untuned_run(tmp_path_factory):
    import autotune_nb as at

    path = tmp_path_factory.mktemp("runs") / "mlp"
    TuningSession.create(path, at.network("mlp"), "llvm", batch_size=8, min_repeat_ms=5)
    return path


@pytest.fixture
def session(untuned_run, tmp_path):
    """A session on a fresh copy; whatever still tunes it at the end is killed."""
    path = tmp_path / "run"
    shutil.copytree(untuned_run, path)
    opened = TuningSession.open(path)
    yield opened
    holder = opened.holder
    if holder.alive and holder.pid != os.getpid():
        psutil.Process(holder.pid).kill()


@pytest.fixture
def until():
    """Wait for a condition and fail with what it was about if it never holds."""

    def wait(condition, what, timeout_s=60.0):
        deadline = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < deadline, f"waited {timeout_s} s in vain for {what}"
            time.sleep(0.02)

    return wait
