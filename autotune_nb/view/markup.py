"""A run's state as HTML: task table, progress, failures; all text from outside is escaped."""

from __future__ import annotations

from collections.abc import Callable, Collection

from autotune_nb.errors import InputError
from autotune_nb.run.state import State, TaskState
from autotune_nb.view.sanitise import clean, escape, shorten
from autotune_nb.view.status import Status, error_totals, missing_results, progress, share
from autotune_nb.view.units import duration, milliseconds, percent, significant

MAX_ROWS = 120  # rows of one table, so that a browser stays quick
_MAX_BYTES = 80_000  # of one table, so that a redraw stays under 100 kB whatever the names are

# JupyterLab's own colours where there are some, so that the dark theme is followed; elsewhere the
# page's. Tints are translucent for the same reason.
STYLE = """<style>
.atnb {font-size: 13px; color: var(--jp-ui-font-color1, inherit); line-height: 1.45}
.atnb-scroll {max-height: 460px; overflow: auto; border: 1px solid rgba(128,128,128,.35)}
.atnb table {border-collapse: collapse; width: 100%; margin: 0; white-space: nowrap}
.atnb th {position: sticky; top: 0; text-align: right; padding: 4px 10px; font-weight: 600;
  background: var(--jp-layout-color2, #eee); color: var(--jp-ui-font-color1, #202020)}
.atnb td {text-align: right; padding: 2px 10px; font-variant-numeric: tabular-nums;
  border-top: 1px solid rgba(128,128,128,.2)}
.atnb th.l, .atnb td.l {text-align: left}
.atnb td.name {max-width: 340px; overflow: hidden; text-overflow: ellipsis}
.atnb tr.next td {background: rgba(230,159,0,.18)}
.atnb td.new {background: rgba(0,158,115,.3); font-weight: 600}
.atnb .bar {background: linear-gradient(to right, rgba(0,114,178,.35) var(--part),
  transparent var(--part))}
.atnb .track {height: 14px; border: 1px solid rgba(128,128,128,.6); border-radius: 3px;
  overflow: hidden; margin: 3px 0}
.atnb .fill {height: 100%; background: #0072B2}
.atnb .badge {display: inline-block; padding: 0 8px; border-radius: 9px; font-weight: 600;
  border: 1px solid currentColor}
.atnb .bad {color: #D55E00}
.atnb .muted {opacity: .75}
.atnb details pre {white-space: pre-wrap; margin: 2px 0 6px 18px; font-size: 12px}
</style>"""


def _number(value: float | None) -> float:
    """Return what a column is sorted by; what is not known yet sorts as the smallest."""
    return float("-inf") if value is None else value


# name of the order -> its key; the first of each pair of equal keys stays the lower ID
ORDERS: dict[str, Callable[[TaskState], float | str]] = {
    "ID": lambda t: t.info.id,
    "name": lambda t: t.info.name,
    "latency": lambda t: _number(t.best_latency_s),
    "speed": lambda t: _number(t.gflops),
    "trials": lambda t: t.trials,
    "failures": lambda t: t.failures,
    "weight": lambda t: t.info.weight,
    "share": lambda t: _number(t.weighted_latency_s),
    "state": lambda t: t.state,
}


def ordered(state: State, order: str = "ID", descending: bool = False) -> list[TaskState]:
    """Return the tasks in one of the `ORDERS`."""
    if order not in ORDERS:
        raise InputError(f"order {order!r}: no such column; choose one of {', '.join(ORDERS)}")
    return sorted(state.tasks, key=ORDERS[order], reverse=descending)


def task_table(
    state: State,
    *,
    order: str = "ID",
    descending: bool = False,
    changed: Collection[int] = (),
    max_rows: int = MAX_ROWS,
    max_bytes: int = _MAX_BYTES,
) -> str:
    """Return the task table as HTML.

    Parameters
    ----------
    state
        The run.
    order, descending
        One of `ORDERS`, and which way.
    changed
        IDs of tasks whose best latency is new: their cells are marked.
    max_rows, max_bytes
        With more tasks, those with the smallest share are left out, and the table says so; it ends
        early where the names are so long that it would grow beyond `max_bytes`.
    """
    tasks = ordered(state, order, descending)
    if len(tasks) > max_rows:
        by_share = sorted(tasks, key=lambda t: -_number(t.weighted_latency_s))
        kept = {t.info.id for t in by_share[:max_rows]}
        tasks = [t for t in tasks if t.info.id in kept]
    total = state.estimated_total_latency_s
    most = max((t.trials for t in state.tasks), default=0)
    rows = ""
    for shown, task in enumerate(tasks):
        row = _row(state, task, total, most, task.info.id in changed)
        if len(rows) + len(row) > max_bytes:
            tasks = tasks[:shown]
            break
        rows += row
    hidden = len(state.tasks) - len(tasks)
    note = f"<div class='muted'>and {hidden} more tasks</div>" if hidden else ""
    head = "".join(
        f"<th scope='col'{' class=l' if left else ''}>{title}</th>"
        for title, left in (
            ("ID", False),
            ("Name", True),
            ("Latency (ms)", False),
            ("Speed (GFLOPS)", False),
            ("Trials", False),
            ("Failures", False),
            ("Weight", False),
            ("Share", False),
            ("State", True),
        )
    )
    return (
        f"<div class='atnb'><div class='atnb-scroll'><table><thead><tr>{head}</tr></thead>"
        f"<tbody>{rows}</tbody></table></div>{note}</div>"
    )


def _row(state: State, task: TaskState, total: float | None, most: int, changed: bool) -> str:
    info = task.info
    part = share(task, total)
    note = f" title='{escape(shorten(clean(task.note), 300))}'" if task.note else ""
    bad = " class='l bad'" if task.state in ("failed", "exhausted") else " class='l'"
    latency = milliseconds(task.best_latency_s)
    name = clean(info.name)
    title = f" title='{escape(shorten(name, 200))}'" if len(name) > 60 else ""
    cells = [
        f"<td>{info.id}</td>",
        f"<td class='l name'{title}>{escape(shorten(name, 60))}</td>",
        # an arrow too, for those who do not see the colour
        f"<td class='new'>▾ {latency}</td>" if changed else f"<td>{latency}</td>",
        f"<td>{significant(task.gflops) if info.flops else '-'}</td>",
        f"<td class='bar' style='--part:{_part(task.trials, most)}'>{task.trials}</td>",
        f"<td{' class=bad' if task.failures else ''}>{task.failures}</td>",
        f"<td>{info.weight}</td>",
        f"<td class='bar' style='--part:{_part(part, 1.0)}'>{percent(part)}</td>",
        f"<td{bad}{note}>{escape(task.state)}</td>",
    ]
    row = " class='next'" if info.id == state.next_task else ""
    return f"<tr{row}>{''.join(cells)}</tr>"


def _part(value: float | None, whole: float) -> str:
    return f"{100 * value / whole:.0f}%" if value and whole else "0%"


def total_line(state: State) -> str:
    """Return the estimated total in words, marked partial while it is."""
    total = state.estimated_total_latency_s
    if total is None:
        return "Estimated total latency: <b>unknown</b>"
    text = f"Estimated total latency: <b>{milliseconds(total)} ms</b>"
    missing = missing_results(state)
    if missing:
        have = "task has" if len(state.tasks) == 1 else "tasks have"
        text += (
            f" <span class='bad'>partial: {missing} of {len(state.tasks)} {have} no result</span>"
        )
    return text


def summary(state: State, where: Status, title: str = "") -> str:
    """Return the head of a view: state and heartbeat, total, progress, speed and time left."""
    bad = " bad" if where.state in ("lost", "failed") else ""
    words = where.text
    words = words[len(where.state) :].lstrip(":, ") if words.startswith(where.state) else words
    facts = [f"used {duration(state.used_s)}"]
    if state.budget.seconds is not None:
        facts[0] += f" of {duration(state.budget.seconds)}"
    if state.trials_per_s is not None:
        facts.append(f"{significant(state.trials_per_s, 3)} trials/s")
    if where.alive:
        facts.append(f"{duration(state.time_left_s, 'unknown time')} left")
    if state.next_task is not None and where.alive:
        name = escape(shorten(clean(state.tasks[state.next_task].info.name), 60))
        facts.append(f"next task {state.next_task} {name}")
    if state.focus is not None:
        facts.append(f"only tasks {', '.join(map(str, state.focus[:20]))} get trials")
    spent = f"{state.trials}"
    if state.budget.trials is not None:
        spent += f" of {state.budget.trials}"
    done = progress(state)
    track = ""
    if done is not None:
        track = (
            f"<div class='track' role='progressbar' aria-label='spent part of the budget' "
            f"aria-valuemin='0' aria-valuemax='100' aria-valuenow='{done * 100:.0f}'>"
            f"<div class='fill' style='width:{done * 100:.1f}%'></div></div>"
        )
    head = f"<b>{escape(title)}</b> " if title else ""
    return (
        f"<div class='atnb'>{head}<span class='badge{bad}'>{escape(where.state)}</span> "
        f"<span class='muted'>{escape(words)}</span><br>{total_line(state)}<br>"
        f"{spent} trials · {' · '.join(facts)}{track}</div>"
    )


def damage(state: State) -> str:
    """Return what of the run's files was damaged and put right; empty if nothing was."""
    notes = "".join(
        f"<div>{escape(shorten(clean(note), 300))}</div>" for note in state.recovered[-3:]
    )
    return f"<div class='atnb bad'>{notes}</div>" if notes else ""


def failures(state: State) -> str:
    """Return the failed trials by kind, each with its first message; empty if there are none."""
    totals = error_totals(state)
    if not totals:
        return ""
    items = "".join(
        f"<details><summary>{escape(e.kind)}: {e.count} in {e.tasks} "
        f"{'task' if e.tasks == 1 else 'tasks'}</summary>"
        f"<pre>{escape(shorten(clean(e.first_message), 1000)) or 'no message'}</pre></details>"
        for e in totals
    )
    return (
        f"<div class='atnb'><b>{state.failed_trials} of {state.trials} trials failed</b>"
        f"{items}</div>"
    )
