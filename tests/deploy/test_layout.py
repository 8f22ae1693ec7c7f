"""The layout of imported networks: measured, shown, kept in the manifest, and overridden."""

from __future__ import annotations

import dataclasses

import pytest
from onnx import helper

from autotune_nb.deploy import layout
from autotune_nb.errors import TargetError
from autotune_nb.network import from_onnx, network
from autotune_nb.session import TuningSession
from tests.network import models


@pytest.fixture(scope="module")
def imported():
    return from_onnx(models.convolution())


def test_a_run_of_an_imported_network_measures_and_remembers(imported, tmp_path, capsys):
    session = TuningSession.create(tmp_path / "run", imported, "llvm")
    said = capsys.readouterr().out
    described = session.manifest.network
    choice = described["source"]["layout_choice"]
    times = choice["latency_s"]
    assert set(times) == {"NCHW", "NHWC"}
    assert all(0 < seconds < 1 for seconds in times.values())
    assert choice["why"] == ""
    assert times[choice["layout"]] <= min(times.values()) / 0.97
    assert described["layout"] == described["source"]["layout"] == choice["layout"]
    assert session.network().layout == choice["layout"]
    assert said.startswith(f"Layout {choice['layout']} (before tuning: NCHW ")
    assert " ms, NHWC " in said
    # The choice is made once: what comes out of a run has its layout.
    assert not layout.is_open(session.network())


@pytest.mark.parametrize(
    ("times", "chosen"),
    [
        ({"NCHW": 2e-3, "NHWC": 1e-3}, "NHWC"),
        ({"NCHW": 1e-3, "NHWC": 2e-3}, "NCHW"),
        ({"NCHW": 1e-3, "NHWC": 0.99e-3}, "NCHW"),
    ],
)
def test_the_faster_one_is_taken_unless_it_hardly_is(imported, monkeypatch, times, chosen):
    monkeypatch.setattr(layout, "_measured", lambda *_: (times, True))
    said = []
    settled = layout.settle(imported, "llvm", said.append)
    assert settled.layout == settled.source["layout"] == chosen
    assert (settled.fingerprint() == imported.fingerprint()) == (chosen == "NCHW")
    (line,) = said
    assert line.startswith(f"Layout {chosen} (before tuning: NCHW ")
    assert f"--layout {layout.OTHER[chosen]} overrides" in line


def unasked(net, target="llvm"):
    said = []
    assert layout.settle(net, target, said.append) is net
    assert said == []


def test_nothing_is_measured_where_there_is_no_choice(monkeypatch):
    monkeypatch.setattr(layout, "_measured", None)
    unasked(network("resnet-18", layout="NCHW", image_size=32))
    for asked in ("NCHW", "NHWC"):
        unasked(from_onnx(models.convolution(), layout=asked))
    pool = models.model(
        [helper.make_node("GlobalAveragePool", ["x"], ["y"])],
        [models.value("x", [1, 3, 4, 4])],
        [models.value("y", [1, 3, 1, 1])],
    )
    assert from_onnx(pool).layout == "NCHW"
    unasked(from_onnx(pool))


def test_on_a_gpu_the_model_decides(imported, monkeypatch):
    monkeypatch.setattr(layout, "_measured", None)
    said = []
    settled = layout.settle(imported, "cuda", said.append)
    assert settled.layout == "NCHW"
    assert settled.fingerprint() == imported.fingerprint()
    assert "as in the model; layouts are measured on CPUs only" in said[0]


def test_precision_that_was_asked_for_leaves_the_layout_open(monkeypatch):
    monkeypatch.setattr(layout, "_measured", lambda *_: ({"NCHW": 2e-3, "NHWC": 1e-3}, True))
    half = from_onnx(models.convolution(), dtype="float16")
    settled = layout.settle(half, "llvm", lambda _: None)
    assert (settled.layout, settled.source["dtype"]) == ("NHWC", "float16")
    assert "float16" in {str(value.dtype) for value in settled.params.values()}


def test_a_measurement_that_fails_leaves_the_network_as_it_was(imported, monkeypatch):
    monkeypatch.setattr(layout, "_OPEN_TIMEOUT_S", 0.01)
    said = []
    settled = layout.settle(imported, "llvm", said.append)
    assert settled.fingerprint() == imported.fingerprint()
    assert "as in the model; NHWC could not be measured: " in said[0]
    assert "did not answer within 0.01 s" in said[0]


def test_a_layout_that_computes_something_else_is_not_taken(imported, monkeypatch):
    params = {key: value + 1 for key, value in imported.params.items()}
    wrong = dataclasses.replace(imported, params=params, layout="NHWC")
    monkeypatch.setattr(layout, "convert", lambda *_, **__: wrong)
    monkeypatch.setattr(layout, "_MEASURE_S", 0.0)
    said = []
    settled = layout.settle(imported, "llvm", said.append)
    assert settled.fingerprint() == imported.fingerprint()
    assert "in NHWC it would give other results" in said[0]


def test_a_target_that_does_not_exist_is_refused(imported):
    with pytest.raises(TargetError, match="lvlm"):
        layout.settle(imported, "lvlm", lambda _: None)
