"""Gets TVM ready to tune for a target without what importing it the plain way costs.

``TuneContext`` imports ``tvm.s_tir.tensor_intrin``, whose modules for every kind of hardware parse
hundreds of TVMScript functions and take 10 to 45 seconds of CPU. A target needs only the
intrinsics of its own hardware. They are imported alone here, under a stand-in for the package, and
with an ``inspect.stack`` that reads no source files, since TVMScript calls it for each function
without looking at the source lines.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import sys
import types
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

_PACKAGE = "tvm.s_tir.tensor_intrin"


def intrinsics_for(target: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the submodules of TVM's tensor intrinsics that a target's schedule rules may use.

    Parameters
    ----------
    target
        TVM's target configuration (``kind``, ``mtriple``, …).
    """
    kind = str(target.get("kind", ""))
    if kind == "cuda":
        return ("cuda",)
    if kind in ("rocm", "metal", "hexagon"):
        return (kind,)
    triple = str(target.get("mtriple", ""))
    if kind != "llvm":
        return ()
    if triple.startswith(("aarch64", "arm")):
        return ("arm_cpu",)
    if triple.startswith("riscv"):
        return ("riscv_cpu",)
    return ("x86",)


def prepare(target: Mapping[str, Any]) -> None:
    """Import TVM and the tensor intrinsics of one target; must run before any ``TuneContext``."""
    import tvm

    if _PACKAGE not in sys.modules:
        package = types.ModuleType(_PACKAGE)
        package.__path__ = [str(Path(tvm.__file__).parent / "s_tir" / "tensor_intrin")]
        sys.modules[_PACKAGE] = package
    with _stack_without_source():
        for name in intrinsics_for(target):
            importlib.import_module(f"{_PACKAGE}.{name}")


@contextlib.contextmanager
def _stack_without_source() -> Iterator[None]:
    def stack(context: int = 1) -> list[inspect.FrameInfo]:  # noqa: ARG001  the original's signature
        frame: types.FrameType | None = sys._getframe(1)
        found = []
        while frame is not None:
            code = frame.f_code
            found.append(
                inspect.FrameInfo(frame, code.co_filename, frame.f_lineno, code.co_name, None, None)
            )
            frame = frame.f_back
        return found

    original = inspect.stack
    inspect.stack = stack
    try:
        yield
    finally:
        inspect.stack = original
