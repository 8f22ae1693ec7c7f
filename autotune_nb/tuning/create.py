"""Makes a run: extracts a network's tasks and writes all that its tuning needs."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from autotune_nb.network import store
from autotune_nb.network.network import Network
from autotune_nb.run import database, directory, seeds
from autotune_nb.run.manifest import Manifest, Options
from autotune_nb.run.measure import Measure
from autotune_nb.tuning import alike, rpc_ask
from autotune_nb.tuning import target as targets
from autotune_nb.tuning.extract import extract
from autotune_nb.tuning.launch import versions

LISTINGS = "tasks"


def create(
    path: str | Path,
    network: Network,
    target: str | Mapping[str, Any],
    options: Options,
    seed_from: Sequence[str | Path] = (),
    *,
    measure: Measure | None = None,
) -> None:
    """Make a run directory for a network on a target; nothing is tuned yet.

    `measure` says where candidates are measured, if not on the target's device of this machine.

    Records of equal workloads in `seed_from` (runs, or directories of runs) are what its search
    starts from.

    The manifest is written last: a directory without one is no run, so a creation that is
    interrupted leaves nothing that looks like one.

    Raises
    ------
    RunError
        If there is something at `path` already, or `seed_from` holds no run for this target.
    TargetError, NetworkError
        If the target does not exist here, or there is nothing to tune.
    TrackerError
        If `measure` names a tracker that cannot be reached or has no such servers.
    """
    measure = measure or Measure()
    if measure.remote:
        rpc_ask.servers(measure)
    device = targets.device(target)
    alike.check(measure, device)
    resolved = targets.resolve(alike.narrowed(target, measure), measured_here=not measure.remote)
    if measure.remote:
        device_name = measure.key
    else:
        device_name = targets.device_name(resolved, int(device.partition(":")[2] or 0))
    extraction = extract(network, resolved)
    config = json.loads(str(resolved))
    seed_records = seeds.collect(seed_from, extraction.tasks, config)
    run = directory.prepare(path)
    store.save(network, run / "network")
    listings = run / "network" / LISTINGS
    listings.mkdir()
    for task, text in zip(extraction.tasks, extraction.listings, strict=True):
        (listings / f"{task.id}.py").write_text(text + "\n")
    database.append_workloads(run, extraction.workloads)
    seeds.write(run, seed_records)
    Manifest(
        name=network.name,
        network_fingerprint=network.fingerprint(),
        network={
            "source": dict(network.source),
            "layout": network.layout,
            "inputs": [str(spec) for spec in network.inputs],
            "outputs": [str(spec) for spec in network.outputs],
            "parameter_count": network.parameter_count,
        },
        target=config,
        device=device,
        device_name=device_name,
        versions=versions(),
        options=options.resolved(device),
        tasks=extraction.tasks,
        choices=extraction.choices,
        created=time.time(),
        measure=measure.to_json(),
    ).write(run)
