"""Layout and precision of imported networks: the interface stays, and so does the function."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

from autotune_nb.errors import NetworkError
from autotune_nb.network import from_onnx
from tests.network import models
from tests.network.numerics import random_inputs, relative_error, run_reference, run_tvm


def test_channels_last_inside():
    first = from_onnx(models.convolution())
    last = from_onnx(models.convolution(), layout="NHWC")
    assert (first.layout, last.layout) == ("NCHW", "NHWC")
    assert (first.inputs, first.outputs) == (last.inputs, last.outputs)
    # The weights are converted once, not on each call.
    script = last.module.script()
    assert 'data_layout="NHWC"' in script
    assert script.count("permute_dims") == 2
    assert (3, 3, 3, 8) in {value.shape for value in last.params.values()}
    inputs = random_inputs(last.inputs)
    assert relative_error(run_tvm(last, inputs), run_reference(last, inputs)) < 2e-5


def test_mixed_precision_inside():
    net = from_onnx(models.convolution(), dtype="float16")
    assert {spec.dtype for spec in (*net.inputs, *net.outputs)} == {"float32"}
    assert "float16" in {str(value.dtype) for value in net.params.values()}
    inputs = random_inputs(net.inputs)
    error = relative_error(run_tvm(net, inputs), run_reference(net, inputs))
    assert 1e-7 < error < 1e-2


def test_both_at_once():
    net = from_onnx(models.convolution(), layout="NHWC", dtype="float16")
    inputs = random_inputs(net.inputs)
    assert relative_error(run_tvm(net, inputs), run_reference(net, inputs)) < 1e-2


def test_transposed_convolutions_stay_channels_first():
    rng = np.random.default_rng(0)
    weights = {
        "w": rng.standard_normal((4, 3, 3, 3)).astype("float32"),
        "t": rng.standard_normal((4, 2, 2, 2)).astype("float32"),
    }
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("ConvTranspose", ["r", "t"], ["y"], strides=[2, 2]),
    ]
    model = models.model(
        nodes, [models.value("x", [1, 3, 8, 8])], [models.value("y", [1, 2, 12, 12])], weights
    )
    net = from_onnx(model, layout="NHWC")
    inputs = random_inputs(net.inputs)
    assert relative_error(run_tvm(net, inputs), run_reference(net, inputs)) < 2e-5


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["det", "rec", "cls"])
def test_text_recognition_models_channels_last(kind):
    shape = {"det": (1, 3, 64, 64), "rec": (1, 3, 48, 64), "cls": (1, 3, 48, 192)}[kind]
    net = from_onnx(models.logits(models.ocr(kind)), shapes={"x": shape}, layout="NHWC")
    inputs = random_inputs(net.inputs)
    assert relative_error(run_tvm(net, inputs), run_reference(net, inputs)) < 5e-5


@pytest.mark.slow
@pytest.mark.parametrize("name", ["shufflenet", "resnet50", "inception_v2"])
def test_real_networks_channels_last(name):
    net = from_onnx(models.light(name), layout="NHWC")
    inputs = random_inputs(net.inputs)
    assert relative_error(run_tvm(net, inputs), run_reference(net, inputs)) < 5e-5


def test_what_they_have_already_changes_nothing():
    plain = from_onnx(models.convolution())
    same = from_onnx(models.convolution(), layout="NCHW", dtype="float32")
    assert plain.fingerprint() == same.fingerprint()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layout": "NCHWc"}, "layout must be NHWC or NCHW, not 'NCHWc'"),
        ({"dtype": "int8"}, "dtype must be float32 or float16, not 'int8'"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(NetworkError, match=message):
        from_onnx(models.convolution(), **options)


def test_layout_of_a_network_without_images():
    net = models.model(
        [helper.make_node("Relu", ["x"], ["y"])],
        [models.value("x", [4])],
        [models.value("y", [4])],
    )
    with pytest.raises(NetworkError, match="has no images, so leave layout out"):
        from_onnx(net, layout="NHWC")
