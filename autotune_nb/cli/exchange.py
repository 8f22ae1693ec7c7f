"""Verbs that bring runs in, pass them on, and set them side by side."""

from __future__ import annotations

import argparse
import shutil
import sys

from autotune_nb.cli.arguments import Verbs, add_run, add_verb, print_json
from autotune_nb.errors import InputError
from autotune_nb.run.directory import RunDirectory


def add_verbs(verbs: Verbs) -> None:
    """Add these verbs."""
    verb = add_verb(
        verbs,
        "import",
        _import,
        "make a run of a MetaSchedule database, a log of the auto-scheduler or an exported archive",
    )
    verb.add_argument("source", metavar="DIRECTORY_OR_FILE", help="what to import")
    _add_destination(verb)
    verb.add_argument("--name", default="", help="what was tuned (default: the name of the source)")
    verb.add_argument(
        "--weights",
        type=_weights,
        metavar="N,N,...",
        help="how often each workload occurs in the network (default: 1 each)",
    )
    verb.add_argument("--device-name", default="", metavar="NAME", help="what measured")

    verb = add_verb(verbs, "export", _export, "write a run, or its database, to pass it on")
    add_run(verb)
    verb.add_argument(
        "-o",
        "--output",
        required=True,
        metavar="FILE.tar.gz|DIR",
        help="archive to write, or a new directory",
    )
    verb.add_argument(
        "--database", action="store_true", help="only the tuning records, for plain TVM"
    )

    verb = add_verb(
        verbs, "distill", _distill, "make a small run of the best records of each task of a run"
    )
    add_run(verb)
    _add_destination(verb)
    verb.add_argument(
        "-k", type=int, default=1, metavar="K", help="records to keep of each task (default: 1)"
    )

    verb = add_verb(
        verbs, "merge", _merge, "make one run of several of the same network and target"
    )
    _add_runs(verb)
    _add_destination(verb)

    verb = add_verb(verbs, "compare", _compare, "show runs side by side", json_output=True)
    _add_runs(verb)
    verb.add_argument(
        "--latency",
        type=float,
        metavar="MS",
        help="estimated total, in milliseconds, for which to tell the trials and time it took",
    )


def _add_destination(verb: argparse.ArgumentParser) -> None:
    verb.add_argument(
        "--run", dest="to", required=True, metavar="DIR", help="run directory to make"
    )


def _add_runs(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("runs", nargs="+", metavar="RUN", help="run directory; two or more")


def _weights(text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} are no weights; write them like 1,2,1"
        ) from None


def _import(options: argparse.Namespace) -> int:
    from autotune_nb.run.imports import import_run

    run = import_run(
        options.source,
        options.to,
        name=options.name,
        weights=options.weights,
        device_name=options.device_name,
    )
    return _say_run(run)


def _export(options: argparse.Namespace) -> int:
    from autotune_nb.run import archive

    export = archive.export_database if options.database else archive.export_run
    print(f"Wrote {export(options.run, options.output)}")
    return 0


def _distill(options: argparse.Namespace) -> int:
    from autotune_nb.run.distill import distill

    return _say_run(distill(options.run, options.to, options.k))


def _merge(options: argparse.Namespace) -> int:
    from autotune_nb.run.merge import merge

    return _say_run(merge(options.runs, options.to))


def _compare(options: argparse.Namespace) -> int:
    from autotune_nb.view.compare import compare

    if options.latency is not None and not 0 < options.latency < float("inf"):
        raise InputError(f"a latency of {options.latency} ms is not possible; pass one above 0")
    latency_s = None if options.latency is None else options.latency / 1e3
    comparison = compare(options.runs, latency_s=latency_s)
    if options.json:
        print_json(comparison.to_json())
    else:
        columns = shutil.get_terminal_size((100, 24)).columns
        unicode = (sys.stdout.encoding or "").lower().replace("-", "") in ("utf8", "utf16")
        print(comparison.to_text(columns, ascii_only=not unicode))
    return 0


def _say_run(run: RunDirectory) -> int:
    from autotune_nb.view.sanitise import clean

    state = run.poll()
    read_only = ", read-only" if run.manifest.read_only else ""
    print(
        clean(
            f"Run {run.path}: {run.manifest.name}, {len(state.tasks)} tasks, {state.trials} "
            f"trials{read_only}"
        )
    )
    return 0
