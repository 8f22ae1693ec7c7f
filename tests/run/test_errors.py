"""Errors: one root, and exit codes that the command line relies on."""

import inspect

import pytest

from autotune_nb import errors

KINDS = [
    kind
    for _, kind in inspect.getmembers(errors, inspect.isclass)
    if issubclass(kind, Exception) and kind is not errors.AutotuneError
]


@pytest.mark.parametrize("kind", KINDS)
def test_every_error_has_the_one_root(kind):
    assert issubclass(kind, errors.AutotuneError)
    assert kind.__doc__


@pytest.mark.parametrize("kind", KINDS)
def test_bad_input_exits_with_two_and_a_failed_job_with_one(kind):
    assert kind.exit_code == (2 if issubclass(kind, errors.InputError) else 1)


def test_a_locked_run_is_bad_input():
    assert issubclass(errors.RunLockedError, errors.RunError)
    assert errors.RunLockedError.exit_code == 2
    assert errors.TuningFailed.exit_code == 1


def test_near_matches_name_the_closest_first_and_no_more_than_three():
    known = ["resnet-18", "resnet-34", "resnet-50", "resnet-101", "mlp"]
    assert errors.near_matches("resnet-81", known).startswith(" (did you mean resnet-")
    assert errors.near_matches("resnet", known).count(",") == 2
    assert errors.near_matches("mpl", known) == " (did you mean mlp?)"


def test_nothing_near_says_nothing():
    assert errors.near_matches("transformer", ["mlp"]) == ""
    assert errors.near_matches("", iter(())) == ""
