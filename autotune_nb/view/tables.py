"""Tables of a run as pandas DataFrames, with TVM's words and a unit in each column's name."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import pandas as pd

from autotune_nb.run import events as ev
from autotune_nb.run.records import TaskInfo
from autotune_nb.run.state import State
from autotune_nb.view.status import share


def _float(value: float | None, scale: float = 1.0) -> float:
    return math.nan if value is None else value * scale


def info_table(tasks: Sequence[TaskInfo]) -> pd.DataFrame:
    """Return the extracted tasks, one row each: what there is to tune.

    Columns: ID, name, weight, work (MFLOP) of one execution, operators, shapes, workload (its
    hash) and trivial.
    """
    return pd.DataFrame(
        {
            "ID": pd.Series([t.id for t in tasks], dtype="int64"),
            "name": pd.Series([t.name for t in tasks], dtype="str"),
            "weight": pd.Series([t.weight for t in tasks], dtype="int64"),
            "work (MFLOP)": pd.Series([t.flops / 1e6 for t in tasks], dtype="float64"),
            "operators": pd.Series([", ".join(t.operators) for t in tasks], dtype="str"),
            "shapes": pd.Series(["; ".join(t.shapes) for t in tasks], dtype="str"),
            "workload": pd.Series([t.workload_hash for t in tasks], dtype="str"),
            "trivial": pd.Series([t.trivial for t in tasks], dtype="bool"),
        }
    )


def task_table(state: State) -> pd.DataFrame:
    """Return the tasks of a run with their best results so far, one row each.

    Columns: ID, name, latency (ms), speed (GFLOPS), trials, failures, weight, weighted latency
    (ms), share (%) of the estimated total, best trial, state and note. NaN stands where there is
    no result yet.
    """
    tasks, total = state.tasks, state.estimated_total_latency_s
    return pd.DataFrame(
        {
            "ID": pd.Series([t.info.id for t in tasks], dtype="int64"),
            "name": pd.Series([t.info.name for t in tasks], dtype="str"),
            "latency (ms)": pd.Series(
                [_float(t.best_latency_s, 1e3) for t in tasks], dtype="float64"
            ),
            "speed (GFLOPS)": pd.Series([_float(t.gflops) for t in tasks], dtype="float64"),
            "trials": pd.Series([t.trials for t in tasks], dtype="int64"),
            "failures": pd.Series([t.failures for t in tasks], dtype="int64"),
            "weight": pd.Series([t.info.weight for t in tasks], dtype="int64"),
            "weighted latency (ms)": pd.Series(
                [_float(t.weighted_latency_s, 1e3) for t in tasks], dtype="float64"
            ),
            "share (%)": pd.Series([_float(share(t, total), 100) for t in tasks], dtype="float64"),
            "best trial": pd.Series([t.best_trial for t in tasks], dtype="Int64"),
            "state": pd.Series([t.state for t in tasks], dtype="str"),
            "note": pd.Series([t.note for t in tasks], dtype="str"),
        }
    )


def trial_table(events: Iterable[ev.Event], tasks: Sequence[TaskInfo] = ()) -> pd.DataFrame:
    """Return the trials of a run, one row each, in the order in which they were measured.

    Parameters
    ----------
    events
        The journal's events; those of other kinds are passed over.
    tasks
        The run's tasks, from which names and speeds are taken; without them the names are empty
        and the speeds NaN.

    Returns
    -------
    pandas.DataFrame
        Columns: trial, round, task (its ID), name, latency (ms), speed (GFLOPS), best (True where
        it was the task's best so far), result (``ok`` or the kind of failure), error, build (s),
        measure (s), used time (s), time (UTC), record and device.
    """
    trials = [event for event in events if isinstance(event, ev.TrialDone)]
    known = {task.id: task for task in tasks}
    names, speeds, best = [], [], []
    best_s: dict[int, float] = {}
    for trial in trials:
        task = known.get(trial.task)
        names.append(task.name if task else "")
        speeds.append(task.flops / trial.latency_s / 1e9 if task and trial.latency_s else math.nan)
        improved = trial.latency_s is not None and trial.latency_s < best_s.get(
            trial.task, math.inf
        )
        if improved and trial.latency_s is not None:
            best_s[trial.task] = trial.latency_s
        best.append(improved)
    return pd.DataFrame(
        {
            "trial": pd.Series([t.trial for t in trials], dtype="int64"),
            "round": pd.Series([t.round for t in trials], dtype="int64"),
            "task": pd.Series([t.task for t in trials], dtype="int64"),
            "name": pd.Series(names, dtype="str"),
            "latency (ms)": pd.Series([_float(t.latency_s, 1e3) for t in trials], dtype="float64"),
            "speed (GFLOPS)": pd.Series(speeds, dtype="float64"),
            "best": pd.Series(best, dtype="bool"),
            "result": pd.Series([t.error_kind or "ok" for t in trials], dtype="str"),
            "error": pd.Series([t.error for t in trials], dtype="str"),
            "build (s)": pd.Series([t.build_s for t in trials], dtype="float64"),
            "measure (s)": pd.Series([t.measure_s for t in trials], dtype="float64"),
            "used time (s)": pd.Series([t.used_s for t in trials], dtype="float64"),
            "time (UTC)": pd.to_datetime(
                pd.Series([t.time for t in trials], dtype="float64"), unit="s", utc=True
            ),
            "record": pd.Series([t.record for t in trials], dtype="str"),
            "device": pd.Series([t.device for t in trials], dtype="str"),
        }
    )


def round_table(events: Iterable[ev.Event]) -> pd.DataFrame:
    """Return the rounds of a run, one row each, the last perhaps still under way.

    Columns: round, task, start (s) and end (s) in tuning time, candidates, trials, search (s),
    build (s), measure (s) and learn (s). NaN stands for what is not known yet.
    """
    rounds: dict[int, dict[str, float]] = {}
    for event in events:
        if isinstance(event, ev.RoundStarted):
            rounds[event.round] = {"task": event.task, "start (s)": event.used_s}
        elif isinstance(event, ev.RoundSearched):
            row = rounds.setdefault(event.round, {"task": event.task})
            row.update({"candidates": event.candidates, "search (s)": event.search_s})
        elif isinstance(event, ev.RoundFinished):
            row = rounds.setdefault(event.round, {"task": event.task})
            row.update(
                {
                    "end (s)": event.used_s,
                    "trials": event.trials,
                    "build (s)": event.build_s,
                    "measure (s)": event.measure_s,
                    "learn (s)": event.learn_s,
                }
            )
    columns = (
        "start (s)",
        "end (s)",
        "candidates",
        "trials",
        "search (s)",
        "build (s)",
        "measure (s)",
        "learn (s)",
    )
    table = pd.DataFrame(
        {
            "round": pd.Series(list(rounds), dtype="int64"),
            "task": pd.Series([row["task"] for row in rounds.values()], dtype="int64"),
        }
    )
    for column in columns:
        values = [row.get(column, math.nan) for row in rounds.values()]
        table[column] = pd.Series(values, dtype="float64")
    return table


def error_table(state: State) -> pd.DataFrame:
    """Return the failures of a run by task and kind, most frequent first.

    Columns: ID, name, kind, count and first message.
    """
    rows = [(task.info, error) for task in state.tasks for error in task.errors]
    rows.sort(key=lambda row: (-row[1].count, row[0].id, row[1].kind))
    return pd.DataFrame(
        {
            "ID": pd.Series([info.id for info, _ in rows], dtype="int64"),
            "name": pd.Series([info.name for info, _ in rows], dtype="str"),
            "kind": pd.Series([error.kind for _, error in rows], dtype="str"),
            "count": pd.Series([error.count for _, error in rows], dtype="int64"),
            "first message": pd.Series([error.first_message for _, error in rows], dtype="str"),
        }
    )
