"""The task table and its summary as plain text, for terminals and logs."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable

from autotune_nb.run.lock import Holder
from autotune_nb.run.state import State, TaskState
from autotune_nb.view import devices, sanitise
from autotune_nb.view.sanitise import clean, pad, shorten
from autotune_nb.view.status import error_totals, missing_results, progress, share, status
from autotune_nb.view.units import duration, milliseconds, percent, significant

_ENOUGH_NAME = 28  # columns that tell most names apart


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Column:
    title: str
    cell: Callable[[TaskState], str]
    right: bool = True
    # 0 always stays; of the others the highest goes first where the terminal is narrow
    optional: int = 0


def render_task_table(
    state: State,
    holder: Holder | None = None,
    width: int = 100,
    *,
    max_rows: int | None = None,
    ascii_only: bool = False,
    now: float | None = None,
) -> str:
    """Return the task table and the summary below it.

    Parameters
    ----------
    state
        The run.
    holder
        Who holds the run's lock; None if nobody was asked.
    width
        Columns of the terminal: no line is longer.
    max_rows
        Show at most so many tasks, those with the largest share of the total; None shows all.
    ascii_only
        Use no character beyond ASCII.
    now
        Seconds since the Unix epoch; the clock if None.
    """
    now = time.time() if now is None else now
    out = [*_table(state, width, max_rows, ascii_only), *_summary(state, holder, width, now)]
    text = "\n".join(line.rstrip() for line in out)
    return to_ascii(text) if ascii_only else text


def render_line(state: State, now: float | None = None, holder: Holder | None = None) -> str:
    """Return the run's progress in one line, for output that is no terminal."""
    where = status(state, holder, now)
    parts = [_trials(state), f"total {_total(state)}", f"used {duration(state.used_s)}"]
    if state.trials_per_s is not None:
        parts.append(f"{significant(state.trials_per_s, 3)} trials/s")
    if state.time_left_s is not None and where.alive:
        parts.append(f"{duration(state.time_left_s)} left")
    if state.failed_trials:
        parts.append(f"{state.failed_trials} failed")
    if state.next_task is not None:
        parts.append(f"next task {state.next_task}")
    return clean(f"{where.state}: {', '.join(parts)}")


def progress_bar(fraction: float, columns: int) -> str:
    """Return a bar of `columns` characters, filled up to `fraction`."""
    room = max(1, columns - 2)
    full = min(room, max(0, int(fraction * room)))
    return "[" + "#" * full + "-" * (room - full) + "]"


def to_ascii(text: str) -> str:
    """Return `text` with each character beyond ASCII replaced."""
    return text.replace("…", "~").replace("×", "x").encode("ascii", "replace").decode()


def _columns(state: State) -> list[_Column]:
    total = state.estimated_total_latency_s
    return [
        _Column(
            title="ID",
            cell=lambda t: (">" if t.info.id == state.next_task else "") + str(t.info.id),
        ),
        _Column(title="Name", cell=lambda t: clean(t.info.name), right=False),
        _Column(title="Latency (ms)", cell=lambda t: milliseconds(t.best_latency_s)),
        _Column(
            title="Speed (GFLOPS)",
            # a task without arithmetic has no speed, however fast it is
            cell=lambda t: significant(t.gflops) if t.info.flops else "-",
            optional=2,
        ),
        _Column(title="Trials", cell=lambda t: str(t.trials)),
        _Column(title="Weight", cell=lambda t: str(t.info.weight), optional=1),
        _Column(title="Share", cell=lambda t: percent(share(t, total)), optional=3),
        _Column(title="Failed", cell=lambda t: str(t.failures), optional=4),
        _Column(title="State", cell=lambda t: clean(t.state), right=False, optional=5),
    ]


def _table(state: State, columns: int, max_rows: int | None, ascii_only: bool) -> list[str]:
    if not state.tasks:
        return ["The run has no tasks."]
    tasks, hidden = _rows(state, max_rows)
    shown = _columns(state)
    cells = {c.title: [c.cell(task) for task in tasks] for c in shown}
    widths = {c.title: max(len(c.title), *map(sanitise.width, cells[c.title]), 0) for c in shown}
    gap = 2

    def room() -> int:
        """Return what the other columns leave to the names."""
        others = sum(widths[c.title] + gap for c in shown) - widths["Name"] - gap
        return columns - others

    while room() < min(widths["Name"], _ENOUGH_NAME):
        last = max(shown, key=lambda c: c.optional)
        if not last.optional:
            break
        shown.remove(last)
    widths["Name"] = max(4, min(widths["Name"], room()))
    ellipsis = "~" if ascii_only else "…"

    def line(row: dict[str, str]) -> str:
        row["Name"] = shorten(row["Name"], widths["Name"], ellipsis=ellipsis)
        text = (" " * gap).join(pad(row[c.title], widths[c.title], right=c.right) for c in shown)
        return shorten(text.rstrip(), columns, ellipsis=ellipsis)

    ruler = "-" * min(columns, sum(widths[c.title] + gap for c in shown) - gap)
    rows = [line({c.title: cells[c.title][i] for c in shown}) for i in range(len(tasks))]
    out = [line({c.title: c.title for c in shown}), ruler, *rows]
    if hidden:
        out.append(shorten(f"and {hidden} more tasks", columns, ellipsis=ellipsis))
    out.append(ruler)
    return out


def _rows(state: State, max_rows: int | None) -> tuple[list[TaskState], int]:
    if max_rows is None or len(state.tasks) <= max_rows:
        return list(state.tasks), 0
    order = sorted(
        state.tasks, key=lambda t: (t.info.id != state.next_task, -(t.weighted_latency_s or 0.0))
    )
    kept = sorted(order[:max_rows], key=lambda t: t.info.id)
    return kept, len(state.tasks) - len(kept)


def _total(state: State) -> str:
    total = state.estimated_total_latency_s
    if total is None:
        return "unknown"
    text = f"{milliseconds(total)} ms"
    missing = missing_results(state)
    if missing:
        have = "task has" if len(state.tasks) == 1 else "tasks have"
        text += f" (partial: {missing} of {len(state.tasks)} {have} no result)"
    return text


def _trials(state: State) -> str:
    if state.budget.trials is None:
        return f"{state.trials} trials"
    return f"{state.trials}/{state.budget.trials} trials"


def _summary(state: State, holder: Holder | None, columns: int, now: float) -> list[str]:
    where = status(state, holder, now)
    used = duration(state.used_s)
    if state.budget.seconds is not None:
        used += f" of {duration(state.budget.seconds)}"
    lines = [f"Estimated total latency: {_total(state)}"]
    done = progress(state)
    text = _trials(state)
    if done is not None:
        room = columns - sanitise.width(text) - 9
        bar = progress_bar(done, min(40, room)) + " " if room >= 10 else ""
        text = f"{text}  {bar}{done * 100:.0f} %"
    lines.append(text)
    facts = [f"Used time: {used}"]
    if state.trials_per_s is not None:
        facts.append(f"{significant(state.trials_per_s, 3)} trials/s")
    if where.alive:
        facts.append(f"Time left: {duration(state.time_left_s, 'unknown')}")
    if state.next_task is not None:
        name = clean(state.tasks[state.next_task].info.name)
        facts.append(f"Next task: {state.next_task} {name}")
    lines.extend(_flow(facts, columns))
    lines.extend(devices.text_lines(state))
    if state.focus is not None:
        lines.append(f"Only tasks {', '.join(map(str, state.focus))} get trials")
    errors = error_totals(state)
    if errors:
        first = clean(errors[0].first_message)
        line = f"Failed trials: {state.failed_trials}; most often {clean(errors[0].kind)}"
        line += f" ({errors[0].count})" + (f": {first}" if first else "")
        lines.append(line)
    lines.append(f"State: {clean(where.text)}")
    return [shorten(line, columns) for line in lines]


def _flow(parts: list[str], columns: int) -> list[str]:
    """Put short facts beside each other, as many on a line as fit."""
    lines: list[str] = []
    for part in parts:
        if lines and sanitise.width(lines[-1]) + 3 + sanitise.width(part) <= columns:
            lines[-1] += "   " + part
        else:
            lines.append(part)
    return lines
