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

# What a kernel would die of on a CPU without it: LLVM's name -> the name in /proc/cpuinfo.
CPU_FEATURES = {
    "avx": "avx",
    "avx2": "avx2",
    "fma": "fma",
    "avx512f": "avx512f",
    "avx512bw": "avx512bw",
    "avx512vl": "avx512vl",
    "avx512vnni": "avx512_vnni",
    "avx512bf16": "avx512_bf16",
}


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


def target(text: str) -> dict[str, Any]:
    """Let TVM parse a target, and look for its device and its processor's features."""
    import tvm

    try:
        parsed = tvm.target.Target(json.loads(text) if text.lstrip().startswith("{") else text)
    except Exception as error:  # TVM raises whatever the C++ side threw
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        return {"error": lines[-1] if lines else type(error).__name__}
    answer: dict[str, Any] = {"kind": str(parsed.kind.name), "error": ""}
    if answer["kind"] == "llvm":
        answer |= _cpu(parsed)
    elif answer["kind"] != "c":
        answer["enabled"] = bool(tvm.runtime.enabled(answer["kind"]))
        answer["exists"] = answer["enabled"] and bool(tvm.device(answer["kind"], 0).exist)
    return answer


def _cpu(parsed: Any) -> dict[str, Any]:
    """Return the CPU an llvm target names, and what of it this machine's CPU cannot do."""
    from tvm.target import codegen

    known = {str(name) for name in codegen.llvm_get_cpu_archlist(parsed)}
    cpu = str(parsed.attrs.get("mcpu", ""))
    features = {str(feature) for feature in codegen.llvm_get_cpu_features(parsed)}
    cpuinfo = Path("/proc/cpuinfo")
    flags = set(cpuinfo.read_text().split()) if cpuinfo.exists() else set()
    # A target for another architecture shares no flag with this machine: nothing to compare.
    missing = [
        name for name, flag in CPU_FEATURES.items() if name in features and flag not in flags
    ]
    return {
        "cpu": cpu,
        "known": not cpu or cpu in known,
        "native": str(codegen.llvm_get_system_cpu()),
        "missing": missing if flags else [],
    }


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
    answers: dict[str, Any] = {"abi": abi, "target": target, "driver": driver, "modules": modules}
    # On a line of its own: TVM writes warnings to either stream.
    sys.stdout.write("\n" + json.dumps(answers[question](*rest)) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
