"""The profile: every function is timed in place, as often as the network calls it."""

from __future__ import annotations

import json
import math
import time

import numpy as np
import pytest

from autotune_nb.deploy.compile import compile_network
from autotune_nb.deploy.history import History
from autotune_nb.deploy.profile import profile
from autotune_nb.errors import InputError
from autotune_nb.run.database import read_records


@pytest.fixture(scope="module")
def library(tiny, target, workloads, records, tmp_path_factory):
    folder = tmp_path_factory.mktemp("profile")
    (folder / "database_tuning_record.json").write_text("".join(f"{r}\n" for r in records[:2]))
    return compile_network(tiny, target, History(workloads, read_records(folder)[0]))


@pytest.fixture(scope="module")
def found(library):
    return profile(library, repeats=5)


def test_every_function_has_its_calls_and_time(found, library):
    rows = {row.name: row for row in found.functions}
    (tuned,) = library.coverage.tuned
    assert rows[tuned.name].kind == "tuned"
    assert rows[tuned.name].calls == tuned.calls
    assert rows[tuned.name].estimated_s == pytest.approx(tuned.latency_s * tuned.calls)
    for name, _ in library.coverage.fallback:
        assert (rows[name].kind, rows[name].task, rows[name].estimated_s) == (
            "fallback",
            None,
            None,
        )
        assert rows[name].alone_s > 0
    assert len(library.coverage.fallback) >= 2
    assert any(row.kind == "runtime" and row.alone_s is None for row in found.functions)
    times = [row.duration_s for row in found.functions]
    assert times == sorted(times, reverse=True)
    assert min(times) > 0
    assert found.outside_s == pytest.approx(found.latency_s - sum(times))


def test_the_table_and_the_json_say_the_same(found):
    table = found.table()
    value = json.loads(json.dumps(found.to_json()))
    assert table["operator"].tolist() == [row["name"] for row in value["functions"]]
    assert table["share (%)"].sum() == pytest.approx(100)
    tuned = table[table["kind"] == "tuned"].iloc[0]
    assert tuned["ratio"] == pytest.approx(tuned["time (ms)"] / tuned["estimated (ms)"])
    assert math.isnan(table[table["kind"] == "fallback"].iloc[0]["ratio"])
    assert len(str(found).splitlines()) == len(table) + 2


def test_a_function_that_takes_longer_is_said_to(found, library, image, monkeypatch):
    """The clock is asked around the call itself: slow down one function and only it is slower."""
    slow = library.coverage.fallback[0][0]
    clock, ahead = time.perf_counter, 0.0

    def late(watch, function, symbol, before, returned, *arguments):
        nonlocal ahead
        if symbol == slow and not before:
            ahead += 0.05
        return original(watch, function, symbol, before, returned, *arguments)

    from autotune_nb.deploy import profile as module

    original = module._Watch.__call__
    monkeypatch.setattr(module._Watch, "__call__", late)
    monkeypatch.setattr(module.time, "perf_counter", lambda: clock() + ahead)
    rows = {row.name: row for row in profile(library, [image], repeats=3).functions}
    assert rows[slow].duration_s == pytest.approx(0.05 * rows[slow].calls, rel=0.5)
    assert all(row.duration_s < 0.02 for name, row in rows.items() if name != slow)


def test_it_leaves_the_library_as_it_was(library, image):
    before = library.run([image])
    profile(library, [image], repeats=1)
    np.testing.assert_array_equal(library.run([image])[0], before[0])


def test_bad_input_is_refused(library):
    with pytest.raises(InputError, match="repeats is 0"):
        profile(library, repeats=0)
    with pytest.raises(InputError, match="was given"):
        profile(library, [np.zeros((1, 2), dtype="float32")])
