"""ONNX models that cannot be tuned: each is refused with what it holds and what to do."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from autotune_nb.errors import NetworkError
from autotune_nb.network import from_onnx
from tests.network import models
from tests.network.numerics import random_inputs, relative_error, run_reference, run_tvm


def error_of(model):
    with pytest.raises(NetworkError) as caught:
        from_onnx(model)
    message = str(caught.value)
    assert "\n" not in message
    return message


def branch(kind):
    node = helper.make_node(kind, ["x"], [f"{kind}_of_x"])
    return helper.make_graph([node], kind, [], [models.value(f"{kind}_of_x", [2, 3])])


def choice():
    return helper.make_node(
        "If", ["c"], ["y"], then_branch=branch("Relu"), else_branch=branch("Neg")
    )


def test_branch_that_depends_on_data():
    inputs = [models.value("x", [2, 3]), models.value("c", [], TensorProto.BOOL)]
    message = error_of(models.model([choice()], inputs, [models.value("y", [2, 3])]))
    assert "TVM cannot import these operators (and how many): If (1);" in message
    assert "on data they cannot be" in message


@pytest.mark.parametrize(("batch", "kind"), [(2, "Relu"), (3, "Neg")])
def test_branch_that_depends_on_shapes_is_resolved(batch, kind):
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Gather", ["s", "first"], ["n"]),
        helper.make_node("Equal", ["n", "two"], ["c"]),
        choice(),
    ]
    weights = {"first": np.array(0), "two": np.array(2)}
    net = from_onnx(
        models.model(nodes, [models.value("x", ["N", 3])], [models.value("y", None)], weights),
        shapes={"N": batch},
    )
    inputs = random_inputs(net.inputs)
    expected = np.maximum(inputs[0], 0) if kind == "Relu" else -inputs[0]
    assert relative_error(run_tvm(net, inputs), [expected]) == 0
    assert relative_error(run_reference(net, inputs), [expected]) == 0


def test_loop():
    body = helper.make_graph(
        [helper.make_node("Add", ["v", "v"], ["w"]), helper.make_node("Identity", ["on"], ["go"])],
        "body",
        [
            models.value("i", [], TensorProto.INT64),
            models.value("on", [], TensorProto.BOOL),
            models.value("v", [2, 3]),
        ],
        [models.value("go", [], TensorProto.BOOL), models.value("w", [2, 3])],
    )
    loop = helper.make_node("Loop", ["n", "", "x"], ["y"], body=body)
    inputs = [models.value("x", [2, 3]), models.value("n", [], TensorProto.INT64)]
    message = error_of(models.model([loop], inputs, [models.value("y", [2, 3])]))
    assert "TVM cannot import these operators (and how many): Loop (1);" in message


def sequence(name):
    element = helper.make_tensor_type_proto(TensorProto.FLOAT, [2])
    return helper.make_value_info(name, helper.make_sequence_type_proto(element))


def test_text_and_sequences():
    text = models.value("x", [2], TensorProto.STRING)
    same = [helper.make_node("Identity", ["x"], ["y"])]
    message = error_of(models.model(same, [text], [models.value("y", [2], TensorProto.STRING)]))
    assert "input x holds text; only tensors of numbers can go in and out" in message

    joined = [helper.make_node("ConcatFromSequence", ["x"], ["y"], axis=0)]
    message = error_of(models.model(joined, [sequence("x")], [models.value("y", [4])]))
    assert "input x is a sequence; only tensors" in message

    made = [helper.make_node("SequenceConstruct", ["x", "x"], ["y"])]
    message = error_of(models.model(made, [models.value("x", [2])], [sequence("y")]))
    assert "output y is a sequence; only tensors" in message


@pytest.mark.parametrize("length_is_told", [True, False])
def test_weights_beyond_two_gib(tmp_path, length_is_told):
    rows = 2**29 + 1
    net = models.model(
        [helper.make_node("Gather", ["w", "x"], ["y"])],
        [models.value("x", [2], TensorProto.INT64)],
        [models.value("y", [2])],
    )
    weight = onnx.TensorProto(
        name="w", data_type=TensorProto.FLOAT, dims=[rows], data_location=TensorProto.EXTERNAL
    )
    entries = {"location": "weights.bin"}
    if length_is_told:
        entries["length"] = str(4 * rows)
    for key, value in entries.items():
        weight.external_data.add(key=key, value=value)
    net.graph.initializer.append(weight)
    onnx.save(net, tmp_path / "large.onnx")
    # A hole in the file: it takes no disk, and must not be read into memory either.
    with (tmp_path / "weights.bin").open("wb") as file:
        file.truncate(4 * rows)
    message = error_of(tmp_path / "large.onnx")
    assert "large.onnx: takes 2.0 GiB with its weights, and models end at 2 GiB here" in message


def test_a_file_beyond_two_gib_is_not_read(tmp_path):
    path = tmp_path / "large.onnx"
    with path.open("wb") as file:
        file.truncate(3 * 2**30)
    assert "large.onnx: takes 3.0 GiB with its weights" in error_of(path)


@pytest.mark.parametrize(("width", "way"), [(8, "half_pixel"), (7, "align_corners")])
def test_resize_that_tvm_computes_alike(width, way):
    net = from_onnx(resize(width, way))
    inputs = random_inputs(net.inputs)
    assert relative_error(run_tvm(net, inputs), run_reference(net, inputs)) < 2e-5


def test_resize_to_no_whole_number_of_pixels():
    message = error_of(resize(7, "half_pixel"))
    assert "Resize of x scales 7 pixels by 1.5, which is no whole number of pixels" in message


def resize(width, way):
    scales = {"s": np.array([1, 1, 1, 1.5], "float32")}
    node = helper.make_node(
        "Resize", ["x", "", "s"], ["y"], mode="linear", coordinate_transformation_mode=way
    )
    return models.model(
        [node], [models.value("x", [1, 2, 4, width])], [models.value("y", None)], scales
    )
