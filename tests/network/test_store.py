"""Storing: what is loaded equals what was saved, and damage is found before anything parses it."""

from __future__ import annotations

import dataclasses
import json
import zipfile

import ml_dtypes
import numpy as np
import pytest
import tvm
from tvm import relax

from autotune_nb.errors import RunError
from autotune_nb.network import network, store
from autotune_nb.network.network import Network, TensorSpec
from tests.network.numerics import random_inputs, run_tvm


@pytest.fixture(scope="module")
def mlp():
    return network("mlp")


def odd_network():
    """Weights of every awkward kind, under names no file could have."""
    params = {
        "file": np.float16([[1.5, -2.0]]),
        "../a/b:0": np.asarray([1.0, 2.5], dtype=ml_dtypes.bfloat16),
        "scalar": np.float32(3.0).reshape(()),
        "empty": np.zeros((0, 4), dtype=np.int8),
        "flags": np.array([True, False]),
        "f8": np.asarray([0.5, 1.0], dtype=ml_dtypes.float8_e4m3fn),
        "strided": np.arange(12, dtype=np.int64).reshape(3, 4).T,
    }
    variables = [
        relax.Var(name, relax.TensorType(value.shape, str(value.dtype)))
        for name, value in params.items()
    ]
    x = relax.Var("x", relax.TensorType((2,), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x, *variables]):
        with builder.dataflow():
            output = builder.emit_output(relax.op.add(x, x))
        builder.emit_func_output(output)
    spec = TensorSpec(name="x", shape=(2,), dtype="float32")
    return Network(name="odd", module=builder.get(), params=params, inputs=(spec,), outputs=(spec,))


def assert_equal(one, other):
    tvm.ir.assert_structural_equal(one.module, other.module)
    assert list(one.params) == list(other.params)
    for name, value in one.params.items():
        loaded = other.params[name]
        assert (loaded.dtype, loaded.shape) == (value.dtype, value.shape)
        assert loaded.tobytes() == value.tobytes()
    for field in dataclasses.fields(Network):
        if field.name not in ("module", "params"):
            assert getattr(one, field.name) == getattr(other, field.name), field.name
    assert one.fingerprint() == other.fingerprint()


def test_round_trip(mlp, tmp_path):
    store.save(mlp, tmp_path / "deep" / "network")
    loaded = store.load(tmp_path / "deep" / "network")
    assert_equal(mlp, loaded)
    inputs = random_inputs(mlp.inputs)
    np.testing.assert_array_equal(run_tvm(mlp, inputs)[0], run_tvm(loaded, inputs)[0])


def test_round_trip_of_awkward_weights(tmp_path):
    net = odd_network()
    store.save(net, tmp_path)
    assert_equal(net, store.load(tmp_path))
    assert not (tmp_path / "reference.onnx").exists()


def test_saving_again_replaces(mlp, tmp_path):
    store.save(network("mlp", seed=1), tmp_path)
    store.save(mlp, tmp_path)
    assert_equal(mlp, store.load(tmp_path))
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "module.json",
        "network.json",
        "params.npz",
        "reference.onnx",
    ]


def test_weights_hold_no_objects(mlp, tmp_path):
    store.save(mlp, tmp_path)
    with np.load(tmp_path / "params.npz", allow_pickle=False) as archive:
        assert len(archive.files) == len(mlp.params)


@pytest.mark.parametrize("name", ["module.json", "network.json", "params.npz", "reference.onnx"])
@pytest.mark.parametrize("damage", ["truncate", "flip", "empty", "remove"])
def test_damage_is_named(mlp, tmp_path, name, damage):
    store.save(mlp, tmp_path)
    path = tmp_path / name
    data = bytearray(path.read_bytes())
    if damage == "remove":
        path.unlink()
    elif damage == "flip":
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    else:
        path.write_bytes(data[: len(data) // 2 if damage == "truncate" else 0])
    with pytest.raises(RunError, match=name):
        store.load(tmp_path)


@pytest.mark.parametrize("text", ["[]", "3", '{"format": 1}', '{"format": "1"}', "[" * 100_000])
def test_an_index_that_is_none(tmp_path, text):
    (tmp_path / "network.json").write_text(text)
    with pytest.raises(RunError, match=r"network\.json: damaged"):
        store.load(tmp_path)


def test_later_format(tmp_path):
    (tmp_path / "network.json").write_text(json.dumps({"format": store.FORMAT + 1}))
    with pytest.raises(RunError, match="later version of autotune-nb"):
        store.load(tmp_path)


def test_interrupted_save_leaves_no_network(mlp, tmp_path, monkeypatch):
    def fail(path, data):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(store.lines, "replace", fail)
    with pytest.raises(RunError, match="No space left"):
        store.save(mlp, tmp_path)
    with pytest.raises(RunError, match="no network is stored here"):
        store.load(tmp_path)


def test_weights_that_another_numpy_wrote(mlp, tmp_path):
    store.save(mlp, tmp_path)
    with zipfile.ZipFile(tmp_path / "params.npz", "w") as archive:
        archive.writestr("0.npy", b"later format")
    index = json.loads((tmp_path / "network.json").read_text())
    del index["digest"]
    index["files"]["params.npz"] = store._digest((tmp_path / "params.npz").read_bytes())
    index["digest"] = store._digest(store._canonical(index))
    (tmp_path / "network.json").write_text(json.dumps(index))
    with pytest.raises(RunError, match="cannot be read"):
        store.load(tmp_path)
