"""Distilled, merged and archived runs compile to the same as the runs they were made of."""

from __future__ import annotations

import json

import numpy as np
import pytest
from tvm.s_tir.meta_schedule.database import JSONDatabase

from autotune_nb.deploy.compile import compile_run
from autotune_nb.run import database
from autotune_nb.run.archive import export_database, export_run, import_archive
from autotune_nb.run.directory import RunDirectory, RunWriter
from autotune_nb.run.distill import distill
from autotune_nb.run.manifest import Options
from autotune_nb.run.merge import merge
from autotune_nb.tuning.create import create


def make(path, network, lines):
    """Make a run whose trials are these records, as opening it for tuning accounts for them."""
    create(path, network, "llvm", Options())
    for line in lines:
        database.append_record(path, line)
    with RunWriter(path) as writer:
        assert writer.state.trials == len(lines)
    return RunDirectory(path)


@pytest.fixture(scope="module")
def run(tiny, records, tmp_path_factory):
    return make(tmp_path_factory.mktemp("runs") / "run", tiny, records)


def chosen(run):
    """Return which record each function of the compiled network runs, and its output."""
    library = compile_run(run)
    assert library.coverage.fallback == ()
    image = np.random.default_rng(1).standard_normal((1, 12, 12, 3)).astype("float32")
    return {f.name: f.record for f in library.coverage.tuned}, library.run([image])[0]


def assert_same(made, run):
    (records, output), (wanted, expected) = chosen(made), chosen(run)
    assert records == wanted
    np.testing.assert_array_equal(output, expected)


def test_a_distilled_run_compiles_to_the_same(run, tmp_path):
    small = distill(run.path, tmp_path / "small")
    assert len(database.read_records(small.path)[0]) == len(run.manifest.tasks)
    assert_same(small, run)


def test_an_archived_run_compiles_to_the_same(run, tmp_path):
    packed = export_run(run.path, tmp_path / "run.tar.gz")
    assert_same(import_archive(packed, tmp_path / "back"), run)


def test_merged_halves_compile_to_the_whole(run, tiny, records, tmp_path):
    slow = [line for line in records if json.loads(line)[1][1] == [9e-3]]
    fast = [line for line in records if line not in slow]
    assert slow
    assert fast
    halves = [make(tmp_path / "a", tiny, slow), make(tmp_path / "b", tiny, fast)]
    assert_same(merge([half.path for half in halves], tmp_path / "both"), run)


def test_plain_tvm_opens_an_exported_database(run, records, tmp_path):
    folder = export_database(run.path, tmp_path / "db")
    opened = JSONDatabase(str(folder / database.WORKLOAD_FILE), str(folder / database.RECORD_FILE))
    assert len(opened) == len(records)
