"""The command line: the session's verbs for a terminal."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import NoReturn

from autotune_nb import __version__
from autotune_nb.cli import about, devices, exchange, results, steering
from autotune_nb.errors import AutotuneError

_DESCRIPTION = (
    "Auto-tune neural networks with Apache TVM. A run directory holds a tuning: make one with "
    "'tune', and hand it to the other verbs."
)


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}; see '{self.prog} --help'\n")


def parser() -> argparse.ArgumentParser:
    """Return the parser of all verbs."""
    top = _Parser(prog="autotune-nb", description=_DESCRIPTION)
    top.add_argument("--version", action="version", version=f"autotune-nb {__version__}")
    verbs = top.add_subparsers(title="verbs", metavar="VERB", required=True, dest="verb")
    about.add_verbs(verbs)
    steering.add_verbs(verbs)
    results.add_verbs(verbs)
    exchange.add_verbs(verbs)
    devices.add_verbs(verbs)
    return top


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb.

    Returns
    -------
    int
        0 if the job is done, 1 if it failed, 2 if the input was bad (nothing was changed then).
    """
    options = parser().parse_args(arguments)
    try:
        return int(options.function(options))
    except AutotuneError as error:
        message = " ".join(str(error).split())
        sys.stderr.write(f"autotune-nb {options.verb}: {message}\n")
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader of our output, such as head, has gone
        sys.stderr.close()
        return 0
