"""Winograd formulations: right to the last tile, offered where they can win, chosen by time."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
import tvm
from tvm import relax

from autotune_nb.deploy.compile import compile_network, compile_run
from autotune_nb.network import winograd
from autotune_nb.network.lowering import lower
from autotune_nb.network.network import Network, TensorSpec
from autotune_nb.network.winograd_functions import transformed_weights
from autotune_nb.network.winograd_match import match
from autotune_nb.run import database
from autotune_nb.run.directory import RunDirectory, RunWriter
from autotune_nb.run.manifest import Options
from autotune_nb.tuning import create, fallback
from autotune_nb.tuning.extract import extract
from tests.deploy.conftest import record_line
from tests.run.conftest import Teller

# Of the largest output of a single convolution, in float32.
ERRORS = {"winograd2": 2e-6, "winograd4": 2e-5}


def convolution(
    shape=(1, 14, 15, 32), filters=32, kernel=(3, 3), follow=None, bound=True, seed=0, **attributes
):
    """A network of one convolution of NHWC, and its weights in HWIO."""
    generator = np.random.default_rng(seed)
    groups = attributes.get("groups", 1)
    dtype = attributes.pop("dtype", "float32")
    layout = attributes.pop("kernel_layout", "HWIO")
    weights = generator.standard_normal((*kernel, shape[3] // groups, filters))
    weights = (weights / np.sqrt(9 * shape[3])).astype(dtype)
    stored = np.ascontiguousarray(weights.transpose(["HWIO".index(axis) for axis in layout]))
    x = relax.Var("x", relax.TensorType(shape, dtype))
    w = relax.Var("w", relax.TensorType(stored.shape, dtype))
    builder = relax.BlockBuilder()
    with builder.function("main", [x, w]):
        with builder.dataflow():
            y = builder.emit(
                relax.op.nn.conv2d(x, w, data_layout="NHWC", kernel_layout=layout, **attributes)
            )
            if follow is not None:
                y = builder.emit(follow(builder, y))
            output = builder.emit_output(y)
        builder.emit_func_output(output)
    inputs = [TensorSpec(name="x", shape=shape, dtype=dtype)]
    params = {"w": stored}
    if not bound:
        inputs.append(TensorSpec(name="w", shape=stored.shape, dtype=dtype))
        params = {}
    found = Network(
        name="one",
        module=builder.get(),
        params=params,
        inputs=tuple(inputs),
        outputs=(TensorSpec(name="y", shape=tuple(int(e) for e in output.ty.shape), dtype=dtype),),
        layout="NHWC",
    )
    return found, weights


def expected(x, weights, pads=(1, 1, 1, 1)):
    """The same convolution in double precision."""
    top, left, bottom, right = pads
    wide = np.pad(x.astype("float64"), ((0, 0), (top, bottom), (left, right), (0, 0)))
    height, width = wide.shape[1] - 2, wide.shape[2] - 2
    return sum(
        np.einsum("nhwc,ck->nhwk", wide[:, i : i + height, j : j + width], weights[i, j])
        for i in range(3)
        for j in range(3)
    )


def bias_and_sigmoid(builder, y):
    bias = relax.const(np.arange(32, dtype="float32").reshape(1, 1, 1, 32) / 32)
    y = builder.emit(relax.op.add(y, bias))
    # The sum is read twice, so the element of the convolution is too.
    return relax.op.multiply(y, relax.op.sigmoid(y))


CASES = {
    "tiles fit": {"shape": (1, 16, 16, 32), "padding": (1, 1)},
    "tiles overhang, two images": {"shape": (2, 13, 15, 32), "filters": 64, "padding": (1, 1)},
    "uneven padding": {"shape": (1, 17, 15, 32), "padding": (2, 1, 0, 1)},
    "no padding": {"shape": (1, 18, 19, 32), "padding": (0, 0)},
    "filters first, and an epilogue": {
        "kernel_layout": "OHWI",
        "follow": bias_and_sigmoid,
        "padding": (1, 1),
    },
    "eight filters together": {"filters": 40, "padding": (1, 1)},
}


@pytest.mark.parametrize("formulation", ERRORS)
@pytest.mark.parametrize("case", CASES)
def test_it_computes_the_convolution(case, formulation, target, monkeypatch):
    # Whether it is worth while is another question.
    monkeypatch.setattr(winograd, "_worthwhile", lambda geometry: tuple(ERRORS))
    network, weights = convolution(**CASES[case])
    (name,) = winograd.offers(lower(network, target))
    library = compile_network(network, target, formulations={name: formulation})
    assert any(f"{formulation}_products" in label for label, _ in library.coverage.fallback)
    x = np.random.default_rng(3).standard_normal(network.inputs[0].shape).astype("float32")
    padding = CASES[case]["padding"]
    right = expected(x, weights, padding if len(padding) == 4 else 2 * padding)
    if "follow" in CASES[case]:
        right = right + np.arange(32) / 32
        right = right / (1 + np.exp(-right))
    (output,) = library.run([x])
    error = np.abs(output - right).max() / np.abs(right).max()
    assert error < ERRORS[formulation]
    assert error > 0  # it is not the same sum in the same order


def test_the_transformed_weights_are_rounded_once():
    weights = np.random.default_rng(0).standard_normal((3, 3, 2, 16)).astype("float32")
    found = transformed_weights(weights, 2, 8)
    assert found.shape == (16, 2, 2, 8)
    assert found.dtype == np.float32
    # The first point of F(2x2) is the kernel's corner, the sixth half-sums both ways.
    np.testing.assert_array_equal(found[0, 1, :, 3], weights[0, 0, :, 11])
    half = weights[:, :, 0, 0].astype("float64").sum() / 4
    assert found[5, 0, 0, 0] == np.float32(half)


def offered(target, **arguments):
    found = winograd.offers(lower(convolution(**arguments)[0], target))
    return next(iter(found.values()), ())


def test_where_it_is_offered(target):
    same = {"padding": (1, 1), "filters": 64}
    assert offered(target, shape=(1, 56, 56, 64), **same) == ("winograd4",)
    assert offered(target, shape=(1, 14, 14, 64), **same) == ("winograd2", "winograd4")
    # Four tiles of F(4x4) would wait for 36 matrices of weights.
    assert offered(target, shape=(1, 7, 7, 64), **same) == ("winograd2",)


@pytest.mark.parametrize(
    "arguments",
    [
        {"strides": (2, 2), "padding": (1, 1), "shape": (1, 56, 56, 32)},
        {"dilation": (2, 2), "padding": (2, 2), "shape": (1, 56, 56, 32)},
        {"groups": 2, "padding": (1, 1), "shape": (1, 56, 56, 32)},
        {"kernel": (1, 3), "padding": (0, 1), "shape": (1, 56, 56, 32)},
        {"kernel": (5, 5), "padding": (2, 2), "shape": (1, 56, 56, 32)},
        {"shape": (1, 56, 56, 16), "padding": (1, 1)},
        {"shape": (1, 3, 3, 64), "padding": (1, 1)},
        {"filters": 33, "padding": (1, 1), "shape": (1, 56, 56, 32)},
        {"bound": False, "padding": (1, 1), "shape": (1, 56, 56, 32)},
        {"dtype": "float16", "padding": (1, 1), "shape": (1, 56, 56, 32)},
    ],
    ids=lambda arguments: next(iter(arguments)),
)
def test_where_it_is_not_offered(arguments, target):
    assert offered(target, **arguments) == ()


def test_padding_with_anything_but_zeros_is_no_padding(target):
    module = lower(convolution(padding=(1, 1))[0], target)
    (name,) = winograd.offers(module)
    text = module[name].script()
    assert match(tvm.script.from_source(text)) is not None
    for old, new in (
        ("T.float32(0.0))", "T.float32(1.0))"),
        ("v_i1 < T.int64(15)", "v_i1 < T.int64(14)"),
        ("v_i2 - T.int64(1)", "v_i2"),
    ):
        assert old in text
        assert match(tvm.script.from_source(text.replace(old, new))) is None


def two_convolutions():
    """Two of the same shape, the second with a residual: they share what comes before the sum."""
    generator = np.random.default_rng(0)
    weights = {
        name: (generator.standard_normal((3, 3, 32, 32)) / 17).astype("float32")
        for name in ("w1", "w2")
    }
    x = relax.Var("x", relax.TensorType((1, 16, 16, 32), "float32"))
    ws = {k: relax.Var(k, relax.TensorType(v.shape, "float32")) for k, v in weights.items()}
    kinds = {"padding": (1, 1), "data_layout": "NHWC", "kernel_layout": "HWIO"}
    builder = relax.BlockBuilder()
    with builder.function("main", [x, *ws.values()]):
        with builder.dataflow():
            y = builder.emit(relax.op.nn.relu(relax.op.nn.conv2d(x, ws["w1"], **kinds)))
            y = builder.emit(relax.op.nn.conv2d(y, ws["w2"], **kinds))
            output = builder.emit_output(relax.op.nn.relu(relax.op.add(y, x)))
        builder.emit_func_output(output)
    spec = TensorSpec(name="x", shape=(1, 16, 16, 32), dtype="float32")
    return Network(
        name="two",
        module=builder.get(),
        params=weights,
        inputs=(spec,),
        outputs=(dataclasses.replace(spec, name="y"),),
        layout="NHWC",
    )


@pytest.fixture(scope="module")
def two():
    return two_convolutions()


def test_formulations_are_tasks_and_share_what_is_equal(two, target):
    found = extract(two, target)
    names = [task.name for task in found.tasks]
    assert names == [
        "fused_conv2d_relu",
        "fused_conv2d_add_relu",
        "winograd2_input",
        "winograd2_products",
        "fused_winograd2_output_relu",
        "winograd4_input",
        "winograd4_products",
        "fused_winograd4_output_relu",
        "fused_winograd2_output_add_relu",
        "fused_winograd4_output_add_relu",
    ]
    assert [task.weight for task in found.tasks] == [1, 1, 2, 2, 1, 2, 2, 1, 1, 1]
    assert found.tasks[4].operators == ("winograd2_output", "relu")
    assert not any(task.trivial for task in found.tasks)
    first, second = found.choices
    assert (first.name, first.weight) == ("fused_conv2d_relu", 1)
    assert [(f.name, f.tasks) for f in first.formulations] == [
        ("direct", (0,)),
        ("winograd2", (2, 3, 4)),
        ("winograd4", (5, 6, 7)),
    ]
    assert [f.tasks for f in second.formulations] == [(1,), (2, 3, 8), (5, 6, 9)]
    assert len({task.workload_hash for task in found.tasks}) == len(found.tasks)


def test_compiled_is_what_the_records_say_is_fastest(two, tmp_path):
    create.create(tmp_path / "run", two, "llvm", Options())
    run = RunDirectory(tmp_path / "run")
    target = tvm.target.Target(run.manifest.target)
    found = extract(two, target)
    assert run.manifest.choices == found.choices
    x = np.random.default_rng(1).standard_normal((1, 16, 16, 32)).astype("float32")
    (direct,) = compile_network(two, target, formulations={}).run([x])
    # With no result at all, what is best without tuning.
    untuned = compile_run(run)
    assert [name for name, _ in untuned.coverage.fallback][1] == "winograd2_products"
    assert untuned.coverage == compile_network(two, target).coverage
    # F(4x4) loses where there is a sum, F(2x2) where there is none.
    times = [1e-3, 1e-3, 1e-4, 1e-4, 9e-4, 1e-4, 1e-4, 1e-4, 1e-4, 9e-4]
    with RunWriter(run.path) as writer:
        teller = Teller()
        writer.commit([teller.start()])
        for task, module, time in zip(found.tasks, found.modules, times, strict=True):
            schedule = fallback.candidates(module, target)[0]
            line = record_line(task.id, module, schedule, time, target)
            writer.append_record(line)
            event = teller.trial(task.id, time, record=database.digest(line))
            writer.commit([teller.open(task.id), teller.searched(task.id, 1), event])
    library = compile_run(run)
    assert [tuned.name for tuned in library.coverage.tuned] == [
        "winograd4_input",
        "winograd4_products",
        "fused_winograd4_output_relu",
        "winograd2_input",
        "winograd2_products",
        "fused_winograd2_output_add_relu",
    ]
    # Records of what was not chosen are no problem.
    assert (library.coverage.fallback, library.coverage.problems) == ((), ())
    assert library.estimated_total_latency_s == pytest.approx(6e-4)
    assert run.poll().estimated_total_latency_s == pytest.approx(6e-4)
    assert not any(
        "winograd" in name
        for name, _ in compile_network(two, target, schedules="untuned").coverage.fallback
    )
    (output,) = library.run([x])
    assert 0 < np.abs(output - direct).max() < 2e-5 * np.abs(direct).max()


def test_a_transform_has_one_schedule_and_the_products_many(two, target):
    found = extract(two, target)
    enough = [fallback.is_enough(module, target) for module in found.modules]
    assert enough == ["input" in t.name or "output" in t.name for t in found.tasks]
    for task, module in zip(found.tasks, found.modules, strict=True):
        assert fallback.candidates(module, target), task.name


def test_a_gpu_without_records_runs_the_transforms_in_threads(two):
    target = tvm.target.Target("nvidia/nvidia-a100")
    found = extract(two, target)
    for task, module in zip(found.tasks, found.modules, strict=True):
        made = fallback.schedule(module["main"], target)
        assert "threadIdx.x" in made.function.script(), task.name
        assert not fallback.is_enough(module, target)
        with target:
            tvm.compile(tvm.IRModule({"main": made.function}), target=target)


def test_json_of_a_workload_is_the_same_every_time(two, target):
    one, other = (extract(two, target).workloads for _ in range(2))
    assert json.dumps(one) == json.dumps(other)


def test_transforms_run_in_parallel_by_what_they_write(target):
    # Of the loops there are too few to wake a thread for, but each runs for a whole tile.
    network, _ = convolution(shape=(1, 32, 32, 64), filters=64, padding=(1, 1))
    module = lower(network, target)
    (name,) = winograd.offers(module)
    made = winograd.formulated(module[name], "winograd4")
    for part in (made.input, made.output):
        schedules = fallback.candidates(tvm.IRModule({"main": part}), target)
        assert ["T.parallel" in schedule.mod.script() for schedule in schedules] == [True, True]
