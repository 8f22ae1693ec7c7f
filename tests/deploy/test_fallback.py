"""Fallback schedules: right for every kind of operator, and of the kind they are meant to be."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax
from tvm.s_tir import Schedule
from tvm.s_tir import meta_schedule as ms

from autotune_nb.network.lowering import lower
from autotune_nb.network.network import Network
from autotune_nb.tuning import fallback
from autotune_nb.tuning.blocks import Machine, divisors, largest_divisor
from autotune_nb.tuning.extract import first_uses
from autotune_nb.tuning.target import resolve

nn = relax.op.nn


def conv(channels_last=False, **options):
    if channels_last:
        options.update(data_layout="NHWC", kernel_layout="HWIO")
    return lambda x, w: nn.conv2d(x, w, **options)


def swish(y):
    return y * relax.op.sigmoid(y)


CASES = {
    "conv_nhwc": (conv(True, padding=(1, 1)), [(1, 14, 14, 8), (3, 3, 8, 32)]),
    "conv_nhwc_bias_relu": (
        lambda x, w, b: nn.relu(conv(True, padding=(1, 1), strides=(2, 2))(x, w) + b),
        [(1, 15, 15, 6), (3, 3, 6, 48), (1, 1, 1, 48)],
    ),
    "conv_nhwc_odd": (conv(True), [(2, 7, 11, 3), (2, 2, 3, 7)]),
    "conv_nchw": (conv(padding=(1, 1)), [(1, 8, 20, 20), (12, 8, 3, 3)]),
    "conv_nchw_stride": (conv(padding=(2, 2), strides=(2, 2)), [(1, 3, 33, 33), (16, 3, 5, 5)]),
    "conv_nchw_1x1_image": (conv(), [(1, 32, 1, 1), (8, 32, 1, 1)]),
    "conv_depthwise": (conv(padding=(1, 1), groups=16), [(1, 16, 20, 20), (16, 1, 3, 3)]),
    "conv_grouped": (conv(groups=2), [(1, 8, 10, 10), (6, 4, 3, 3)]),
    "conv_dilated": (conv(dilation=(2, 2)), [(1, 4, 12, 12), (4, 4, 3, 3)]),
    "conv_transpose": (
        lambda x, w: nn.conv2d_transpose(x, w, strides=(2, 2)),
        [(1, 6, 9, 9), (6, 4, 2, 2)],
    ),
    "swish": (
        lambda x, w, b: swish(conv()(x, w) + b),
        [(1, 4, 8, 8), (8, 4, 3, 3), (1, 8, 1, 1)],
    ),
    "matmul": (relax.op.matmul, [(1, 64), (64, 40)]),
    "matmul_batched": (relax.op.matmul, [(2, 5, 12), (2, 12, 9)]),
    "matmul_vector": (relax.op.matmul, [(64,), (64,)]),
    "max_pool_nhwc": (
        lambda x: nn.max_pool2d(x, (3, 3), strides=(2, 2), padding=(1, 1), layout="NHWC"),
        [(1, 16, 16, 24)],
    ),
    "max_pool_nchw": (
        lambda x: nn.max_pool2d(x, (2, 2), strides=(2, 2), ceil_mode=True),
        [(1, 6, 15, 15)],
    ),
    "avg_pool": (lambda x: nn.avg_pool2d(x, (3, 3), padding=(1, 1)), [(1, 4, 12, 12)]),
    "mean_contiguous": (lambda x: relax.op.mean(x, axis=[2, 3]), [(1, 24, 20, 20)]),
    "mean_strided": (lambda x: relax.op.mean(x, axis=[1, 2]), [(1, 20, 20, 24)]),
    "sum_all": (relax.op.sum, [(40, 64)]),
    "max_long": (lambda x: relax.op.max(x, axis=-1), [(64, 512)]),
    "softmax": (lambda x: nn.softmax(x, axis=-1), [(8, 100)]),
    "softmax_inner": (lambda x: nn.softmax(x, axis=1), [(2, 7, 33)]),
    "layer_norm": (
        lambda x, g, b: nn.layer_norm(x, g, b, axes=[-1]),
        [(4, 60), (60,), (60,)],
    ),
    "argmax": (lambda x: relax.op.argmax(x, axis=1), [(6, 50)]),
    "cumsum": (lambda x: relax.op.cumsum(x, axis=1), [(3, 20)]),
    "add": (lambda x, y: x + y, [(3, 5, 7), (3, 5, 7)]),
    "large_elementwise": (lambda x: nn.gelu(x), [(64, 515)]),
    "transpose": (lambda x: relax.op.permute_dims(x, [0, 2, 3, 1]), [(1, 32, 30, 30)]),
    "concat": (lambda x, y: relax.op.concat([x, y], axis=1), [(1, 5, 40, 40), (1, 6, 40, 40)]),
    "pad": (lambda x: nn.pad(x, [0, 0, 1, 2, 3, 1]), [(4, 40, 83)]),
    "resize": (
        lambda x: relax.op.image.resize2d(x, (16, 16), layout="NCHW", method="linear"),
        [(1, 3, 8, 8)],
    ),
    "slice": (lambda x: relax.op.strided_slice(x, [1], [0], [9], [2]), [(4, 9)]),
    "scalar": (lambda x: x * relax.const(2.0), [()]),
    "conv3d": (nn.conv3d, [(1, 3, 6, 8, 8), (4, 3, 3, 3, 3)]),
}
# One schedule for each of these is a promise; the rest may fall through to simpler rules.
MUST_BE_TILED = [name for name in CASES if name.startswith(("conv", "matmul", "max_pool", "mean"))]
MUST_BE_TILED += ["avg_pool", "softmax", "layer_norm", "large_elementwise", "concat", "pad"]


def functions(case, target, dtype="float32"):
    """The TensorIR functions of a case."""
    build, shapes = CASES[case]
    variables = [relax.Var(f"v{i}", relax.TensorType(s, dtype)) for i, s in enumerate(shapes)]
    builder = relax.BlockBuilder()
    with builder.function("main", variables):
        with builder.dataflow():
            output = builder.emit_output(builder.normalize(build(*variables)))
        builder.emit_func_output(output)
    network = Network(name=case, module=builder.get(), params={}, inputs=(), outputs=())
    module = lower(network, target)
    return [module[name] for name in first_uses(module)]


def arrays(function, seed=0):
    generator = np.random.default_rng(seed)
    return [
        generator.uniform(-1, 1, [int(e) for e in p.ty.shape]).astype(str(p.ty.dtype))
        for p in function.params
    ]


def result(function, inputs, target):
    module = tvm.IRModule({"main": function.with_attr("global_symbol", "main")})
    tensors = [tvm.runtime.tensor(array) for array in inputs]
    tvm.compile(module, target=target)["main"](*tensors)
    return tensors[-1].numpy()


@pytest.mark.parametrize("case", CASES)
def test_every_rule_keeps_the_result(case, target):
    for function in functions(case, target):
        inputs = arrays(function)
        expected = result(function, inputs, target)
        for skip in range(fallback.rules_for(target) + 1):
            made = fallback.schedule(function, target, skip=skip)
            np.testing.assert_allclose(
                result(made.function, inputs, target), expected, rtol=2e-5, atol=2e-5
            )


@pytest.mark.parametrize("case", MUST_BE_TILED)
def test_the_best_rule_applies(case, target):
    assert [fallback.schedule(f, target).rule for f in functions(case, target)] == ["tiled"]


def test_a_convolution_is_parallel_unrolled_and_in_vectors(target):
    (function,) = functions("conv_nhwc_bias_relu", target)
    text = fallback.schedule(function, target).function.script()
    assert "T.parallel" in text
    assert "T.unroll" in text
    assert "T.vectorized" in text
    # Bias and ReLU are done with the tile, not in passes of their own.
    assert text.count("T.sblock(") == 5  # root, padding, first and further sums, epilogue
    assert text.count("T.parallel") == 1  # the padding is too small for it


def test_a_tile_fits_the_registers_of_the_machine():
    avx2 = resolve({"kind": "llvm", "mcpu": "haswell", "num-cores": 2}, measured_here=False)
    avx512 = resolve(
        {"kind": "llvm", "mcpu": "skylake-avx512", "num-cores": 2}, measured_here=False
    )
    (function,) = functions("conv_nhwc", avx2)
    assert (Machine.of(avx2).lanes("float32"), Machine.of(avx2).registers) == (8, 16)
    assert (Machine.of(avx512).lanes("float32"), Machine.of(avx512).registers) == (16, 32)
    assert "T.vectorized(T.int64(8))" in fallback.schedule(function, avx2).function.script()
    assert "T.vectorized(T.int64(16))" in fallback.schedule(function, avx512).function.script()


def test_attributes_survive(target):
    (function,) = functions("matmul", target)
    named = function.with_attr("tirx.noalias", True).with_attr("op_pattern", 4)
    made = fallback.schedule(named, target).function
    assert made.attrs["op_pattern"] == 4
    assert made.attrs["tirx.is_scheduled"]


def test_a_function_of_no_known_kind_is_left_as_it_is(target):
    (function,) = functions("scalar", target)
    made = fallback.schedule(function, target, skip=9)
    assert (made.rule, made.function.same_as(function)) == ("as is", True)


def test_a_candidate_can_be_stored_and_replayed(extraction, target):
    for module in extraction.modules:
        for made in fallback.candidates(module, target):
            workload = ms.database.Workload(module)
            record = ms.database.TuningRecord(made.trace, workload, [1.0], target, [])
            again = Schedule(module)
            stored = ms.database.TuningRecord.from_json(record.as_json(), workload)
            stored.trace.apply_to_schedule(again, remove_postproc=False)
            assert tvm_ffi.structural_equal(again.mod, made.mod)


def test_candidates_are_the_fallback_and_variations_of_it(extraction, target):
    conv, pool, mean, dense = (fallback.candidates(m, target) for m in extraction.modules)
    assert len(conv) > 1
    assert len(dense) >= 1
    for schedules, module in zip((conv, pool, mean, dense), extraction.modules, strict=True):
        best = fallback.schedule(module["main"], target)
        assert best.rule == "tiled"
        texts = [made.mod["main"].body for made in schedules]
        assert tvm_ffi.structural_equal(texts[0], best.function.body, map_free_vars=True)
        inputs = arrays(module["main"])
        expected = result(module["main"], inputs, target)
        for made in schedules:
            np.testing.assert_allclose(
                result(made.mod["main"], inputs, target), expected, rtol=2e-5, atol=2e-5
            )


def test_a_tile_can_be_changed_by_a_search(extraction, target):
    (made, *_) = fallback.candidates(extraction.modules[0], target)
    changed = 0
    for instruction, decision in made.trace.decisions.items():
        assert str(instruction.kind.name) == "SamplePerfectTile"
        total = int(decision[0]) * int(decision[1])
        for size in (d for d in (1, 2, 3, 4) if total % d == 0):
            trace = made.trace.with_decision(instruction, [total // size, size], True)
            again = Schedule(extraction.modules[0])
            trace.apply_to_schedule(again, remove_postproc=False)
            changed += 1
    assert changed >= 4


def test_float16_and_int8_are_right(target):
    for dtype, tolerance in (("float16", 2e-2), ("int32", 0)):
        (function,) = functions("matmul", target, dtype)
        inputs = [a if dtype == "float16" else np.full_like(a, 3) for a in arrays(function)]
        expected = result(function, inputs, target)
        made = fallback.schedule(function, target)
        np.testing.assert_allclose(
            result(made.function, inputs, target), expected, rtol=tolerance, atol=tolerance
        )


def test_divisors():
    assert divisors(12, 6) == [1, 2, 3, 4, 6]
    assert largest_divisor(40, 16) == 10
    assert largest_divisor(96, 100, 64) == 96
    assert largest_divisor(128, 100, 16) == 64
    assert largest_divisor(7, 4) == 1
