"""Compiles CUDA candidates with NVRTC without the headers that they do not use.

Every kernel that TVM generates begins with the C++ standard library of CUDA, for type names alone;
parsing it takes 0.7 s of CPU, two to ten times as long as compiling a float32 kernel. A kernel that
needs nothing from it is compiled here after a few typedefs instead. Whatever includes or names more
goes TVM's own way, as does everything that is compiled for deployment.
"""

from __future__ import annotations

import re
from typing import Any

_PREAMBLE = """\
typedef signed char int8_t; typedef short int16_t; typedef int int32_t; typedef long long int64_t;
typedef unsigned char uint8_t; typedef unsigned short uint16_t; typedef unsigned int uint32_t;
typedef unsigned long long uint64_t;
typedef unsigned int uint; typedef unsigned char uchar; typedef unsigned short ushort;
#ifndef INFINITY
#define INFINITY __int_as_float(0x7f800000)
#endif
"""
# The only headers whose names TVM puts before a kernel that needs no header.
_KNOWN = {"cuda/std/cstdint", "cuda/std/type_traits", "cstdint", "type_traits", "cuda.h"}
# What only headers, or definitions in the preamble that is left out, can give.
_NEEDS_MORE = re.compile(
    r"::|\b(half|nv_bfloat16|__half\w*|__nv_\w+|wmma|CUtensorMap|NAN|__pack\w*|make_half\w*"
    r"|tvm_\w+|__shfl\w*_sync_\w+)\b|<\w+>"
)


def lean_source(source: str) -> str | None:
    """Return a generated CUDA source without its headers, or None if it needs them.

    Parameters
    ----------
    source
        What TVM's CUDA code generator made.
    """
    start = source.find('extern "C"')
    if start < 0:
        return None
    head, body = source[:start], source[start:]
    includes = re.findall(r'#\s*include\s*[<"]([^>"]+)', source)
    if not set(includes) <= _KNOWN or "#include" in body:
        return None
    # Functions and types that TVM defines before the kernel exist for the kernel to use.
    if re.search(r"\b(struct|class|template|inline|__device__)\b", head):
        return None
    if _NEEDS_MORE.search(body):
        return None
    return _PREAMBLE + body


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
        source = lean_source(code)
        if source is None:
            return bytes(original(code))
        try:
            return compile_lean(source, architecture, options)
        except RuntimeError:
            return bytes(original(code))

    tvm_ffi.register_global_func("tvm_callback_cuda_compile", compile_cuda, override=True)


def _checked(nvrtc: Any, result: tuple[Any, ...]) -> tuple[Any, ...]:
    if result[0] != nvrtc.nvrtcResult.NVRTC_SUCCESS:
        raise RuntimeError(f"NVRTC: {nvrtc.nvrtcGetErrorString(result[0])}")
    return result
