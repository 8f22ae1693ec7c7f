"""Compiles CUDA candidates with NVRTC without the headers that they do not use.

Every kernel that TVM generates begins with the C++ standard library of CUDA, for type names alone;
parsing it takes 0.7 s of CPU, two to ten times as long as compiling a float32 kernel. A kernel that
needs nothing from it is compiled here after a few typedefs instead. Whatever includes or names more
goes TVM's own way, as does everything that is compiled for deployment.
"""

from __future__ import annotations

import contextlib
import os
import re
from typing import Any

_PREAMBLE = """\
typedef signed char int8_t; typedef short int16_t; typedef int int32_t; typedef long long int64_t;
typedef unsigned char uint8_t; typedef unsigned short uint16_t; typedef unsigned int uint32_t;
typedef unsigned long long uint64_t;
#define __asm__ asm
#define __volatile__ volatile
#ifndef INFINITY
#define INFINITY __int_as_float(0x7f800000)
#endif
"""
# Where NVRTC would read headers: from here to the next line that is #endif alone.
_HEADERS = re.compile(r"^#ifdef __CUDACC_RTC__\n.*?^#endif\n", re.DOTALL | re.MULTILINE)
# What only headers can give, in helpers and kernels.
_NEEDS_MORE = re.compile(
    r"#\s*include|::|\b(half\w*|nv_bfloat16\w*|__half\w*|__nv_\w+|wmma|CUtensorMap|NAN)\b"
)


def lean_source(source: str) -> str | None:
    """Return a generated CUDA source without its headers, or None if it needs them.

    Parameters
    ----------
    source
        What TVM's CUDA code generator made: the headers, helper functions, kernels.
    """
    headers = _HEADERS.search(source)
    if headers is None:
        return None
    rest = source[: headers.start()] + source[headers.end() :]
    return None if _NEEDS_MORE.search(rest) else _PREAMBLE + rest


def compile_lean(source: str, architecture: str, options: list[str]) -> bytes:
    """Compile a CUDA source that includes nothing to a cubin.

    Parameters
    ----------
    source
        Made by `lean_source`.
    architecture
        For example ``sm_90``.
    options
        Further options of NVRTC.

    Raises
    ------
    RuntimeError
        With NVRTC's log, if it does not compile.
    """
    from cuda.bindings import nvrtc

    _, program = _checked(
        nvrtc, nvrtc.nvrtcCreateProgram(source.encode(), b"candidate.cu", 0, None, None)
    )
    try:
        arguments = [f"--gpu-architecture={architecture}", "-default-device", *options]
        encoded = [argument.encode() for argument in arguments]
        (status,) = nvrtc.nvrtcCompileProgram(program, len(encoded), encoded)
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            _, size = nvrtc.nvrtcGetProgramLogSize(program)
            log = b" " * size
            nvrtc.nvrtcGetProgramLog(program, log)
            raise RuntimeError(f"NVRTC: {log.decode(errors='replace').strip(chr(0))}")
        _, size = _checked(nvrtc, nvrtc.nvrtcGetCUBINSize(program))
        cubin = b" " * size
        nvrtc.nvrtcGetCUBIN(program, cubin)
        return bytes(cubin)
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def install(target: Any) -> None:
    """Let TVM compile CUDA through this module in this process, where that is possible.

    Parameters
    ----------
    target
        TVM's target, with its ``arch``.
    """
    import tvm_ffi
    from tvm.support import nvcc

    original = nvcc.tvm_callback_cuda_compile
    architecture = str(target.attrs["arch"])
    # the same that TVM passes, so that a candidate is measured as it will be deployed
    options = ["--use_fast_math", "--device-int128"]
    options += [f"--ptxas-options={flag}" for flag in nvcc._ptxas_option_flags()]

    def compile_cuda(code: str) -> bytes:
        source = lean_source(code) if _by_nvrtc() else None
        if source is not None:
            with contextlib.suppress(RuntimeError):  # TVM's own way then says what is wrong
                return compile_lean(source, architecture, options)
        with target:  # without one it would ask the device, which a builder must not touch
            return bytes(original(code))

    tvm_ffi.register_global_func("tvm_callback_cuda_compile", compile_cuda, override=True)


def _by_nvrtc() -> bool:
    return os.environ.get("TVM_CUDA_COMPILE_MODE", "nvrtc").lower() == "nvrtc"


def _checked(nvrtc: Any, result: tuple[Any, ...]) -> tuple[Any, ...]:
    if result[0] != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise RuntimeError(f"NVRTC: {nvrtc.nvrtcGetErrorString(result[0])}")
    return result
