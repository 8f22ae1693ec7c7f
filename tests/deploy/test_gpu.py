"""The way to a GPU, as far as it goes without one; and the whole of it where there is one."""

from __future__ import annotations

import gzip

import numpy as np
import pytest
import tvm

from autotune_nb.deploy import compile as compiling
from autotune_nb.deploy.compile import compile_network
from autotune_nb.deploy.evaluate import evaluate
from autotune_nb.deploy.history import History
from autotune_nb.network.lowering import lower
from autotune_nb.network.zoo import network
from autotune_nb.run import database
from autotune_nb.tuning import fallback
from autotune_nb.tuning.target import resolve


@pytest.fixture(scope="module")
def cuda():
    return tvm.target.Target(
        {
            "kind": "cuda",
            "arch": "sm_90",
            "max_threads_per_block": 1024,
            "max_shared_memory_per_block": 49152,
            "thread_warp_size": 32,
        }
    )


@pytest.fixture(scope="module")
def resnet():
    return network("resnet-18")


@pytest.fixture(scope="module")
def h200(repository, tmp_path_factory):
    """The database of a run on an H200, made by another program."""
    folder = tmp_path_factory.mktemp("h200")
    for name in (database.WORKLOAD_FILE, database.RECORD_FILE):
        with gzip.open(repository / "tests" / "data" / "h200-resnet18" / f"{name}.gz") as file:
            (folder / name).write_bytes(file.read())
    return History.read(folder)


def plan(network_, target, history):
    return compiling._Plan(lower(network_, target), target, history, "best")


def finished(made, cuda_graph):
    module = made.lowered.clone()
    for name, choice in made.choices.items():
        module.update_func(module.get_global_var(name), choice.function)
    config = {"relax.backend.use_cuda_graph": cuda_graph}
    with made.target, tvm.transform.PassContext(opt_level=3, config=config):
        return tvm.transform.Sequential(compiling._finish(cuda_graph))(module)


def test_untuned_functions_get_schedules_for_threads(tiny, cuda):
    made = plan(tiny, cuda, None)
    assert {rule for _, rule in made.coverage().fallback} == {"dlight"}
    for choice in made.choices.values():
        assert "threadIdx.x" in choice.function.script()
    unscheduled = made.lowered["mean"]
    assert fallback.candidates(tvm.IRModule({"main": unscheduled}), cuda) == []


def test_the_network_becomes_one_graph_if_asked(tiny, cuda):
    made = plan(tiny, cuda, None)
    names = {v.name_hint for v in finished(made, True).functions}
    assert {"cuda_graph_alloc", "main_cuda_graph_capture"} <= names
    assert not any("graph" in v.name_hint for v in finished(made, False).functions)


def test_records_made_elsewhere_are_found(resnet, cuda, h200):
    coverage = plan(resnet, cuda, h200).coverage()
    assert len(coverage.tuned) == 18
    assert coverage.fallback == ()
    assert sum(f.latency_s * f.calls for f in coverage.tuned) == pytest.approx(0.445e-3, rel=0.05)
    # a version of its dense layer, with the weight the other way round
    (problem,) = coverage.problems
    assert problem.startswith("workload 8: its 63 records fit no function of this network")


@pytest.mark.gpu
def test_a_network_runs_on_the_gpu(tiny):
    target = resolve("cuda")
    library = compile_network(tiny, target, device="cuda:0")
    found = evaluate(tiny, library, ("untuned",), repeats=2, min_repeat_ms=5)
    assert found.correct, found.problems
    assert found.latency is not None
    one = library.run([np.ones((1, 12, 12, 3), "float32")])[0]
    again = library.run([np.ones((1, 12, 12, 3), "float32")])[0]
    assert np.array_equal(one, again)
