"""What a report says first, in plain words: what was tuned, how far it got, what to do next."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autotune_nb.run.manifest import Manifest
from autotune_nb.run.state import State
from autotune_nb.view.forecast import Forecast, forecast
from autotune_nb.view.sanitise import clean
from autotune_nb.view.status import Status, missing_results
from autotune_nb.view.units import duration, milliseconds, percent, significant

_FURTHER = 1000  # trials whose expected gain tells whether a run has converged
_CONVERGED = 0.01
_NAMES = {"untuned": "TVM without schedules", "onnxruntime": "ONNX Runtime"}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Sentences of a report's head; plain text, not escaped.

    Attributes
    ----------
    subject
        What was tuned, and on what.
    facts
        How far it got.
    advice
        What to do next.
    """

    subject: str
    facts: tuple[str, ...]
    advice: tuple[str, ...]


def summarise(
    manifest: Manifest,
    state: State,
    where: Status,
    *,
    evaluation: Mapping[str, Any] | None = None,
    path: Path | None = None,
) -> Summary:
    """Return the summary of a run.

    Parameters
    ----------
    manifest, state, where
        The run and where it stands.
    evaluation
        What ``Evaluation.to_json`` gave, if the compiled network was evaluated.
    path
        The run directory, for the commands that the advice names.
    """
    device = manifest.device_name or manifest.device
    subject = f"{clean(manifest.name)}, tuned for {clean(device)}."
    future = forecast(state, state.trials + _FURTHER)
    facts = [_spent(state, where), _reached(state)]
    facts += _evaluated(evaluation)
    if future is not None:
        facts.append(_convergence(future, state))
    return Summary(
        subject=subject,
        facts=tuple(facts),
        advice=tuple(
            _advice(manifest, state, where, evaluation=evaluation, future=future, path=path)
        ),
    )


def _spent(state: State, where: Status) -> str:
    time = f" in {duration(state.used_s)} of tuning" if state.used_s else ""
    text = f"{state.trials} trials{time}"
    if state.failed_trials:
        text += f", {state.failed_trials} of them failed"
    return f"{text}. The run is {where.state}" + (
        f" ({clean(state.message)})." if state.message else "."
    )


def _reached(state: State) -> str:
    total = state.estimated_total_latency_s
    if total is None:
        return "No task has a result yet, so there is no estimate of the latency."
    text = f"The estimated total latency is {milliseconds(total)} ms"
    missing = missing_results(state)
    if missing:
        text += (
            f"; it is partial, for {missing} of {len(state.tasks)} tasks have no result and are "
            "left out of it"
        )
    return text + "."


def _evaluated(evaluation: Mapping[str, Any] | None) -> list[str]:
    if evaluation is None:
        return ["The compiled network was not evaluated: neither its outputs nor its speed."]
    error, tolerance = evaluation.get("max_error"), evaluation.get("tolerance")
    if not evaluation.get("correct"):
        size = "not a number" if error is None else f"{error:.1e}"
        text = f"its largest error is {size}, {tolerance:.0e} is allowed"
        return [f"The compiled network is NOT CORRECT: {text}. No speed is claimed."]
    out = [
        f"Its outputs are correct: the largest error is {error:.1e}, {tolerance:.0e} is allowed."
    ]
    latency = evaluation.get("latency_s")
    if latency:
        text = f"Measured: {milliseconds(latency['mean'])} ms"
        text += f" (standard deviation {milliseconds(latency['std'])} ms)"
        for name, other in (evaluation.get("baselines") or {}).items():
            ratio = other["mean"] / latency["mean"]
            words = _NAMES.get(name, clean(str(name)))
            faster = f"{significant(ratio, 3)} times as fast as"
            slower = f"{significant(1 / ratio, 3)} times as slow as"
            text += (
                f"; {faster if ratio >= 1 else slower} {words} ({milliseconds(other['mean'])} ms)"
            )
        out.append(text + ".")
    return out


def _convergence(future: Forecast, state: State) -> str:
    gain = future.gain(state.trials, state.trials + _FURTHER)
    verdict = "has converged" if gain < _CONVERGED else "has not converged"
    if state.partial:
        verdict = "has not converged"
    return f"It {verdict}: the next {_FURTHER} trials are expected to gain {percent(gain)}."


def _advice(
    manifest: Manifest,
    state: State,
    where: Status,
    *,
    evaluation: Mapping[str, Any] | None,
    future: Forecast | None,
    path: Path | None,
) -> list[str]:
    run = shlex.quote(str(path)) if path is not None else "RUN"
    out = []
    if manifest.read_only:
        out.append(
            f"The run was {clean(manifest.origin)} and cannot be tuned on; tune the network in a "
            "new one."
        )
    elif where.state == "lost":
        out.append(f"The tuner died; go on with: autotune-nb resume {run}")
    if evaluation is not None and not evaluation.get("correct"):
        out.append("Do not use the compiled network; report the wrong output with this run.")
    failed = [task for task in state.tasks if task.state == "failed"]
    if failed:
        names = ", ".join(clean(t.info.name) for t in failed[:3])
        out.append(f"{len(failed)} tasks were given up ({names}); see the failures below.")
    if state.trials and state.failed_trials > 0.3 * state.trials:
        out.append("More than 30 % of the trials failed: see the most frequent error below.")
    if future is not None and not manifest.read_only:
        gain = future.gain(state.trials, state.trials + _FURTHER)
        if state.partial or gain >= _CONVERGED:
            budget = state.trials + _FURTHER
            out.append(f"Tune further: autotune-nb resume {run} --trials {budget}")
    if evaluation is None and not manifest.read_only:
        out.append(f"Check and measure the compiled network: autotune-nb evaluate {run}")
    return out or ["Nothing more: the result can be used."]


def commands(manifest: Manifest, state: State) -> list[str]:
    """Return the command lines that make the run again; empty for one that is read-only."""
    source = manifest.network.get("source")
    if manifest.read_only or not isinstance(source, dict):
        return []
    subject = str(source.get("name") or source.get("path") or manifest.name)
    words = ["autotune-nb", "tune", subject]
    target = str(manifest.target.get("kind", "llvm"))
    words += ["--target", target]
    for key, flag in (("layout", "--layout"), ("dtype", "--dtype"), ("batch_size", "--batch-size")):
        if source.get(key) is not None:
            words += [flag, str(source[key])]
    words += ["--seed", str(manifest.options.seed)]
    if state.budget.trials is not None:
        words += ["--trials", str(state.budget.trials)]
    if state.budget.seconds is not None:
        words += ["--seconds", f"{state.budget.seconds:g}"]
    line = shlex.join([clean(word) for word in [*words, "--run", "RUN"]])
    return [line, "autotune-nb evaluate RUN", "autotune-nb report RUN -o report.html"]
