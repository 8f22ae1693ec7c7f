"""Verbs that change nothing: doctor, networks, tasks."""

from __future__ import annotations

import argparse
import dataclasses

from autotune_nb.cli.arguments import Verbs, add_run, add_verb, print_json
from autotune_nb.session import TuningSession


def add_verbs(verbs: Verbs) -> None:
    """Add these verbs."""
    verb = add_verb(
        verbs, "doctor", _doctor, "tell whether this environment can tune", json_output=True
    )
    verb.add_argument("--target", help="also check this target and its device")
    verb.add_argument("--workers", type=int, metavar="N", help="build processes to plan for")
    add_verb(verbs, "networks", _networks, "list the networks of the zoo", json_output=True)
    verb = add_verb(verbs, "tasks", _tasks, "list the tasks of a run", json_output=True)
    add_run(verb)
    verb.add_argument("--listing", type=int, metavar="ID", help="print the TensorIR of this task")


def _doctor(options: argparse.Namespace) -> int:
    from autotune_nb import doctor

    findings = doctor.check(options.target, workers=options.workers)
    if options.json:
        print_json([dataclasses.asdict(finding) for finding in findings])
    else:
        print(doctor.render(findings))
    return doctor.exit_code(findings)


def _networks(options: argparse.Namespace) -> int:
    from autotune_nb.network import list_networks

    found = list_networks()
    if options.json:
        print_json([dataclasses.asdict(network) for network in found])
        return 0
    width = max(len(network.name) for network in found)
    print(f"{'Name':<{width}}  {'Parameters':>12}  {'GFLOP':>8}  {'Layouts':<10}  Inputs")
    for network in found:
        layouts = ", ".join(network.layouts) or "-"
        inputs = ", ".join(
            f"{name} {'x'.join(map(str, shape))}" for name, shape in network.inputs.items()
        )
        flops = network.flops / 1e9
        print(
            f"{network.name:<{width}}  {network.parameters:>12,}  {flops:>8.3g}  "
            f"{layouts:<10}  {inputs}"
        )
    return 0


def _tasks(options: argparse.Namespace) -> int:
    session = TuningSession.open(options.run)
    if options.listing is not None:
        print(session.listing(options.listing), end="")
        return 0
    if options.json:
        print_json([dataclasses.asdict(task) for task in session.manifest.tasks])
        return 0
    from autotune_nb.view.sanitise import clean

    tasks = session.manifest.tasks
    names = [clean(task.name) for task in tasks]
    width = max(map(len, names))
    print(f"{'ID':>3}  {'Name':<{width}}  {'Weight':>6}  {'MFLOP':>9}  Operators; buffers")
    for task, name in zip(tasks, names, strict=True):
        operators = ", ".join(task.operators) + (" (trivial)" if task.trivial else "")
        buffers = " ".join(task.shapes)
        print(
            f"{task.id:>3}  {name:<{width}}  {task.weight:>6}  {task.flops / 1e6:>9.4g}  "
            f"{clean(operators)}; {clean(buffers)}"
        )
    return 0
