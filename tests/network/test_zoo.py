"""The zoo: names, counts, options, and functions that equal their references."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from autotune_nb.errors import NetworkError
from autotune_nb.network import list_networks, network
from autotune_nb.network.zoo import plan
from tests.network.numerics import random_inputs, relative_error, run_reference, run_tvm

# Trainable scalars as published with torchvision's models of these names (MobileNet: Keras's).
PARAMETERS = {
    "resnet-18": 11_689_512,
    "resnet-34": 21_797_672,
    "resnet-50": 25_557_032,
    "resnet-101": 44_549_160,
    "resnet-152": 60_192_808,
    "resnet3d-18": 33_371_472,
    # Not published: torchvision's class for the above, with the blocks of the deeper ResNets.
    "resnet3d-34": 63_681_104,
    "resnet3d-50": 46_980_944,
    "mobilenet": 4_231_976,
    "mobilenet_v2": 3_504_872,
    "squeezenet_v1.1": 1_235_496,
    # torchvision's 27,161,264 include 3,326,696 of the auxiliary classifier.
    "inception_v3": 27_161_264 - 3_326_696,
    "vgg-11": 132_863_336,
    "vgg-13": 133_047_848,
    "vgg-16": 138_357_544,
    "vgg-19": 143_667_240,
    "densenet-121": 7_978_856,
    "dcgan": 3_576_704,
    "vit-b-16": 86_567_656,
    # The published 109,482,240 include the pooler, a dense layer.
    "bert-base": 109_482_240 - (768 * 768 + 768),
    "mlp": 784 * 128 + 128 + 128 * 64 + 64 + 64 * 10 + 10,
}


def test_listing_needs_no_tvm():
    code = (
        "import sys, autotune_nb.network as n; rows = n.list_networks();"
        "assert 'tvm' not in sys.modules and 'onnx' not in sys.modules; print(len(rows))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(out.stdout) == len(list_networks())


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameter_count_is_the_published_one(name):
    rows = {row.name: row for row in list_networks()}
    assert rows[name].parameters == PARAMETERS[name]


def test_every_network_is_counted():
    assert {row.name for row in list_networks()} == set(PARAMETERS)


def test_flops_are_twice_the_published_multiply_accumulates():
    rows = {row.name: row for row in list_networks()}
    assert rows["resnet-18"].flops / 2e9 == pytest.approx(1.814, abs=2e-3)
    assert rows["resnet-50"].flops / 2e9 == pytest.approx(4.089, abs=2e-3)
    assert rows["resnet3d-18"].flops / 2e9 == pytest.approx(40.70, abs=1e-2)
    assert rows["mobilenet_v2"].flops / 2e9 == pytest.approx(0.301, abs=1e-3)
    assert rows["inception_v3"].flops / 2e9 == pytest.approx(5.713, abs=2e-3)
    assert rows["vgg-16"].flops / 2e9 == pytest.approx(15.47, abs=1e-2)
    assert rows["densenet-121"].flops / 2e9 == pytest.approx(2.834, abs=2e-3)
    assert rows["vit-b-16"].flops / 2e9 == pytest.approx(17.564, abs=2e-3)
    assert rows["resnet-18"].inputs == {"data": (1, 224, 224, 3)}


@pytest.mark.parametrize(
    ("typed", "name"),
    [
        ("ResNet-18", "resnet-18"),
        ("resnet18", "resnet-18"),
        (" RESNET_18 ", "resnet-18"),
        ("resnet50_v1", "resnet-50"),
        ("resnet50 v1.5", "resnet-50"),
        ("resnet3d_18", "resnet3d-18"),
        ("r3d_18", "resnet3d-18"),
        ("MobileNetV2", "mobilenet_v2"),
        ("mobilenet-v1", "mobilenet"),
        ("squeezenet", "squeezenet_v1.1"),
        ("squeezenet1_1", "squeezenet_v1.1"),
        ("Inception v3", "inception_v3"),
        ("vgg16", "vgg-16"),
        ("DenseNet121", "densenet-121"),
        ("ViT-B/16", "vit-b-16"),
        ("vit_b_16", "vit-b-16"),
        ("bert", "bert-base"),
        ("bert-base-uncased", "bert-base"),
    ],
)
def test_names_as_people_type_them(typed, name):
    assert plan(typed).parameter_count == PARAMETERS[name]


def test_resnet3d_is_three_dimensional():
    kernels = [
        layer.params["weight"].shape[2:]
        for layer in plan("resnet3d-18").layers
        if layer.kind == "conv"
    ]
    assert kernels[0] == (3, 7, 7)
    assert kernels.count((3, 3, 3)) == 16


def test_unknown_name_has_near_matches_and_a_way_on():
    with pytest.raises(NetworkError, match=r"resnet-19.*did you mean.*resnet-18.*autotune-nb netw"):
        network("resnet-19")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size must be a whole number from 1 up, not 0"),
        ({"batch_size": 1.5}, "batch_size must be"),
        ({"batch_size": True}, "batch_size must be"),
        ({"layout": "nhwc8"}, "layout must be NHWC or NCHW, not 'nhwc8'"),
        ({"dtype": "int8"}, "dtype must be float32 or float16, not 'int8'"),
        ({"seed": -1}, "seed must be"),
        ({"image_size": 0}, "image_size must be"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(NetworkError, match=message):
        network("resnet-18", **options)


def test_image_size_where_there_is_no_image():
    with pytest.raises(NetworkError, match="mlp has no image size"):
        network("mlp", image_size=32)


def test_public_names_survive_importing_the_module_of_the_same_name():
    code = (
        "import autotune_nb.network.network, autotune_nb as at, autotune_nb.network as n;"
        "from autotune_nb.network import network;"
        "print(network('mlp').name, at.network('mlp').name, n('mlp').name, n.network('mlp').name)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.split() == ["mlp"] * 4


def test_mlp_equals_its_reference():
    net = network("mlp", batch_size=3)
    assert net.layout == ""
    inputs = random_inputs(net.inputs)
    expected = run_reference(net, inputs)
    assert relative_error(run_tvm(net, inputs), expected) < 2e-5


SMALL = [
    ("resnet-50", 32),
    ("resnet3d-18", 16),
    ("mobilenet", 32),
    ("mobilenet_v2", 32),
    ("squeezenet_v1.1", 48),
    ("vgg-11", 32),
    ("inception_v3", 80),
    ("vit-b-16", 32),
]


@pytest.mark.parametrize(
    ("name", "size", "layout"),
    [
        *((name, size, "NHWC") for name, size in SMALL),
        *(pytest.param(name, size, "NCHW", marks=pytest.mark.slow) for name, size in SMALL),
        ("dcgan", None, "NCHW"),
        pytest.param("densenet-121", 32, "NHWC", marks=pytest.mark.slow),
        pytest.param("densenet-121", 32, "NCHW", marks=pytest.mark.slow),
        pytest.param("bert-base", None, None, marks=pytest.mark.slow),
    ],
)
def test_zoo_equals_its_references(name, size, layout):
    net = network(name, image_size=size, layout=layout)
    inputs = random_inputs(net.inputs, limit=2)
    expected = run_reference(net, inputs)
    other = run_reference(net, random_inputs(net.inputs, seed=1, limit=2))
    assert relative_error(run_tvm(net, inputs), expected) < 2e-5
    # Agreement says something only where the result depends on the input.
    assert relative_error(other, expected) > 0.01


def test_layout_that_a_network_has_not():
    with pytest.raises(NetworkError, match="dcgan exists in NCHW only, not in NHWC"):
        network("dcgan", layout="NHWC")


@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
def test_resnet_equals_its_reference(layout):
    net = network("resnet-18", layout=layout, image_size=32, batch_size=2)
    assert net.inputs[0].shape == ((2, 32, 32, 3) if layout == "NHWC" else (2, 3, 32, 32))
    assert net.outputs[0].shape == (2, 1000)
    inputs = random_inputs(net.inputs)
    expected = run_reference(net, inputs)
    assert relative_error(run_tvm(net, inputs), expected) < 2e-5


def test_layouts_compute_the_same_function():
    last = network("resnet-18", layout="NHWC", image_size=32)
    first = network("resnet-18", layout="NCHW", image_size=32)
    (image,) = random_inputs(last.inputs)
    expected = run_reference(last, [image])
    got = run_reference(first, [np.moveaxis(image, -1, 1)])
    assert relative_error(got, expected) < 1e-6


def test_logits_tell_inputs_apart():
    net = network("resnet-50", image_size=64)
    one, other = (run_reference(net, random_inputs(net.inputs, seed))[0] for seed in (0, 1))
    assert np.abs(one - other).max() > 0.01 * np.abs(one).max()


def test_seed_decides_the_weights():
    one, same, other = (network("mlp", seed=seed) for seed in (0, 0, 1))
    assert one.fingerprint() == same.fingerprint() != other.fingerprint()


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("resnet-18", 32),
        ("mobilenet_v2", 32),
        pytest.param("vit-b-16", 32, marks=pytest.mark.slow),
        pytest.param("dcgan", None, marks=pytest.mark.slow),
        pytest.param("squeezenet_v1.1", 48, marks=pytest.mark.slow),
    ],
)
def test_float16(name, size):
    net = network(name, image_size=size, dtype="float16")
    assert {spec.dtype for spec in (*net.inputs, *net.outputs)} == {"float16"}
    assert {str(value.dtype) for value in net.params.values()} == {"float16"}
    inputs = random_inputs(net.inputs)
    expected = run_reference(net, inputs)
    assert relative_error(run_tvm(net, inputs), expected) < 1e-2


def test_a_network_shows_itself_in_a_line() -> None:
    assert repr(network("mlp")) == (
        "<Network 'mlp': data: float32[1, 784] -> output: float32[1, 10]; 109,386 parameters>"
    )
