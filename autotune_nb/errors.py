"""Errors a user sees: each names the thing, what is wrong with it, and what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class AutotuneError(Exception):
    """Root of every error this package raises on purpose.

    The message is one line that names the thing, what is wrong with it and what to do about it.
    The command line prints it and exits with `exit_code`.
    """

    exit_code = 1


class InputError(AutotuneError):
    """What the user passed cannot be used; nothing was changed."""

    exit_code = 2


class NetworkError(InputError):
    """A network is unknown, unreadable, or holds something that cannot be imported."""


class TargetError(InputError):
    """A target does not exist, is incomplete, or has no device on this machine."""


class BudgetError(InputError):
    """A budget is not positive, or lies below what the run has already spent."""


class RunError(InputError):
    """A run directory is missing, is none, or belongs to something else."""


class TrackerError(InputError):
    """A TVM tracker cannot be reached, or has no server that can measure for this run."""


class RunLockedError(RunError):
    """Another process is writing to the run."""


class EnvironmentProblem(AutotuneError):
    """This environment cannot tune; `autotune-nb doctor` says why and what to do."""


class TuningFailed(AutotuneError):
    """The tuner stopped without having done its job."""


class CompileError(AutotuneError):
    """A network could not be compiled."""


class EvaluationError(AutotuneError):
    """A compiled network could not be run or compared."""


def near_matches(name: str, known: Iterable[str]) -> str:
    """Return ' (did you mean a, b?)' for the known names closest to `name`, else ''."""
    matches = difflib.get_close_matches(name, list(known), n=3, cutoff=0.6)
    return f" (did you mean {', '.join(matches)}?)" if matches else ""
