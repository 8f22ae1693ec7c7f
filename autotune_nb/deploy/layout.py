"""Chooses the layout of an imported network: the one that measures faster on the target."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from tvm import relax

from autotune_nb.deploy.checks import Array, deviation, random_inputs, tolerance_of
from autotune_nb.deploy.contest import ContestantProcess
from autotune_nb.errors import AutotuneError
from autotune_nb.network import store
from autotune_nb.network.convert import convert
from autotune_nb.network.network import Network
from autotune_nb.tuning import target as targets

# Names that the choice has in `Network.source` and so in the manifest.
KEY = "layout_choice"
_IMPORTED = ("onnx", "torch")
OTHER = {"NCHW": "NHWC", "NHWC": "NCHW"}
# A difference that measuring again may turn around is no reason to change a network; and the same
# model should get the same layout each time, since another layout has other tasks.
_LEAST_GAIN = 0.03
_OPEN_TIMEOUT_S = 60.0
_RUN_TIMEOUT_S = 30.0
_MEASURE_S = 3.0
_MIN_REPEAT_MS = 100
_LEAST_TURNS, _MOST_TURNS = 2, 6


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LayoutChoice:
    """Which layout a network is tuned in, and why.

    Attributes
    ----------
    layout
        The one that was chosen.
    latency_s
        The least time of a run with fallback schedules, by layout; empty if nothing was measured.
    why
        Why nothing was measured, or why the faster one was not taken; else empty.
    """

    layout: str
    latency_s: Mapping[str, float]
    why: str = ""

    def __str__(self) -> str:
        how_else = f"layout={OTHER[self.layout]!r} or --layout {OTHER[self.layout]} overrides"
        times = ", ".join(f"{k} {v * 1e3:.4g} ms" for k, v in self.latency_s.items())
        reason = "; ".join(filter(None, (times and f"before tuning: {times}", self.why)))
        return f"Layout {self.layout} ({reason}); {how_else}"


def is_open(network: Network) -> bool:
    """Tell whether a network's layout was left to be chosen, and there is anything to choose."""
    return (
        network.source.get("kind") in _IMPORTED
        and network.source.get("layout") is None
        and network.layout in OTHER
        and _has_convolution(network)
    )


def settle(
    network: Network,
    target: str | Mapping[str, Any],
    say: Callable[[str], object] = print,
) -> Network:
    """Return the network in the layout that is faster on a target, and say which and why.

    A network whose layout was asked for, or that has no convolution, is returned as it is. On a
    CPU both layouts are compiled with fallback schedules, each in a process of its own, compared,
    and timed in turn for a few seconds.

    Parameters
    ----------
    network
        Its `source` tells whether a layout was asked for.
    target
        As a person gives it.
    say
        Is passed the choice as a line of text.

    Returns
    -------
    Network
        Its `source` holds the choice as ``layout_choice``: `LayoutChoice` as JSON values.

    Raises
    ------
    TargetError
        If the target does not exist here. What goes wrong in measuring is said in the choice.
    """
    if not is_open(network):
        return network
    chosen, choice = _chosen(network, target)
    say(str(choice))
    source = {**network.source, "layout": choice.layout, KEY: dataclasses.asdict(choice)}
    return dataclasses.replace(chosen, source=source)


def _chosen(network: Network, target: str | Mapping[str, Any]) -> tuple[Network, LayoutChoice]:
    own = network.layout
    if targets.device(target) != "cpu":
        # Building a network for a GPU takes a minute, and the schedules that are at hand without
        # tuning say little of what tuning reaches.
        why = "as in the model; layouts are measured on CPUs only"
        return network, LayoutChoice(layout=own, latency_s={}, why=why)
    resolved = json.loads(str(targets.resolve(target)))
    try:
        other = convert(network, layout=OTHER[own])
        times, agree = _measured((network, other), resolved)
    except (AutotuneError, OSError) as error:
        why = f"as in the model; {OTHER[own]} could not be measured: {error}"
        return network, LayoutChoice(layout=own, latency_s={}, why=why)
    if not agree:
        why = f"as in the model; in {OTHER[own]} it would give other results, please report it"
        return network, LayoutChoice(layout=own, latency_s=times, why=why)
    faster = other if times[other.layout] < times[own] * (1 - _LEAST_GAIN) else network
    return faster, LayoutChoice(layout=faster.layout, latency_s=times)


def _measured(
    networks: tuple[Network, ...], target: dict[str, Any]
) -> tuple[dict[str, float], bool]:
    """Return the least time of a run by layout, and whether all give the same results."""
    threads = int(target["num-cores"])
    with (
        tempfile.TemporaryDirectory(prefix="autotune-nb-") as name,
        contextlib.ExitStack() as stack,
    ):
        scratch = Path(name)
        arrays = random_inputs(networks[0].inputs, seed=0)
        named = {f"{n:04d}": array for n, array in enumerate(arrays)}
        np.savez(scratch / "inputs.npz", **named)  # type: ignore[arg-type]
        processes = {n.layout: ContestantProcess(n.layout, threads) for n in networks}
        for process in processes.values():
            stack.callback(process.close)

        def start(network: Network) -> list[Array]:
            folder = scratch / network.layout
            # The reference, as large as the weights, is not needed.
            store.save(dataclasses.replace(network, reference=None), folder)
            process, outputs = processes[network.layout], scratch / f"{network.layout}.npz"
            process.ask(
                _OPEN_TIMEOUT_S,
                do="open",
                kind="fallback",
                network=str(folder),
                target=target,
                device="cpu",
            )
            process.ask(
                _RUN_TIMEOUT_S, do="run", inputs=str(scratch / "inputs.npz"), outputs=str(outputs)
            )
            with np.load(outputs, allow_pickle=False) as stored:
                return [stored[key] for key in sorted(stored.files)]

        with ThreadPoolExecutor(len(networks)) as pool:
            results = list(pool.map(start, networks))
        agree = deviation(results[1], results[0]) <= tolerance_of(networks[0])
        return _timed(processes), agree


def _timed(processes: Mapping[str, ContestantProcess]) -> dict[str, float]:
    """Time the contestants in turn, for as long as is to be spent on it."""
    times: dict[str, list[float]] = {layout: [] for layout in processes}
    end = time.monotonic() + _MEASURE_S
    for turn in range(_MOST_TURNS):
        if turn >= _LEAST_TURNS and time.monotonic() > end:
            break
        order: Iterable[str] = processes if turn % 2 == 0 else reversed(list(processes))
        for layout in order:
            answer = processes[layout].ask(
                _RUN_TIMEOUT_S, do="measure", min_repeat_ms=_MIN_REPEAT_MS
            )
            times[layout].append(float(answer["latency_s"]))
    return {layout: min(samples) for layout, samples in times.items()}


def _has_convolution(network: Network) -> bool:
    found = False

    def visit(expression: Any) -> None:
        nonlocal found
        if isinstance(expression, tvm.ir.Call):
            found = found or getattr(expression.op, "name", "") == "relax.nn.conv2d"

    relax.analysis.post_order_visit(network.module["main"], visit)
    return found
