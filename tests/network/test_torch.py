"""PyTorch import; needs the extra `torch`, except for the error that says so."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from autotune_nb.errors import NetworkError
from autotune_nb.network import from_torch
from tests.network.numerics import relative_error, run_reference, run_tvm


def test_without_pytorch_the_error_says_how_to_get_it():
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from autotune_nb.network import from_torch\n"
        "from autotune_nb.errors import EnvironmentProblem\n"
        "try: from_torch(object())\n"
        "except EnvironmentProblem as error: print(error)\n"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout == (
        "PyTorch is not installed; install it with pip install 'autotune-nb[torch]'\n"
    )


@pytest.fixture
def torch():
    return pytest.importorskip("torch")


def convolution(torch):
    torch.manual_seed(0)
    net = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3, padding=1, bias=False),
        torch.nn.BatchNorm2d(8),
        torch.nn.ReLU(),
        torch.nn.MaxPool2d(2),
        torch.nn.Conv2d(8, 8, 3, groups=8),
        torch.nn.Hardswish(),
        torch.nn.AdaptiveAvgPool2d(1),
        torch.nn.Flatten(),
        torch.nn.Linear(8, 5),
    )
    net[1].running_mean.normal_()
    net[1].running_var.uniform_(0.5, 1.5)
    return net


def expected(torch, module, inputs):
    with torch.no_grad():
        result = module.eval()(*inputs)
    return [t.numpy() for t in (result if isinstance(result, tuple) else (result,))]


@pytest.mark.parametrize("options", [{}, {"layout": "NHWC"}])
def test_module(torch, options):
    module, image = convolution(torch), torch.randn(2, 3, 16, 16)
    net = from_torch(module, image, **options)
    assert module.training
    assert net.name == "Sequential"
    assert net.layout == options.get("layout", "NCHW")
    assert net.parameter_count == sum(p.numel() for p in module.parameters())
    assert net.outputs[0].shape == (2, 5)
    assert "batch_norm" not in net.module.script()
    wanted = expected(torch, module, [image])
    assert relative_error(run_tvm(net, [image.numpy()]), wanted) < 2e-5
    assert relative_error(run_reference(net, [image.numpy()]), wanted) < 2e-5


def test_exported_program_and_mixed_precision(torch):
    module, image = convolution(torch).eval(), torch.randn(1, 3, 16, 16)
    program = torch.export.export(module, (image,))
    net = from_torch(program, name="mine", dtype="float16")
    assert (net.name, net.inputs[0].dtype) == ("mine", "float32")
    error = relative_error(run_tvm(net, [image.numpy()]), expected(torch, module, [image]))
    assert error < 1e-2


def test_several_inputs_and_outputs(torch):
    class Two(torch.nn.Module):
        def forward(self, left, right):
            return left @ right, left - 1

    inputs = (torch.randn(3, 4), torch.randn(4, 5))
    net = from_torch(Two(), inputs)
    assert [spec.shape for spec in net.inputs] == [(3, 4), (4, 5)]
    assert net.layout == ""
    arrays = [tensor.numpy() for tensor in inputs]
    for got, wanted in zip(run_tvm(net, arrays), expected(torch, Two(), inputs), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)


def test_transformer_layer(torch):
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, dropout=0.0)
    tokens = torch.randn(2, 6, 32)
    net = from_torch(layer, tokens)
    wanted = expected(torch, layer, [tokens])
    assert relative_error(run_tvm(net, [tokens.numpy()]), wanted) < 2e-5


def test_dynamic_shapes_are_refused(torch):
    program = torch.export.export(
        torch.nn.ReLU(), (torch.randn(4, 3),), dynamic_shapes=({0: torch.export.Dim("n")},)
    )
    with pytest.raises(NetworkError, match="only static shapes can be tuned"):
        from_torch(program)


def test_wrong_arguments(torch):
    with pytest.raises(NetworkError, match="example inputs are missing"):
        from_torch(torch.nn.ReLU())
    with pytest.raises(NetworkError, match="a tensor or a tuple of tensors"):
        from_torch(torch.nn.ReLU(), [1, 2])
    with pytest.raises(NetworkError, match="not str"):
        from_torch("resnet", torch.randn(1))


def test_module_that_cannot_be_traced(torch):
    class Branches(torch.nn.Module):
        def forward(self, x):
            return x if x.sum() > 0 else -x

    with pytest.raises(NetworkError, match=r"Branches: torch\.export cannot trace it"):
        from_torch(Branches(), torch.randn(3))
