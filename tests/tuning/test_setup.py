"""Getting ready to tune: without TVM in the tuner, without needless intrinsics in its workers."""

import os
import subprocess
import sys

import pytest

from autotune_nb.tuning import nvrtc, tvm_setup, worker_main


def run(program):
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_the_tuner_process_loads_neither_tvm_nor_numpy():
    program = (
        "import sys; import autotune_nb.tuning.launch, autotune_nb.tuning.tuner;"
        "print([m for m in ('tvm', 'numpy', 'pandas', 'xgboost') if m in sys.modules])"
    )
    assert run(program) == ["[]"]


def test_preparing_for_a_cpu_imports_its_own_intrinsics_only():
    program = (
        "import sys\n"
        "from autotune_nb.tuning import tvm_setup\n"
        "tvm_setup.prepare({'kind': 'llvm', 'mtriple': 'x86_64-linux-gnu'})\n"
        "import tvm.s_tir.tensor_intrin\n"
        "from tvm.s_tir import TensorIntrin\n"
        "TensorIntrin.get('dot_16x4_vnni')\n"
        "print(sorted(m.rpartition('.')[2] for m in sys.modules if 's_tir.tensor_intrin.' in m))"
    )
    assert "".join(run(program)) == "['x86']"


@pytest.mark.parametrize(
    ("target", "names"),
    [
        ({"kind": "llvm", "mtriple": "x86_64-linux-gnu"}, ("x86",)),
        ({"kind": "llvm", "mtriple": "aarch64-linux-gnu"}, ("arm_cpu",)),
        ({"kind": "llvm", "mtriple": "riscv64-linux-gnu"}, ("riscv_cpu",)),
        ({"kind": "cuda"}, ("cuda",)),
        ({"kind": "opencl"}, ()),
    ],
)
def test_intrinsics_by_target(target, names):
    assert tvm_setup.intrinsics_for(target) == names


HEAD = """
#ifdef __CUDACC_RTC__
  #include <cuda/std/cstdint>
  using cuda::std::uint8_t;
#else
  #include <cuda.h>
#endif
#define uint unsigned int
"""
KERNEL = 'extern "C" __global__ void main_kernel(float* __restrict__ x) { x[0] = 1.0f; }\n'


def test_a_plain_kernel_loses_its_headers():
    lean = nvrtc.lean_source(HEAD + KERNEL)
    assert lean is not None
    assert "#include" not in lean
    assert lean.endswith(KERNEL)


def test_helpers_without_headers_stay():
    helper = '__forceinline__ __device__ void wait() { asm volatile("cp.async.wait_group 1;"); }'
    lean = nvrtc.lean_source(HEAD + helper + "\n" + KERNEL)
    assert lean is not None
    assert helper in lean


@pytest.mark.parametrize(
    "source",
    [
        "#include <cuda_fp16.h>\n" + HEAD + KERNEL,
        HEAD + KERNEL.replace("float*", "half*"),
        HEAD + KERNEL.replace("1.0f", "cuda::std::max(1.0f, x[1])"),
        HEAD + "#include <mma.h>\n" + KERNEL,
        KERNEL,
    ],
)
def test_a_kernel_that_needs_more_keeps_them(source):
    assert nvrtc.lean_source(source) is None


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_worker_whose_fork_server_died_knows_that_it_is_an_orphan():
    assert not worker_main.is_orphan(os.getppid())
    program = (
        "import os, sys\n"
        "from autotune_nb.tuning.worker_main import is_orphan\n"
        "print(is_orphan(int(sys.argv[1])), is_orphan(os.getppid()), is_orphan(os.getpid()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(os.getppid())],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    # our parent is its grandparent, as the tuner is of what its fork server forks
    assert done.stdout.split() == ["False", "False", "True"]
