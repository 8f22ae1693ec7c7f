"""Candidates are timed on weights as cold as in their network: copies that take turns."""

from __future__ import annotations

import json

import numpy as np
import pytest
import tvm

from autotune_nb.run.buffers import buffer_bytes, network_bytes
from autotune_nb.run.records import TaskInfo
from autotune_nb.tuning import cold, jobs
from autotune_nb.tuning.messages import MeasureOptions


def tensors(*shapes):
    return [tvm.runtime.tensor(np.full(s, n, "float32")) for n, s in enumerate(shapes)]


def test_copies_are_of_the_weights_alone_and_fill_what_is_between():
    given = tensors((8,), (64, 64), (64,), (8,))
    each = (64 * 64 + 64) * 4
    copies = cold.copies_of(given, 10 * each)
    assert len(copies) == 10
    assert copies[0] == tuple(given)
    for made in copies[1:]:
        assert made[0] is given[0]
        assert made[-1] is given[-1]
        assert made[1] is not given[1]
        np.testing.assert_array_equal(made[1].numpy(), given[1].numpy())
        np.testing.assert_array_equal(made[2].numpy(), given[2].numpy())
    assert len({id(made[1]) for made in copies}) == 10


@pytest.mark.parametrize(
    ("shapes", "between"),
    [
        (((8,), (64, 64), (8,)), 0),  # nothing runs between
        (((8,), (16,), (8,)), 1 << 30),  # small enough to stay near
        (((1 << 20,), (8,)), 1 << 30),  # no weights
    ],
)
def test_what_stays_warm_has_no_copies(shapes, between):
    assert len(cold.copies_of(tensors(*shapes), between)) == 1


def test_copies_take_bounded_memory():
    given = tensors((8,), (1 << 20,), (8,))  # 4 MiB
    assert len(cold.copies_of(given, 1 << 40)) == 16


def test_every_run_takes_the_next_copy():
    seen = []
    turns = cold.Turns(seen.append, [("a",), ("b",), ("c",)])
    found = turns.seconds(4, 2)
    assert seen == ["a", "b", "c", "a", "b", "c", "a", "b", "c"]
    assert len(found) == 2
    assert min(found) > 0


def test_a_candidate_is_timed_with_every_copy():
    class Module(dict):
        def time_evaluator(self, *_, **__):
            raise AssertionError("was timed warm")

    info = json.dumps(
        [["TENSOR", "float32", [8]], ["TENSOR", "float32", [8192]], ["TENSOR", "float32", [8]]]
    )
    for between, count in ((32768 * 5, 5), (32768 * 3, 3)):
        used = []
        jobs._held["key"] = (Module(main=lambda *a, used=used: used.append(a[1])), None)
        options = MeasureOptions(repeats=1, min_repeat_ms=1, best_s=None, between_bytes=between)
        (seconds,) = jobs.measure("key", info, "cpu", None, options)
        assert seconds > 0
        assert len({id(tensor) for tensor in used}) == count


def test_the_bytes_of_a_network_are_those_of_all_calls():
    def task(weight, *shapes):
        return TaskInfo(
            id=0, name="t", weight=weight, flops=0.0, workload_hash="", operators=(), shapes=shapes
        )

    assert buffer_bytes("float16[2, 3]") == 12
    tasks = [task(2, "float32[10]", "int8[4]"), task(1, "bool[]"), task(3, "float32[n]")]
    assert network_bytes(tasks) == 2 * 44 + 1
