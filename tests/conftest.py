"""Shared by all tests: own warnings are errors, real models, and skips that say what is missing."""

from __future__ import annotations

import functools
import importlib.util
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

# Shared machines stall for seconds, and a failure must come back on the next run.
hypothesis.settings.register_profile(
    "autotune", deadline=None, derandomize=True, max_examples=50, print_blob=True
)
hypothesis.settings.load_profile("autotune")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol() -> Iterator[None]:
    # pytest has saved the filters before this and restores them after the test.
    warnings.filterwarnings("error", module=r"(autotune_nb|tests)(\.|\Z)")
    return (yield)


@functools.cache
def _missing(marker: str) -> str:
    """Return what a marked test lacks on this machine, or nothing."""
    if marker == "gpu" and not Path("/dev/nvidiactl").exists():
        return "no NVIDIA GPU"
    if marker == "browser" and not (shutil.which("chromium") or shutil.which("chromium-browser")):
        return "no chromium (Debian: apt install chromium)"
    return ""


def pytest_runtest_setup(item: pytest.Item) -> None:
    for marker in ("gpu", "browser"):
        if item.get_closest_marker(marker) and _missing(marker):
            pytest.skip(_missing(marker))


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of the checkout."""
    return Path(__file__).parents[1]


@pytest.fixture(scope="session")
def rapidocr_models() -> Path:
    """The directory with the ONNX models of rapidocr-onnxruntime, whose code is not imported."""
    spec = importlib.util.find_spec("rapidocr_onnxruntime")
    if spec is None or not spec.submodule_search_locations:
        pytest.fail(
            "rapidocr-onnxruntime is missing: pip install --no-deps -r requirements-models.txt"
        )
    return Path(spec.submodule_search_locations[0]) / "models"
