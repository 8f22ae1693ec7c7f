"""Verbs that use what tuning found: compile, evaluate, profile, report."""

from __future__ import annotations

import argparse
from pathlib import Path

from autotune_nb.cli.arguments import Verbs, add_run, add_verb, print_json
from autotune_nb.session import TuningSession


def add_verbs(verbs: Verbs) -> None:
    """Add these verbs."""
    verb = add_verb(
        verbs, "compile", _compile, "compile a run's network with its best schedules so far"
    )
    add_run(verb)
    verb.add_argument("-o", "--output", metavar="FILE", help="library to write (default: in RUN)")
    verb = add_verb(
        verbs,
        "evaluate",
        _evaluate,
        "check the compiled network, then time it beside baselines",
        json_output=True,
    )
    add_run(verb)
    verb.add_argument(
        "--baselines",
        default="untuned,onnxruntime",
        metavar="NAMES",
        help="any of untuned, fallback, onnxruntime, separated by commas (default: %(default)s)",
    )

    verb = add_verb(
        verbs,
        "profile",
        _profile,
        "time each function inside the compiled network, beside what its task promised",
        json_output=True,
    )
    add_run(verb)

    verb = add_verb(verbs, "report", _report, "write a report of a run to pass on")
    add_run(verb)
    verb.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        help=".html (one file that opens offline), .md or .csv (default: report.html in RUN)",
    )


def _compile(options: argparse.Namespace) -> int:
    session = TuningSession.open(options.run)
    library = session.compile()
    name = f"{session.manifest.name.replace('/', '_')}.so"
    path = Path(options.output) if options.output else session.directory.artifacts / name
    library.export(path)
    print(library.coverage)
    print(f"Wrote {path}")
    return 0


def _evaluate(options: argparse.Namespace) -> int:
    session = TuningSession.open(options.run)
    names = [name.strip() for name in options.baselines.split(",") if name.strip()]
    result = session.evaluate(baselines=names)
    if options.json:
        print_json(result.to_json())
    else:
        print(result)
    return 0 if result.correct else 1


def _profile(options: argparse.Namespace) -> int:
    from autotune_nb.deploy.profile import profile_run

    result = profile_run(TuningSession.open(options.run).directory)
    if options.json:
        print_json(result.to_json())
    else:
        print(result)
    return 0


def _report(options: argparse.Namespace) -> int:
    session = TuningSession.open(options.run)
    path = session.report(options.output or session.directory.artifacts / "report.html")
    print(f"Wrote {path}")
    return 0
