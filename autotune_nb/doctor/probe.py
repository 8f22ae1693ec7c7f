"""Questions that may crash or initialise a GPU, each asked in a child process of `doctor`.

Run as ``python -m autotune_nb.doctor.probe QUESTION [ARGUMENT]``; the answer is one line of JSON,
the last one printed. No other module may import this one: it loads TVM and initialises CUDA.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import sys
import types
from pathlib import Path
from typing import Any

from autotune_nb.errors import TargetError


def abi() -> dict[str, Any]:
    """Do what a wrong tvm-ffi crashes in: give a tuning context a space generator."""
    # TuneContext imports the tensor intrinsics, which takes half a minute and has no part in this.
    name = "tvm.s_tir.tensor_intrin"
    sys.modules[name] = types.ModuleType(name)
    import tvm
    from tvm import te
    from tvm.s_tir import meta_schedule as ms

    source = te.placeholder((4,), name="source")
    result = te.compute((4,), lambda i: source[i] + 1, name="result")
    function = te.create_prim_func([source, result]).with_attr("global_symbol", "main")
    context = ms.TuneContext(
        mod=tvm.IRModule({"main": function}),
        target=tvm.target.Target({"kind": "llvm", "num-cores": 1}),
        space_generator="post-order-apply",
        search_strategy="evolutionary",
        num_threads=1,
    )
    spaces = context.generate_design_space()
    return {"version": tvm.__version__, "file": tvm.__file__, "spaces": len(spaces)}


def target(text: str, where: str = "here") -> dict[str, Any]:
    """Resolve a target as a tuning would; return it or what is wrong with it.

    Its device must exist unless `where` is not ``here``.
    """
    from autotune_nb.tuning.target import resolve

    try:
        return {"target": str(resolve(text, measured_here=where == "here")), "error": ""}
    except TargetError as error:
        return {"target": "", "error": str(error)}


def driver() -> dict[str, Any]:
    """Ask the NVIDIA driver, without TVM, for its devices."""
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return {"loaded": False, "code": 0, "devices": 0}
    count = ctypes.c_int()
    code = cuda.cuInit(0)
    if code == 0:
        code = cuda.cuDeviceGetCount(ctypes.byref(count))
    return {"loaded": True, "code": code, "devices": count.value}


def cuda_runtime() -> dict[str, Any]:
    """Load the library with which TVM runs CUDA code; return why the loader refuses it, or ''.

    TVM itself says nothing when it does not load: there is just no device then.
    """
    import tvm

    library = Path(tvm.__file__).parent / "lib" / "libtvm_runtime_cuda.so"
    try:
        ctypes.CDLL(str(library))
    except OSError as error:
        return {"error": str(error)}
    return {"error": ""}


def modules(names: str) -> dict[str, Any]:
    """Import modules (names separated by commas); return what went wrong, by name."""
    failures = {}
    for name in names.split(","):
        try:
            importlib.import_module(name)
        except Exception as error:  # an import may raise anything
            failures[name] = f"{type(error).__name__}: {error}"
    return failures


def main(arguments: list[str]) -> None:
    """Answer one question on standard output."""
    question, *rest = arguments
    answers: dict[str, Any] = {
        question.__name__: question for question in (abi, target, driver, cuda_runtime, modules)
    }
    # On a line of its own: TVM writes warnings to either stream.
    sys.stdout.write("\n" + json.dumps(answers[question](*rest)) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
