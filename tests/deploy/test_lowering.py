"""Lowering: the same every time, in every process, and constants folded without compiling."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax

from autotune_nb.network.folding import FoldInNumpy
from autotune_nb.network.lowering import lower
from autotune_nb.network.network import Network
from tests.deploy.conftest import tiny_network

HASHES = """
import json
from autotune_nb.tuning.extract import extract
from autotune_nb.tuning.target import resolve
from tests.deploy.conftest import tiny_network
print(json.dumps([task.workload_hash for task in extract(tiny_network(), resolve("llvm")).tasks]))
"""


def module_of(build, *shapes):
    variables = [relax.Var(f"v{i}", relax.TensorType(s, "float32")) for i, s in enumerate(shapes)]
    builder = relax.BlockBuilder()
    with builder.function("main", variables):
        with builder.dataflow():
            output = builder.emit_output(builder.normalize(build(builder, *variables)))
        builder.emit_func_output(output)
    return builder.get()


def folded(module):
    passes = [FoldInNumpy(), relax.transform.CanonicalizeBindings()]
    return tvm.transform.Sequential([*passes, relax.transform.DeadCodeElimination()])(module)


def operators(module):
    found = []

    def visit(expr):
        if isinstance(expr, tvm.ir.Call):
            found.append(expr.op.name)

    relax.analysis.post_order_visit(module["main"], visit)
    return found


def run(module, *arrays):
    executable = tvm.compile(module, target="llvm")
    machine = relax.VirtualMachine(executable, tvm.cpu())
    return machine["main"](*map(tvm.runtime.tensor, arrays)).numpy()


def test_equal_networks_give_equal_modules(target):
    one, other = lower(tiny_network(), target), lower(tiny_network(), target)
    assert list(one.functions) != []
    assert tvm_ffi.structural_equal(one, other)


def test_another_process_finds_the_same_hashes(extraction, repository):
    # JSON databases made elsewhere are matched by these.
    answer = subprocess.run(
        [sys.executable, "-c", HASHES],
        capture_output=True,
        text=True,
        check=True,
        cwd=repository,
        env={"PYTHONHASHSEED": "7", "PATH": "/usr/bin:/bin"},
    )
    assert json.loads(answer.stdout) == [task.workload_hash for task in extraction.tasks]


def test_weights_are_bound_and_functions_fused(target):
    lowered = lower(tiny_network(), target)
    assert len(lowered["main"].params) == 1
    names = {variable.name_hint for variable in lowered.functions} - {"main"}
    assert "fused_conv2d_add_relu" in names
    assert len(names) == 4


def test_reshapes_of_activations_leave_no_function(target):
    module = module_of(
        lambda b, x, w: relax.op.matmul(
            b.emit(relax.op.reshape(b.emit(relax.op.sum(x, [0])), (3, 2))), w
        ),
        (4, 6),
        (2, 5),
    )
    lowered = lower(Network(name="r", module=module, params={}, inputs=(), outputs=()), target)
    assert [v.name_hint for v in lowered.functions if v.name_hint != "main"] == ["sum", "matmul"]


def constant(*shape):
    return relax.const(np.random.default_rng(0).uniform(0.5, 2, shape).astype("float32"))


FOLDS = {
    "reshape": lambda b: relax.op.reshape(constant(6, 4), (1, 8, 3)),
    "expand": lambda b: relax.op.expand_dims(constant(6, 4), [0, 3]),
    "squeeze": lambda b: relax.op.squeeze(constant(1, 6, 1)),
    "permute": lambda b: relax.op.permute_dims(constant(2, 3, 4), [2, 0, 1]),
    "permute_all": lambda b: relax.op.permute_dims(constant(2, 3, 4)),
    "broadcast": lambda b: relax.op.broadcast_to(constant(1, 4), (3, 4)),
    "astype": lambda b: relax.op.astype(relax.op.astype(constant(3), "int32"), "float32"),
    "arithmetic": lambda b: constant(3) * constant(3) + constant(3) - constant(3) / constant(3),
    "roots": lambda b: relax.op.sqrt(relax.op.rsqrt(constant(5))),
    "where": lambda b: relax.op.where(
        relax.op.isnan(relax.const(np.float32([1, np.nan]))),
        relax.const(np.float32([7, 8])),
        relax.op.negative(relax.const(np.float32([1, 2]))),
    ),
    "extremes": lambda b: relax.op.maximum(constant(3), relax.op.minimum(constant(3), constant(3))),
}


@pytest.mark.parametrize("name", FOLDS)
def test_folding_gives_what_tvm_computes(name):
    def build(builder, x):
        # the value itself, and something left to do at run time
        value = builder.emit(FOLDS[name](builder))
        return relax.op.add(relax.op.sum(x), value)

    module = module_of(build, (2, 2))
    assert operators(folded(module)) == ["relax.sum", "relax.add"]
    x = np.ones((2, 2), "float32")
    np.testing.assert_allclose(run(folded(module), x), run(module, x), rtol=1e-6)


def test_a_chain_through_variables_is_folded():
    def build(builder, x):
        a = builder.emit(relax.op.reshape(constant(8), (2, 4)))
        c = builder.emit(relax.op.permute_dims(a))
        return relax.op.matmul(x, c)

    assert operators(folded(module_of(build, (3, 4)))) == ["relax.matmul"]


def test_what_grows_or_divides_integers_is_left_alone():
    def grows(builder, x):
        big = builder.emit(relax.op.broadcast_to(constant(1, 4), (100_000, 4)))
        return relax.op.add(big, x)

    def divides(builder, x):
        half = builder.emit(relax.const(np.int32([-7])) / relax.const(np.int32([2])))
        return relax.op.add(x, relax.op.astype(half, "float32"))

    assert operators(folded(module_of(grows, (1, 4)))) == ["relax.broadcast_to", "relax.add"]
    assert "relax.divide" in operators(folded(module_of(divides, (1,))))
