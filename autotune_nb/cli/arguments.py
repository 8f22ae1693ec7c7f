"""Arguments that several verbs share, and output they have in common."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from autotune_nb.errors import InputError
from autotune_nb.run.measure import Measure, local, rpc

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


def add_measure(verb: argparse.ArgumentParser) -> None:
    """Add where candidates are measured."""
    verb.add_argument(
        "--tracker",
        metavar="HOST:PORT",
        help="measure on the servers of a TVM tracker, those with --key",
    )
    verb.add_argument("--key", help="key under which the servers registered with the tracker")
    verb.add_argument(
        "--devices",
        metavar="LIST",
        help="measure on several devices of this machine: cuda:0,cuda:1, or cores cpu:0-3,cpu:4-7",
    )


def measure(options: argparse.Namespace) -> Measure | None:
    """Return what `add_measure` was given; None for the target's own device."""
    if options.tracker is None:
        if options.key is not None:
            raise InputError("--key names servers of a tracker; pass --tracker HOST:PORT as well")
        return None if options.devices is None else local(options.devices)
    if options.devices is not None:
        raise InputError("--devices and --tracker exclude each other; pass one of them")
    if options.key is None:
        raise InputError("--tracker needs the key of the servers to use; pass --key KEY as well")
    return rpc(options.tracker, key=options.key)


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
