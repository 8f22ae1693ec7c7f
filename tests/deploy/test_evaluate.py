"""Evaluating: wrong is said to be wrong, speed is only told of what is right."""

from __future__ import annotations

import dataclasses
import json
import math
import os

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper, numpy_helper

from autotune_nb.deploy import contest
from autotune_nb.deploy.checks import deviation, random_inputs, tolerance_of
from autotune_nb.deploy.compile import compile_network
from autotune_nb.deploy.contest import ContestantProcess
from autotune_nb.deploy.contestant import timed
from autotune_nb.deploy.evaluate import Latency, _Contest, evaluate
from autotune_nb.deploy.onnx_reference import fit_layout, without_last_activation
from autotune_nb.errors import EvaluationError, InputError
from autotune_nb.network.network import TensorSpec
from tests.deploy.conftest import tiny_network, tiny_onnx, tiny_params

QUICK = {"repeats": 2, "min_repeat_ms": 2}
ALL = ("untuned", "fallback", "onnxruntime")


@pytest.fixture(scope="module")
def library(tiny, target):
    return compile_network(tiny, target)


@pytest.fixture(scope="module")
def evaluation(tiny, library):
    return evaluate(tiny, library, ALL, **QUICK)


def test_a_correct_network(evaluation, library):
    assert evaluation.correct
    assert 0 < evaluation.max_error <= evaluation.tolerance == 2e-5
    assert set(evaluation.references) == {"untuned", "onnxruntime"}
    assert set(evaluation.baselines) == set(ALL)
    assert evaluation.problems == ()
    assert evaluation.latency.mean > 0
    assert evaluation.coverage == library.coverage
    assert str(evaluation).startswith("correct (largest error ")


def test_json_has_the_promised_keys(evaluation):
    value = json.loads(json.dumps(evaluation.to_json()))
    assert list(value) == [
        "correct",
        "max_error",
        "tolerance",
        "latency_s",
        "baselines",
        "coverage",
        "estimated_total_latency_s",
    ]
    assert set(value["latency_s"]) == {"mean", "median", "std"}
    assert set(value["baselines"]["onnxruntime"]) == {"mean", "median", "std"}
    assert set(value["coverage"]) == {"tuned", "fallback", "library"}
    assert value["estimated_total_latency_s"] is None


def test_a_wrong_network_gets_no_speed(tiny, target, library):
    params = tiny_params()
    params["b2"] = params["b2"] + np.float32(0.01)
    wrong = dataclasses.replace(tiny, reference=tiny_onnx(params).SerializeToString())
    found = evaluate(wrong, library, ("onnxruntime",), **QUICK)
    assert not found.correct
    assert found.max_error > found.tolerance
    assert found.references["untuned"] <= 2e-5 < found.references["onnxruntime"]
    assert found.latency is None
    assert found.baselines == {}
    assert str(found).startswith("NOT CORRECT")


def test_not_a_number_never_passes(tiny, target):
    params = {name: value.copy() for name, value in tiny.params.items()}
    params["b2"][3] = np.nan
    reference = tiny_onnx(params).SerializeToString()
    network = dataclasses.replace(tiny, params=params, reference=reference)
    found = evaluate(network, compile_network(network, target), (), **QUICK)
    assert (found.correct, found.max_error) == (False, math.inf)
    assert found.to_json()["max_error"] is None


def test_without_a_reference_model_untuned_tvm_is_the_reference(tiny, library):
    bare = dataclasses.replace(tiny, reference=None)
    found = evaluate(bare, library, ("onnxruntime",), **QUICK)
    assert found.correct
    assert set(found.references) == {"untuned"}
    assert found.baselines == {}
    assert found.problems == ("onnxruntime: the network has no ONNX model; left out",)


def test_a_baseline_that_crashes_takes_nothing_along(tiny, library, monkeypatch):
    original = ContestantProcess.ask

    def ask(self, timeout_s, **request):
        if self.name == "onnxruntime" and request["do"] == "measure":
            self._process.kill()
        return original(self, timeout_s, **request)

    monkeypatch.setattr(ContestantProcess, "ask", ask)
    found = evaluate(tiny, library, ("onnxruntime",), **QUICK)
    assert found.correct
    assert found.latency is not None
    assert found.baselines == {}
    assert found.problems == ("onnxruntime: its process died (SIGKILL)",)


def test_a_tuned_network_that_crashes_is_not_correct(tiny, library, monkeypatch):
    original = ContestantProcess.ask

    def ask(self, timeout_s, **request):
        if self.name == "tuned" and request["do"] == "run":
            self._process.kill()
        return original(self, timeout_s, **request)

    monkeypatch.setattr(ContestantProcess, "ask", ask)
    found = evaluate(tiny, library, (), **QUICK)
    assert (found.correct, found.max_error, found.latency) == (False, math.inf, None)
    assert found.problems == ("tuned: its process died (SIGKILL)",)


def test_nothing_to_compare_with_is_an_error(tiny, library, monkeypatch):
    real = _Contest._outputs

    def outputs(self, name, inputs):
        if name != "tuned":
            self.problems.append(f"{name}: no")
            return None
        return real(self, name, inputs)

    monkeypatch.setattr(_Contest, "_outputs", outputs)
    with pytest.raises(EvaluationError, match=r"has nothing to be compared with .untuned: no"):
        evaluate(tiny, library, (), **QUICK)


def test_bad_questions_are_refused(tiny, library):
    with pytest.raises(InputError, match=r"baseline onnxrt: does not exist .did you mean onnxrun"):
        evaluate(tiny, library, ("onnxrt",))
    with pytest.raises(InputError, match="was not compiled from the network other"):
        evaluate(tiny_network("other", seed=3), library)


def test_a_contestant_that_does_not_answer_is_ended():
    process = ContestantProcess("sleeper", 1)
    try:
        with pytest.raises(EvaluationError, match=r"sleeper: did not answer within 0.01 s"):
            process.ask(0.01, do="open", kind="untuned", network="nowhere")
        assert process._process.poll() is not None
    finally:
        process.close()


def test_an_error_of_a_contestant_is_told_and_it_lives_on():
    process = ContestantProcess("confused", 1)
    try:
        for _ in range(2):
            with pytest.raises(EvaluationError, match="confused: RunError: nowhere"):
                process.ask(60, do="open", kind="untuned", network="nowhere")
    finally:
        process.close()


@pytest.mark.faults
def test_a_contestant_ends_with_its_input():
    process = ContestantProcess("orphan", 1)
    process._process.stdin.close()
    assert process._process.wait(timeout=60) == 0
    process.close()


def test_a_slow_contestant_is_run_once_a_repeat():
    class Slow:
        def run(self, inputs):
            os.sched_yield()
            return []

        def seconds_per_run(self, min_repeat_ms):
            return 0.25

    assert timed(Slow(), [], 500) == 0.25
    from autotune_nb.deploy import contestant

    clock = iter([0.0, 3.0])
    original = contestant.time.perf_counter
    contestant.time.perf_counter = lambda: next(clock)
    try:
        assert timed(Slow(), [], 500) == 3.0
    finally:
        contestant.time.perf_counter = original


def test_contestants_are_measured_in_turn(tiny, library, monkeypatch):
    original = ContestantProcess.ask
    asked = []

    def ask(self, timeout_s, **request):
        if request["do"] == "measure":
            asked.append(self.name)
        return original(self, timeout_s, **request)

    monkeypatch.setattr(ContestantProcess, "ask", ask)
    evaluate(tiny, library, ("onnxruntime",), repeats=3, min_repeat_ms=1)
    assert asked == ["tuned", "onnxruntime", "onnxruntime", "tuned", "tuned", "onnxruntime"]


def test_slow_baselines_stop_early(tiny, library, monkeypatch):
    original = ContestantProcess.ask
    asked = []

    def ask(self, timeout_s, **request):
        if request["do"] == "measure":
            asked.append(self.name)
            if self.name == "untuned":
                return {"ok": True, "latency_s": 11.0}
        return original(self, timeout_s, **request)

    monkeypatch.setattr(ContestantProcess, "ask", ask)
    found = evaluate(tiny, library, ("untuned",), repeats=3, min_repeat_ms=2)
    assert asked == ["tuned", "untuned", "tuned", "tuned"]
    assert found.baselines["untuned"] == Latency(mean=11.0, median=11.0, std=0.0)


def test_deviation():
    one = np.float32([1, -4])
    assert deviation([one], [one]) == 0
    assert deviation([np.float32([1, -4.4])], [one]) == pytest.approx(0.1)
    assert deviation([np.float32([1.4, -4])], [one]) == pytest.approx(0.1)
    assert deviation(None, [one]) == math.inf
    assert deviation([one], [one, one]) == math.inf
    assert deviation([one], [one.reshape(2, 1)]) == math.inf
    assert deviation([np.float32([1, np.nan])], [np.float32([1, np.nan])]) == math.inf
    assert deviation([np.float32([1, np.inf])], [np.float32([1, np.inf])]) == math.inf
    assert deviation([np.float32([0.1])], [np.float32([0.0])]) == math.inf
    assert deviation([np.float32([0.0])], [np.float32([0.0])]) == 0
    assert deviation([np.int64([1, 2])], [np.int64([1, 2])]) == 0
    assert deviation([np.int64([1, 2])], [np.int64([2, 2])]) == math.inf
    assert deviation([one, one], [one, np.float32([2, -4])]) == pytest.approx(0.25)


def test_tolerance(tiny):
    assert tolerance_of(tiny) == 2e-5
    half = dataclasses.replace(
        tiny, params={name: value.astype("float16") for name, value in tiny.params.items()}
    )
    assert tolerance_of(half) == 1e-2


def test_tolerance_of_a_deep_network():
    from autotune_nb.network.zoo import network

    assert tolerance_of(network("resnet-50", image_size=32)) == 5e-5


def test_random_inputs():
    specs = [
        TensorSpec(name="a", shape=(2, 3), dtype="float16"),
        TensorSpec(name="b", shape=(64,), dtype="int64"),
        TensorSpec(name="c", shape=(64,), dtype="uint8"),
        TensorSpec(name="d", shape=(64,), dtype="bool"),
    ]
    one, other = random_inputs(specs, 0), random_inputs(specs, 0)
    for a, b, spec in zip(one, other, specs, strict=True):
        assert (a.shape, str(a.dtype)) == (spec.shape, spec.dtype)
        assert np.array_equal(a, b)
    assert set(one[1]) == {0, 1}
    assert one[2].max() > 1
    assert not np.array_equal(one[0], random_inputs(specs, 1)[0])


def ending_with(operator, opset=17, **attributes):
    nodes = [
        helper.make_node("Add", ["x", "shift"], ["logits"]),
        helper.make_node(operator, ["logits"], ["y"], **attributes),
    ]
    shape = [2, 3, 4]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, shape)],
        [numpy_helper.from_array(np.float32([-9]), "shift")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    return model.SerializeToString()


@pytest.mark.parametrize(
    ("operator", "attributes"), [("Sigmoid", {}), ("Softmax", {}), ("Softmax", {"axis": 1})]
)
def test_a_last_activation_is_computed_exactly(operator, attributes):
    data = ending_with(operator, **attributes)
    x = np.random.default_rng(0).standard_normal((2, 3, 4)).astype("float32")
    (whole,) = ort.InferenceSession(data).run(None, {"x": x})
    model, (last,) = without_last_activation(data)
    (logits,) = ort.InferenceSession(model).run(None, {"x": x})
    np.testing.assert_array_equal(logits, x + np.float32(-9))
    exact = last(logits)
    assert exact.dtype == np.float64
    np.testing.assert_allclose(exact, whole, atol=3e-7)


@pytest.mark.parametrize("data", [ending_with("Tanh"), ending_with("Softmax", opset=11)])
def test_other_endings_stay(data):
    model, (last,) = without_last_activation(data)
    assert model is None
    assert last(data) is data


def test_layouts_are_fitted():
    x = np.zeros((1, 8, 9, 3))
    assert fit_layout(x, (1, 8, 9, 3)) is x
    assert fit_layout(x, ("batch", 3, 8, 9)).shape == (1, 3, 8, 9)
    assert fit_layout(fit_layout(x, (1, 3, 8, 9)), (1, 8, 9, 3)).shape == x.shape
    with pytest.raises(ValueError, match="does not fit"):
        fit_layout(x, (1, 3, 9, 8))
    with pytest.raises(ValueError, match="does not fit"):
        fit_layout(np.zeros((3, 4)), (4, 3))


def test_timeouts_are_generous():
    assert contest.RUN_TIMEOUT_S >= 60
