"""Runs of stub jobs in a temporary directory; whatever still runs at the end is killed."""

import pytest

from tests.faults import stub_run


@pytest.fixture
def make(tmp_path):
    """Return a function that makes runs; see `stub_run.make`."""
    made = []

    def one(path=None, **settings):
        made.append(stub_run.make(path or tmp_path / f"run{len(made)}", **settings))
        return made[-1]

    yield one
    assert [p for run in made for p in run.close()] == []
