"""Arguments that several verbs share, and output they have in common."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

Verbs = Any  # argparse's action for sub-parsers has no public name


def add_verb(
    verbs: Verbs, name: str, function: Any, text: str, *, json_output: bool = False
) -> argparse.ArgumentParser:
    """Add a verb whose work is done by `function(options) -> exit code`."""
    verb: argparse.ArgumentParser = verbs.add_parser(
        name, help=text, description=text[0].upper() + text[1:] + "."
    )
    verb.set_defaults(function=function)
    if json_output:
        verb.add_argument("--json", action="store_true", help="print JSON instead of text")
    return verb


def add_run(verb: argparse.ArgumentParser) -> None:
    """Add the run directory."""
    verb.add_argument("run", metavar="RUN", help="run directory")


def add_budget(verb: argparse.ArgumentParser) -> None:
    """Add what a run may spend."""
    verb.add_argument(
        "--trials", type=int, metavar="N", help="budget of the run in trials, earlier ones included"
    )
    verb.add_argument(
        "--seconds", type=float, metavar="S", help="budget of the run in seconds of tuning"
    )


def add_layout(verb: argparse.ArgumentParser) -> None:
    """Add the layout of images; None stands for the one that is chosen without being told."""
    verb.add_argument(
        "--layout",
        type=_layout,
        metavar="{auto,NHWC,NCHW}",
        help="layout of images; auto: NHWC in the zoo, else what is faster before tuning",
    )


def _layout(text: str) -> str | None:
    if text not in ("auto", "NHWC", "NCHW"):
        raise argparse.ArgumentTypeError(f"{text!r} is no layout; write auto, NHWC or NCHW")
    return None if text == "auto" else text


def print_json(value: Any) -> None:
    """Print a value as JSON."""
    sys.stdout.write(json.dumps(value, indent=1, allow_nan=False) + "\n")


def shape(text: str) -> tuple[str, tuple[int, ...]]:
    """Read ``x=1,3,320,320``, or ``N=2`` for a symbol."""
    name, _, extents = text.partition("=")
    try:
        return name, tuple(int(extent) for extent in extents.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no shape; write it like x=1,3,320,320"
        ) from None
