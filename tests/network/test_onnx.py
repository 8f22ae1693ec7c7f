"""ONNX import: the right network, or one clear error."""

from __future__ import annotations

import subprocess
import sys
import time

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from autotune_nb.errors import NetworkError
from autotune_nb.network import from_onnx, network
from tests.network import models
from tests.network.numerics import random_inputs, relative_error, run_reference, run_tvm

SHAPE = {"x": (1, 3, 16, 16)}


def error_of(model, shapes=None):
    with pytest.raises(NetworkError) as caught:
        from_onnx(model, shapes=shapes)
    message = str(caught.value)
    assert "\n" not in message
    return message


def check(net, tolerance=2e-5, limit=8):
    inputs = random_inputs(net.inputs, limit=limit)
    got = run_tvm(net, inputs)
    assert [(g.shape, str(g.dtype)) for g in got] == [(o.shape, o.dtype) for o in net.outputs]
    assert relative_error(got, run_reference(net, inputs)) < tolerance
    return got


# -- the files of tests/data/onnx -------------------------------------------------------------


@pytest.mark.parametrize("name", ["dyn_batch_named", "dyn_batch_minus1"])
def test_symbolic_batch(name):
    path = models.DATA / f"{name}.onnx"
    message = error_of(path)
    assert f"{name}.onnx" in message
    assert "--shape x=1,3,16,16" in message
    if name == "dyn_batch_named":
        assert "x: [N, 3, 16, 16]" in message
        assert "shapes={'N': 1}" in message
        net = from_onnx(path, shapes={"N": 2})
    else:
        assert "x: [?, 3, 16, 16]" in message
        net = from_onnx(path, shapes={"x": (2, 3, 16, 16)})
    assert net.inputs[0].shape == (2, 3, 16, 16)
    assert net.layout == "NCHW"
    check(net)


def test_batch_zero():
    path = models.DATA / "batch_zero.onnx"
    assert "a dimension of an input is zero (x: [0, 3, 16, 16]); bind it" in error_of(path)
    check(from_onnx(path, shapes=SHAPE))


def test_input_without_shape():
    path = models.DATA / "input_no_shape.onnx"
    message = error_of(path)
    assert "the shape of an input is unknown (x: unknown shape); bind it" in message
    check(from_onnx(path, shapes=SHAPE))


def test_no_outputs():
    assert "the graph has no output, so there is nothing" in error_of(
        models.DATA / "no_outputs.onnx"
    )


def test_opset_that_does_not_exist():
    message = error_of(models.DATA / "opset_99.onnx")
    assert "uses opset 99, and the newest one supported is " in message
    assert int(message.split("newest one supported is ")[1].split(";")[0]) >= 18


@pytest.mark.parametrize(
    ("name", "listed"),
    [
        ("unsupported_custom_domain", "com.acme::FusedMagic (1)"),
        ("unsupported_std_GRU", "GRU (1)"),
    ],
)
def test_unsupported_operators(name, listed):
    assert f"TVM cannot import these operators (and how many): {listed};" in error_of(
        models.DATA / f"{name}.onnx"
    )


def test_nodes_out_of_order_are_sorted():
    check(from_onnx(models.DATA / "cyclic_or_unsorted.onnx"))


@pytest.mark.parametrize("name", ["zero_bytes", "not_onnx"])
def test_no_model(name):
    assert "not an ONNX model" in error_of(models.DATA / f"{name}.onnx")


# -- the kinds behind them --------------------------------------------------------------------


def test_missing_file_and_directory(tmp_path):
    assert "missing.onnx: does not exist" in error_of(tmp_path / "missing.onnx")
    assert "is a directory" in error_of(tmp_path)


def test_cycle():
    nodes = [
        helper.make_node("Add", ["x", "b"], ["a"], name="first"),
        helper.make_node("Relu", ["a"], ["b"], name="second"),
    ]
    net = models.model(nodes, [models.value("x", [4])], [models.value("b", [4])])
    assert "the graph has a cycle through first, second" in error_of(net)


def test_graph_without_nodes():
    net = models.model([], [models.value("x", [4])], [models.value("x", [4])])
    assert "the graph has no nodes" in error_of(net)


def test_all_unsupported_operators_are_listed_at_once():
    nodes = [
        helper.make_node("FusedMagic", ["x"], ["a"], domain="com.acme"),
        helper.make_node("Relu", ["a"], ["b"], domain="com.other"),
        helper.make_node("Relu", ["b"], ["c"]),
        helper.make_node("FusedMagic", ["c"], ["d"], domain="com.acme"),
        helper.make_node("NoSuchThing", ["d"], ["y"]),
    ]
    net = models.model(
        nodes,
        [models.value("x", [4])],
        [models.value("y", [4])],
        domains=("com.acme", "com.other"),
    )
    message = error_of(net)
    assert "NoSuchThing (1), com.acme::FusedMagic (2), com.other::Relu (1);" in message


def test_symbols_bind_across_inputs():
    nodes = [helper.make_node("Add", ["x", "z"], ["y"])]
    net = models.model(
        nodes,
        [models.value("x", ["N", 4]), models.value("z", ["N", 4])],
        [models.value("y", ["N", 4])],
    )
    assert [s.shape for s in from_onnx(net, shapes={"x": (3, 4)}).inputs] == [(3, 4)] * 2
    assert [s.shape for s in from_onnx(net, shapes={"N": 3}).inputs] == [(3, 4)] * 2
    assert "N would be both 3 and 2" in error_of(net, {"x": (3, 4), "z": (2, 4)})
    assert "x: [N, 4]; z: [N, 4]" in error_of(net)


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ({"X": (1, 3, 16, 16)}, "has no input 'X'; shapes can be given for x, N"),
        ({"x": (1, 3, 16)}, "input x has 4 dimensions [N, 3, 16, 16], not 3"),
        ({"x": (1, 3, 16, 17)}, "input x is [N, 3, 16, 16], which (1, 3, 16, 17) contradicts"),
        ({"x": (0, 3, 16, 16)}, "the shape of x has the extent 0; use 1 or more"),
        ({"x": (-1, 3, 16, 16)}, "the extent -1"),
        ({"x": "large"}, "the shape of x must be whole numbers"),
        ({"N": (1, 3, 16, 16)}, "'N' is one dimension"),
    ],
)
def test_wrong_shapes(shapes, message):
    assert message in error_of(models.DATA / "dyn_batch_named.onnx", shapes)


def test_old_model_whose_weights_are_inputs():
    net = models.convolution(opset=9)
    net.ir_version = 3
    for tensor in net.graph.initializer:
        net.graph.input.append(models.value(tensor.name, list(tensor.dims)))
    imported = from_onnx(net)
    assert [spec.name for spec in imported.inputs] == ["x"]
    check(imported)


# -- what a good model becomes ----------------------------------------------------------------


def test_weights_are_arguments_and_counted():
    net = from_onnx(models.convolution())
    assert net.parameter_count == 8 * 27 + 8 + 2 * 8 + 5 * 8 + 5
    assert len(net.module["main"].params) == len(net.inputs) + len(net.params)
    assert sum(value.size for value in net.params.values()) >= 8 * 27 + 8 + 40 + 5
    assert net.source["shapes"] == {"x": [1, 3, 16, 16]}
    # Batch norms are folded already: nothing else is left of them.
    assert "batch_norm" not in net.module.script()
    check(net)


def test_importing_twice_gives_the_same_network():
    one, other = (from_onnx(models.convolution()) for _ in range(2))
    assert one.fingerprint() == other.fingerprint()


def test_input_model_is_left_alone():
    net = models.convolution(batch="N")
    before = net.SerializeToString()
    from_onnx(net, shapes={"N": 2})
    assert net.SerializeToString() == before


def test_reference_is_the_model_with_its_shapes_bound():
    net = from_onnx(models.convolution(batch="N"), shapes={"N": 2})
    reference = onnx.load_from_string(net.reference)
    kinds = [node.op_type for node in reference.graph.node]
    assert kinds == [node.op_type for node in models.convolution().graph.node]
    assert reference.graph.input[0].type.tensor_type.shape.dim[0].dim_value == 2


@pytest.mark.parametrize("opset", [7, 9, 11, 12, 13, 18, 21])
def test_opsets(opset):
    check(from_onnx(models.convolution(opset=opset)))


def test_opset_that_changed_an_operator():
    # Slice had attributes before opset 10, and softmax flattened before opset 13.
    nodes = [
        helper.make_node("Slice", ["x"], ["s"], axes=[1, 2], starts=[1, 0], ends=[3, 2]),
        helper.make_node("Softmax", ["s"], ["y"], axis=1),
    ]
    net = models.model(
        nodes, [models.value("x", [2, 4, 4])], [models.value("y", [2, 2, 2])], opset=9
    )
    check(from_onnx(net))


def test_shapes_computed_from_shapes():
    # Shape, Cast, Concat, Reshape: common in exported models, and foldable once shapes are bound.
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Cast", ["s"], ["f"], to=TensorProto.FLOAT),
        helper.make_node("Cast", ["f"], ["i"], to=TensorProto.INT64),
        helper.make_node("Gather", ["i", "zero"], ["n"]),
        helper.make_node("Concat", ["n", "rest"], ["target"], axis=0),
        helper.make_node("Reshape", ["x", "target"], ["r"]),
        helper.make_node("Relu", ["r"], ["y"]),
    ]
    weights = {"zero": np.array([0]), "rest": np.array([-1])}
    net = models.model(nodes, [models.value("x", ["N", 3, 4])], [models.value("y", None)], weights)
    imported = from_onnx(net, shapes={"N": 2})
    assert imported.outputs[0].shape == (2, 12)
    check(imported)


def test_several_inputs_and_outputs_keep_their_order_and_names():
    nodes = [
        helper.make_node("Sub", ["b/x:0", "a.y"], ["diff"]),
        helper.make_node("Mul", ["b/x:0", "a.y"], ["1st"]),
    ]
    net = models.model(
        nodes,
        [models.value("b/x:0", [2, 3]), models.value("a.y", [2, 3])],
        [models.value("1st", [2, 3]), models.value("diff", [2, 3])],
    )
    imported = from_onnx(net)
    assert [spec.name for spec in imported.inputs] == ["b/x:0", "a.y"]
    assert [spec.name for spec in imported.outputs] == ["1st", "diff"]
    check(imported)


def test_operator_defined_by_others_is_expanded():
    # TVM has no import for Celu; ONNX defines it by operators that TVM has.
    nodes = [helper.make_node("Celu", ["x"], ["y"], alpha=2.0)]
    net = models.model(nodes, [models.value("x", [2, 3])], [models.value("y", [2, 3])], opset=18)
    check(from_onnx(net))


def test_functions_of_the_model_are_expanded():
    body = [
        helper.make_node("Relu", ["a"], ["r"]),
        helper.make_node("Add", ["r", "a"], ["b"]),
    ]
    function = helper.make_function(
        "my.own", "ReluPlus", ["a"], ["b"], body, [helper.make_opsetid("", 18)]
    )
    nodes = [helper.make_node("ReluPlus", ["x"], ["y"], domain="my.own")]
    net = models.model(
        nodes, [models.value("x", [4])], [models.value("y", [4])], opset=18, domains=("my.own",)
    )
    net.functions.append(function)
    check(from_onnx(net))


def test_output_whose_shape_depends_on_the_data():
    nodes = [helper.make_node("NonZero", ["x"], ["y"])]
    net = models.model(
        nodes, [models.value("x", [4])], [models.value("y", None, TensorProto.INT64)]
    )
    assert "output y" in error_of(net)


def test_external_data(tmp_path):
    net = models.convolution()
    path = tmp_path / "model.onnx"
    onnx.save(net, path, save_as_external_data=True, location="weights.bin", size_threshold=16)
    imported = from_onnx(path)
    assert imported.name == "model"
    check(imported)
    (tmp_path / "weights.bin").unlink()
    message = error_of(path)
    assert "external data cannot be read" in message
    assert "keep the data files beside the model" in message


def test_float16():
    net = models.convolution()
    for tensor in net.graph.initializer:
        half = numpy_helper.to_array(tensor).astype("float16")
        tensor.CopyFrom(numpy_helper.from_array(half, tensor.name))
    for value in (*net.graph.input, *net.graph.output):
        value.type.tensor_type.elem_type = TensorProto.FLOAT16
    imported = from_onnx(net)
    assert imported.inputs[0].dtype == imported.outputs[0].dtype == "float16"
    check(imported, tolerance=1e-2)


def test_int8_with_quantise_and_dequantise():
    rng = np.random.default_rng(0)
    weights = {
        "scale": np.float32(0.05).reshape(()),
        "zero": np.int8(0).reshape(()),
        "w": rng.integers(-100, 100, (8, 3, 3, 3)).astype("int8"),
        "wscale": rng.uniform(0.001, 0.01, 8).astype("float32"),
        "wzero": np.zeros(8, "int8"),
    }
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["d"]),
        helper.make_node("DequantizeLinear", ["w", "wscale", "wzero"], ["wd"], axis=0),
        helper.make_node("Conv", ["d", "wd"], ["c"]),
        helper.make_node("QuantizeLinear", ["c", "scale", "zero"], ["cq"]),
        helper.make_node("DequantizeLinear", ["cq", "scale", "zero"], ["y"]),
    ]
    net = models.model(
        nodes, [models.value("x", [1, 3, 8, 8])], [models.value("y", [1, 8, 6, 6])], weights
    )
    # A value on the edge between two steps may fall either way: one step of 0.05 at most.
    imported = from_onnx(net)
    inputs = random_inputs(imported.inputs)
    got, expected = run_tvm(imported, inputs)[0], run_reference(imported, inputs)[0]
    assert np.abs(got - expected).max() < 0.051
    assert np.mean(got != expected) < 0.02


# -- real models ------------------------------------------------------------------------------


def test_resnet50_imports_in_time():
    model = onnx.load_from_string(network("resnet-50").reference)
    # CPU time of all threads, since other work on the machine is not the importer's fault.
    start = time.process_time()
    imported = from_onnx(model)
    assert time.process_time() - start < 10
    assert imported.parameter_count == 25_557_032


def test_import_is_quiet():
    code = (
        "from autotune_nb.network import from_onnx; from tests.network import models;"
        "from_onnx(models.light('squeezenet'))"
    )
    root = models.DATA.parents[2]
    out = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=root
    )
    assert out.stdout + out.stderr == ""


@pytest.mark.parametrize("name", ["squeezenet", "shufflenet"])
def test_small_real_networks(name):
    check(from_onnx(models.light(name)), tolerance=5e-5)


@pytest.mark.parametrize("kind", ["Sum", "Max", "Min"])
def test_operators_of_many_inputs_stack_nothing(kind):
    nodes = [helper.make_node(kind, ["a", "b", "c"], ["y"])]
    values = [models.value("a", [2, 3]), models.value("b", [2, 3]), models.value("c", [3])]
    net = from_onnx(models.model(nodes, values, [models.value("y", [2, 3])]))
    assert "stack" not in net.module.script()
    check(net)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["resnet50", "inception_v1", "inception_v2", "densenet121", "bvlc_alexnet", "zfnet512"]
)
def test_real_networks(name):
    check(from_onnx(models.light(name)), tolerance=5e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "shape"), [("det", (1, 3, 64, 64)), ("rec", (1, 3, 48, 64)), ("cls", (1, 3, 48, 192))]
)
def test_text_recognition_models(kind, shape):
    check(from_onnx(models.logits(models.ocr(kind)), shapes={"x": shape}), tolerance=5e-5)


def test_text_detector_as_the_main_job_binds_it():
    net = from_onnx(models.ocr("det"), shapes={"x": (1, 3, 320, 320)})
    assert net.name == "ch_PP-OCRv4_det_infer"
    assert net.outputs[0].shape == (1, 1, 320, 320)
    assert net.layout == "NCHW"
