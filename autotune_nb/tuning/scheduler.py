"""Which task gets the next round: the gradient rule of auto_scheduler's paper, as pure functions.

The estimated total latency is the weighted sum of the tasks' latencies, so a round is best spent
where that sum is expected to fall most. Zheng et al., "Ansor: Generating High-Performance Tensor
Programs for Deep Learning" (OSDI 2020, section 6), estimate the fall from a task's own past (how
much the last rounds gained), from the assumption that its latency may fall like 1/rounds, and from
the speed that similar tasks have reached.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Collection, Mapping

from autotune_nb.run import choices
from autotune_nb.run.state import State, TaskState


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerOptions:
    """Constants of the gradient rule.

    Attributes
    ----------
    alpha
        Weight of what was gained lately, against what may be gained; between 0 and 1.
    window
        Rounds over which the late gain is taken.
    beta
        How far a task is trusted to reach the speed of similar tasks; 2 means half of it.
    fail_trials
        A task that has this many trials and no result is set aside.
    least_share
        A round whose expected gain is less than this share of the largest is not started while
        the task with the largest is busy: its trials are better kept.
    """

    alpha: float = 0.2
    window: int = 3
    beta: float = 2.0
    fail_trials: int = 48
    least_share: float = 0.2


DEFAULT = SchedulerOptions()
_FIRST_BATCH = 16


def eligible(state: State) -> list[TaskState]:
    """Return the tasks that may get a round: in focus, not set aside, and not trivial and done."""
    focus = None if state.focus is None else frozenset(state.focus)
    return [
        task
        for task in state.tasks
        if task.state not in ("failed", "exhausted")
        and (focus is None or task.info.id in focus)
        and not (task.info.trivial and task.best_latency_s is not None)
    ]


def next_task(
    state: State,
    in_flight: Mapping[int, int] | None = None,
    busy: Collection[int] = (),
    options: SchedulerOptions = DEFAULT,
) -> int | None:
    """Return the id of the task that should get the next round, or None if none may.

    Parameters
    ----------
    state
        The run so far.
    in_flight
        Rounds already under way, by task; they count as if they had gained nothing.
    busy
        Tasks that cannot take a round at this moment.
    options
        Constants of the rule.

    Notes
    -----
    Every task gets one round first, in order of ids. After that a task without a result comes
    first (it is set aside by `verdict` after a bounded number of trials), then the task with the
    largest expected gain; equal gains go to the lower id, so that the choice is reproducible.
    """
    pending = dict(in_flight or {})
    tasks = [task for task in eligible(state) if task.info.id not in busy]
    for task in tasks:
        if not task.rounds and not pending.get(task.info.id):
            return task.info.id
    started = [task for task in tasks if task.rounds or pending.get(task.info.id)]
    if not started:
        return None
    idle = [t for t in started if t.best_latency_s is None and not pending.get(t.info.id)]
    if idle:
        return min(idle, key=lambda t: (t.trials, t.info.id)).info.id
    gains = expected_gains(state, pending, options)
    known = [task for task in started if task.info.id in gains]
    if not known:
        return started[0].info.id
    best = max(known, key=lambda t: (gains[t.info.id], -t.info.id)).info.id
    largest = max(gains[task.info.id] for task in eligible(state) if task.info.id in gains)
    return best if gains[best] >= options.least_share * largest else None


def round_size(state: State, task: int, batch_size: int, planned: int) -> int:
    """Return how many candidates the next round of a task should have; 0 if the budget has none.

    Parameters
    ----------
    state
        The run so far.
    task
        The task's id.
    batch_size
        Candidates of a usual round.
    planned
        Candidates of rounds under way that are not measured yet.

    Notes
    -----
    A first round is guesses, made before anything is known of the task, so where batches are large
    half of one does, and half of that where it is open whether the network will use the task at
    all. And a budget too small for a round of every task is shared out evenly over those that have
    had none: a result for each is worth more than a second digit for some.
    """
    count = batch_size
    left = None
    if state.budget.trials is not None:
        left = max(0, state.budget.trials - state.trials - planned)
    if not state.tasks[task].rounds:
        count = max(min(count, _FIRST_BATCH), count // 2)
        if state.tasks[task].uses is not None:
            count = max(1, count // 2)
        untried = sum(t.trials == 0 for t in eligible(state))
        if left is not None and untried:
            count = min(count, max(1, left // untried))
    return count if left is None else min(count, left)


def expected_gains(
    state: State,
    in_flight: Mapping[int, int] | None = None,
    options: SchedulerOptions = DEFAULT,
) -> dict[int, float]:
    """Return, by task id, how far one more round is expected to lower the estimated total.

    Tasks without a result have no entry. The unit is seconds per round.
    """
    pending = in_flight or {}
    speeds: dict[tuple[str, ...], float] = {}
    for task in state.tasks:
        if task.gflops:
            key = task.info.operators
            speeds[key] = max(speeds.get(key, 0.0), task.gflops * 1e9)
    falls: dict[int, float] = {}
    for task in state.tasks:
        best = task.best_latency_s
        if best is None:
            continue
        history = [latency for _, latency in task.rounds if latency is not None]
        rounds = max(1, len(task.rounds) + pending.get(task.info.id, 0))
        late = 0.0
        if len(history) > options.window:
            late = max(0.0, history[-1 - options.window] - best) / options.window
        ahead = best / rounds
        reachable = speeds.get(task.info.operators, 0.0)
        if reachable and task.info.flops:
            ahead = max(ahead, best - options.beta * task.info.flops / reachable)
        falls[task.info.id] = options.alpha * late + (1 - options.alpha) * ahead
    gains = {number: fall * state.tasks[number].weight for number, fall in falls.items()}
    gains |= _gains_of_choices(state, falls)
    return gains


def _gains_of_choices(state: State, falls: Mapping[int, float]) -> dict[int, float]:
    """Return what a fall of each task of a choice is worth: only what it lowers the minimum by.

    A formulation that would still lose gains nothing, so it gets no more rounds once its tasks are
    not expected to fall that far; it does again when that is all that is left to try.
    """
    best_s = [task.best_latency_s for task in state.tasks]
    best: dict[tuple[str, int], float] = {}
    for choice in state.choices:
        totals = [(f, choices.latency_s(f, best_s)) for f in choice.formulations]
        known = [(f, total) for f, total in totals if total is not None]
        leader = min((total for _, total in known), default=0.0)
        for formulation, total in known:
            for number, count in Counter(formulation.tasks).items():
                gain = max(0.0, leader - total + count * falls.get(number, 0.0)) * choice.weight
                # A task of several formulations of one choice gains by the best of them.
                share = (choice.name, number)
                best[share] = max(best.get(share, 0.0), gain)
    gains: dict[int, float] = {}
    for (_, number), gain in best.items():
        gains[number] = gains.get(number, 0.0) + gain
    return gains


def verdict(task: TaskState, options: SchedulerOptions = DEFAULT) -> str | None:
    """Return why a task should be set aside as failed, or None while it should go on."""
    if task.best_latency_s is not None or task.trials < options.fail_trials:
        return None
    worst = max(task.errors, key=lambda e: e.count, default=None)
    first = f"; most often {worst.kind}: {worst.first_message}" if worst else ""
    return f"none of {task.trials} trials gave a result{first}"
