"""Reports that people pass on: one HTML file that opens offline, Markdown, or tables as CSV."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import plotly.graph_objects as go

from autotune_nb.errors import InputError
from autotune_nb.run import evaluations, lines, profiles
from autotune_nb.run.directory import RunDirectory
from autotune_nb.run.manifest import Manifest
from autotune_nb.run.state import State
from autotune_nb.view import markup, plots, tables
from autotune_nb.view.plots.trials import Loaded
from autotune_nb.view.sanitise import clean, escape, pad, shorten, width
from autotune_nb.view.snapshot import figures_html
from autotune_nb.view.source import Source, directory_of
from autotune_nb.view.status import error_totals, status
from autotune_nb.view.summary import Summary, commands, summarise
from autotune_nb.view.units import milliseconds, significant

FORMATS = (".html", ".md", ".csv")
_MAX_TASKS = 400  # rows of a report's task table; the CSV has them all

_PAGE_STYLE = """<style>
body {font-family: system-ui, sans-serif; max-width: 1100px; margin: 24px auto; padding: 0 16px;
  color: #202020; background: #fff; line-height: 1.5}
h1 {font-size: 24px} h2 {font-size: 18px; margin-top: 32px}
pre {background: #f4f4f4; padding: 8px; overflow: auto}
table.facts td {padding: 2px 12px 2px 0; vertical-align: top}
</style>"""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """All that a report is made of."""

    directory: RunDirectory
    manifest: Manifest
    state: State
    summary: Summary
    evaluation: Mapping[str, Any] | None


def write_report(
    source: Source, path: str | Path, *, evaluation: Mapping[str, Any] | None = None
) -> Path:
    """Write a report of a run and return its path.

    Parameters
    ----------
    source
        A session, a run directory or its path.
    path
        The file; its suffix says what is written: ``.html`` a page that opens offline, ``.md``
        Markdown, ``.csv`` the task table (and the trials beside it, as ``….trials.csv``).
    evaluation
        What ``Evaluation.to_json`` gave; if None, what was last stored among the run's artifacts.

    Raises
    ------
    InputError
        If the suffix is none of these, or `source` is a bare state.
    """
    path = Path(path)
    makers: dict[str, Callable[[_Run], str]] = {".html": _html, ".md": _markdown}
    if path.suffix not in FORMATS:
        raise InputError(
            f"{path}: cannot tell the format of the report; end its name with one of "
            f"{', '.join(FORMATS)}"
        )
    if not path.parent.is_dir():
        raise InputError(f"{path}: its folder does not exist; make it first")
    run = _gather(source, evaluation)
    if path.suffix == ".csv":
        _csv(run, path)
    else:
        lines.replace(path, makers[path.suffix](run).encode("utf-8", "replace"))
    return path


def _gather(source: Source, evaluation: Mapping[str, Any] | None) -> _Run:
    directory = directory_of(source)
    if directory is None:
        raise InputError("a state cannot be reported; pass the session or its run directory")
    state, manifest = directory.poll(), directory.manifest
    where = status(state, None if manifest.read_only else directory.holder())
    if evaluation is None:
        evaluation = evaluations.read(directory)
    return _Run(
        directory=directory,
        manifest=manifest,
        state=state,
        summary=summarise(manifest, state, where, evaluation=evaluation, path=directory.path),
        evaluation=evaluation,
    )


def _figures(run: _Run) -> list[go.Figure]:
    source = Loaded(run.directory)
    references = {}
    for name, latency in ((run.evaluation or {}).get("baselines") or {}).items():
        references[str(name)] = float(latency["mean"])
    total = run.state.estimated_total_latency_s or 0.0
    # a baseline far off would press the curve flat against the axis
    references = {n: v for n, v in references.items() if v < 5 * total}
    figures = [plots.convergence(source, references=references)]
    if run.state.estimated_total_latency_s is not None:
        figures.append(plots.forecast(source))
        figures += [plots.latency_share(source), plots.task_convergence(source)]
    if run.state.trials:
        figures += [
            plots.trials_per_task(run.state) if len(run.state.tasks) <= 60 else None,
            plots.allocation(source),
            plots.trial_results(source),
            plots.trial_costs(source) if run.state.used_s else None,
            plots.failures(source) if run.state.failed_trials else None,
        ]
    measured = profiles.read(run.directory)
    if measured is not None:
        figures.append(plots.operator_profile(measured["functions"]))
    return [figure for figure in figures if figure is not None]


def _html(run: _Run) -> str:
    manifest, state = run.manifest, run.state
    facts = "".join(f"<li>{escape(fact)}</li>" for fact in run.summary.facts)
    advice = "".join(f"<li>{escape(line)}</li>" for line in run.summary.advice)
    parts = [
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>",
        f"<title>{escape(manifest.name)}: tuning report</title>",
        markup.STYLE,
        _PAGE_STYLE,
        "</head><body>",
        f"<h1>{escape(run.summary.subject)}</h1><ul>{facts}</ul>",
        f"<h2>What to do next</h2><ul>{advice}</ul>",
        markup.damage(state),
        "<h2>Tasks</h2>",
        markup.task_table(
            state, order="share", descending=True, max_rows=_MAX_TASKS, max_bytes=400_000
        ),
        "<h2>Plots</h2>",
        *figures_html(_figures(run)),
    ]
    if state.failed_trials:
        parts += ["<h2>Failures</h2>", markup.failures(state)]
    rows = "".join(
        f"<tr><td>{escape(name)}</td><td>{escape(value)}</td></tr>"
        for name, value in _environment(run)
    )
    parts.append(f"<h2>Environment</h2><table class='facts'>{rows}</table>")
    again = commands(manifest, state)
    if again:
        parts.append(f"<h2>Reproduce</h2><pre>{'<br>'.join(map(escape, again))}</pre>")
    return "".join([*parts, "</body></html>"])


def _environment(run: _Run) -> list[tuple[str, str]]:
    manifest = run.manifest
    network = manifest.network
    rows = [
        ("network", manifest.name),
        ("inputs", "; ".join(map(str, network.get("inputs", ())))),
        ("parameters", str(network.get("parameter_count", ""))),
        ("fingerprint", manifest.network_fingerprint),
        ("target", json.dumps(manifest.target)),
        ("device", f"{manifest.device} {manifest.device_name}".strip()),
        *((f"version of {name}", str(value)) for name, value in manifest.versions.items()),
        ("options", json.dumps(dataclasses.asdict(manifest.options))),
    ]
    return [(name, clean(value)) for name, value in rows if value]


def _markdown(run: _Run) -> str:
    state = run.state
    head = ["ID", "Name", "Latency (ms)", "Speed (GFLOPS)", "Trials", "Failures", "Weight", "State"]
    rows = [
        [
            str(t.info.id),
            _cell(t.info.name),
            milliseconds(t.best_latency_s),
            significant(t.gflops) if t.info.flops else "-",
            str(t.trials),
            str(t.failures),
            str(t.info.weight),
            _cell(t.state),
        ]
        for t in state.tasks
    ]
    widths = [max(width(row[i]) for row in [head, *rows]) for i in range(len(head))]

    def line(row: list[str]) -> str:
        return f"| {' | '.join(pad(c, w) for c, w in zip(row, widths, strict=True))} |"

    out = [f"# {_plain(run.summary.subject)}", ""]
    out += [f"- {_plain(fact)}" for fact in run.summary.facts]
    out += ["", "## What to do next", "", *(f"- {_plain(a)}" for a in run.summary.advice)]
    out += ["", "## Tasks", "", line(head), line(["-" * w for w in widths]), *map(line, rows)]
    totals = error_totals(state)
    if totals:
        out += ["", "## Failures", ""]
        out += [
            f"- {_plain(e.kind)}: {e.count} in {e.tasks} tasks; first: "
            f"{_plain(shorten(clean(e.first_message), 300))}"
            for e in totals
        ]
    out += ["", "## Environment", ""]
    out += [f"- {_plain(name)}: {_plain(value)}" for name, value in _environment(run)]
    again = commands(run.manifest, state)
    if again:
        out += ["", "## Reproduce", "", *(f"    {line}" for line in again)]
    return "\n".join(out) + "\n"


def _plain(text: str) -> str:
    """Return text that Markdown takes literally, without HTML."""
    text = clean(text)
    for character in "\\`*_[]<>|#":
        text = text.replace(character, f"\\{character}")
    return text


def _cell(text: str) -> str:
    return _plain(shorten(clean(text), 60))


def _csv(run: _Run, path: Path) -> None:
    table = tables.task_table(run.state)
    trials = Loaded(run.directory).trials
    lines.replace(path, _harmless(table).to_csv(index=False).encode("utf-8", "replace"))
    beside = path.with_suffix(".trials.csv")
    lines.replace(beside, _harmless(trials).to_csv(index=False).encode("utf-8", "replace"))


def _harmless(table: Any) -> Any:
    """Return a table whose text no spreadsheet takes for a formula."""
    out = table.copy()
    for column in out.columns:
        if out[column].dtype.kind in "OU" or str(out[column].dtype) in ("str", "string"):
            out[column] = [
                f"'{text}" if (text := clean(str(v))).startswith(("=", "+", "-", "@")) else text
                for v in out[column]
            ]
    return out
