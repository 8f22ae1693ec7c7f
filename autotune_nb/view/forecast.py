"""What more trials are expected to bring: the estimated total at a larger budget, with an interval.

A pure function of a run's state. Each task's logarithm of its best latency is taken to fall by a
gamma process in ``trials ** -p``: it never rises, it falls in jumps, and ever less. How fast a task
falls is learnt from its own rounds and from those of the run's other tasks; the constants below are
what is believed before a run has said anything. Many futures are drawn, in each the gradient rule
of `autotune_nb.tuning.scheduler` gives out the rounds, and their quantiles are the forecast.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence

import numpy as np

from autotune_nb.run.state import State, TaskState
from autotune_nb.tuning.scheduler import DEFAULT, SchedulerOptions, eligible
from autotune_nb.view.downsample import Floats
from autotune_nb.view.guess import guess, is_light

# Beliefs before a run has said anything. `benchmarks/forecast.py --fit` chooses them from the runs
# that it names as its development set; none of the runs it tests on is among them.
POWER = 0.4  # latency falls like exp(A * trials ** -POWER)
DROP = 9.0  # A of a task with arithmetic, on average
LIGHT_DROP = 3.0  # and of one that mostly moves data
SHAPE = 12.0  # of the gamma process: more makes many small jumps, less makes few large ones
STRENGTH = 6.0  # how many tasks' worth of evidence the belief about a single task counts
RUN_STRENGTH = 4.0  # and the belief about the run as a whole
_HEADROOM = 2.0  # no task is expected to get faster than so many times the run's best speed
_SAMPLES = 200
_STEPS = 250  # of the simulation: in long futures a step is several rounds


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """What is expected at one budget.

    Attributes
    ----------
    trials
        The budget in trials.
    used_s
        Expected tuning time until then; NaN if the run's speed is not known.
    low_s, median_s, high_s
        Estimated total latency: 80 % of outcomes are expected between low and high.
    """

    trials: int
    used_s: float
    low_s: float
    median_s: float
    high_s: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """The expected course of a run from now on.

    Attributes
    ----------
    trials, used_s
        Points along the run; the first is now.
    low_s, median_s, high_s
        Estimated total latency at each: 80 % of outcomes are expected between low and high. Tasks
        without a result are counted with what they are guessed to reach.
    guessed
        IDs of tasks whose latency had to be guessed since they have no result yet.
    """

    trials: Floats
    used_s: Floats
    low_s: Floats
    median_s: Floats
    high_s: Floats
    guessed: tuple[int, ...] = ()

    def at(self, trials: int) -> Expectation:
        """Return what is expected at a budget of so many trials, from now to the last point."""

        def value(along: Floats) -> float:
            return float(np.interp(trials, self.trials, along))

        return Expectation(
            trials=trials,
            used_s=value(self.used_s),
            low_s=value(self.low_s),
            median_s=value(self.median_s),
            high_s=value(self.high_s),
        )

    def gain(self, start: int, end: int) -> float:
        """Return by what fraction the total is expected to fall between two budgets."""
        before = self.at(start).median_s
        return 1.0 - self.at(end).median_s / before if before else 0.0

    def diminishing(self, step: int = 1000, gain: float = 0.01) -> int | None:
        """Return the budget from which the next `step` trials gain less than `gain`.

        None if that lies beyond the forecast.
        """
        last = int(self.trials[-1]) - step
        for trials in self.trials:
            if trials > last:
                return None
            if self.gain(int(trials), int(trials) + step) < gain:
                return int(trials)
        return None


def forecast(
    state: State,
    until: int,
    *,
    batch_size: int = 0,
    options: SchedulerOptions = DEFAULT,
    samples: int = _SAMPLES,
    seed: int = 0,
) -> Forecast | None:
    """Forecast a run up to a number of trials.

    Parameters
    ----------
    state
        The run so far.
    until
        Last budget of interest, in trials.
    batch_size
        Trials of a round; 0 takes what the run's rounds had.
    options
        Constants of the gradient rule.
    samples
        Futures to draw.
    seed
        Of their randomness: the same state gives the same forecast.

    Returns
    -------
    Forecast or None
        None before any task has a result.
    """
    if state.estimated_total_latency_s is None:
        return None
    tasks = _Tasks(state, samples, np.random.default_rng(seed))
    left = max(0, until - state.trials)
    batch_size = batch_size or round_size(state)
    rounds = math.ceil(left / batch_size)
    stride = max(1, math.ceil(rounds / _STEPS))
    trials = [float(state.trials)]
    totals = [tasks.total()]
    while trials[-1] < until:
        size = min(stride * batch_size, until - int(trials[-1]))
        tasks.step(size, size / batch_size, options)
        trials.append(trials[-1] + size)
        totals.append(tasks.total())
    quantiles = np.quantile(np.stack(totals), [0.1, 0.5, 0.9], axis=1)
    rate = state.trials_per_s or (state.trials / state.used_s if state.used_s else math.nan)
    along = np.array(trials)
    return Forecast(
        trials=along,
        used_s=state.used_s + (along - state.trials) / rate,
        low_s=quantiles[0],
        median_s=quantiles[1],
        high_s=quantiles[2],
        guessed=tuple(t.info.id for t in state.tasks if t.best_latency_s is None),
    )


def round_size(state: State) -> int:
    """Return how many trials the run's rounds usually had; 16 before the first."""
    sizes = [
        after - before
        for task in state.tasks
        for before, after in itertools.pairwise([0, *(trials for trials, _ in task.rounds)])
    ]
    return max(1, round(float(np.median(sizes)))) if sizes else 16


def _fall(trials: Floats) -> Floats:
    """Return the gamma process's clock: what is still to come after so many trials."""
    return np.maximum(trials, 1.0) ** -POWER


def seen(task: TaskState) -> tuple[float, float]:
    """Return how far a task's log latency fell after its first result, and on what clock."""
    known = [(n, latency) for n, latency in task.rounds if latency is not None]
    if len(known) < 2 or task.best_latency_s is None:
        return 0.0, 0.0
    first, last = known[0], known[-1]
    clock = _fall(np.array([first[0], last[0]], dtype=np.float64))
    return math.log(first[1] / last[1]), float(clock[0] - clock[1])


class _Tasks:
    """All tasks in all futures: arrays of futures by tasks."""

    def __init__(self, state: State, samples: int, rng: np.random.Generator) -> None:
        self._rng = rng
        tasks = state.tasks
        count = len(tasks)
        self._weight = np.array([t.info.weight for t in tasks], dtype=np.float64)
        self._flops = np.array([t.info.flops for t in tasks], dtype=np.float64)
        may = {t.info.id for t in eligible(state)}
        self._may = np.array([t.info.id in may for t in tasks])
        self._trivial = np.array([t.info.trivial for t in tasks])
        groups: dict[tuple[str, ...], int] = {}
        self._group = np.array([groups.setdefault(t.info.operators, len(groups)) for t in tasks])
        self._trials = np.tile([float(t.trials) for t in tasks], (samples, 1))
        self._rounds = np.tile([float(len(t.rounds)) for t in tasks], (samples, 1))
        self._known = np.tile([t.best_latency_s is not None for t in tasks], (samples, 1))
        self._latency = guess(tasks, samples, rng)
        # a task that was given up without a result is in no total
        given_up = np.array([t.best_latency_s is None and t.info.id not in may for t in tasks])
        self._weight[given_up] = 0.0
        self._drop = _drops(tasks, samples, rng)
        speed = max((t.gflops or 0.0 for t in tasks), default=0.0) * 1e9 * _HEADROOM
        self._floor = self._flops / speed if speed else np.zeros(count)
        self._late = _history(tasks, samples)

    def total(self) -> Floats:
        """Return the estimated total of each future."""
        out: Floats = self._latency @ self._weight
        return out

    def step(self, trials: int, rounds: float, options: SchedulerOptions) -> None:
        """Give so many trials to the task that the gradient rule picks, in each future."""
        pick = self.pick(options)
        if pick is None:
            return
        rows = np.arange(len(pick))
        before = self._latency[rows, pick]
        spent = self._trials[rows, pick]
        known = self._known[rows, pick]
        clock = _fall(spent) - _fall(spent + trials)
        shape = SHAPE * clock
        fall = self._rng.gamma(np.maximum(shape, 1e-12)) / SHAPE * self._drop[rows, pick]
        # the nearer the floor, the less of a fall is left
        floor = np.maximum(self._floor[pick], 1e-30)
        room = np.maximum(np.log(before / floor), 1e-3)
        after = before * np.exp(room * np.expm1(-fall / room))
        after = np.maximum(after, np.minimum(before, floor))
        after = np.where(known, after, before)  # the first round brings what was guessed
        self._latency[rows, pick] = after
        self._known[rows, pick] = True
        self._trials[rows, pick] += trials
        self._rounds[rows, pick] += rounds
        late = self._late[rows, pick]
        self._late[rows, pick] = np.concatenate([late[:, 1:], after[:, None]], axis=1)

    def pick(self, options: SchedulerOptions) -> np.ndarray | None:
        """Return the task that `scheduler.next_task` would pick, in each future."""
        may = self._may & ~(self._trivial & self._known)
        if not may.any():
            return None
        rounds = np.maximum(1.0, self._rounds)
        speed = np.where(self._known, self._flops / self._latency, 0.0)
        reach = np.zeros_like(speed)
        for group in range(self._group.max() + 1):
            of = self._group == group
            reach[:, of] = speed[:, of].max(axis=1, keepdims=True)
        ahead = self._latency / rounds
        similar = self._latency - options.beta * self._flops / np.where(reach > 0, reach, np.inf)
        ahead = np.where((reach > 0) & (self._flops > 0), np.maximum(ahead, similar), ahead)
        late = np.nan_to_num(self._late[:, :, 0] - self._latency, nan=0.0) / options.window
        gain = options.alpha * np.maximum(late, 0.0) + (1 - options.alpha) * ahead
        gain *= self._weight
        # the first round of each task comes first, in order; then those without a result
        order = np.arange(gain.shape[1])
        gain = np.where(self._known, gain, 1e30)
        gain = np.where(self._rounds == 0, 1e35 / (1.0 + order), gain)
        gain = np.where(may, gain, -1.0)
        out: np.ndarray = gain.argmax(axis=1)
        return out


def _history(tasks: Sequence[TaskState], samples: int, window: int = DEFAULT.window) -> Floats:
    """Return the best latencies after the last rounds, oldest first, NaN before the first."""
    out = np.full((len(tasks), window + 1), np.nan)
    for row, task in zip(out, tasks, strict=True):
        known = [latency for _, latency in task.rounds if latency is not None][-window - 1 :]
        if known:
            row[-len(known) :] = known
    return np.tile(out, (samples, 1, 1))


def _drops(tasks: Sequence[TaskState], samples: int, rng: np.random.Generator) -> Floats:
    """Draw how fast each task falls: the mean A of its gamma process, in each future.

    A task's rate has a gamma prior around the run's, which has one around what was believed; both
    are conjugate to the gamma process, so that what was seen is simply added to the beliefs.
    """
    prior = np.array([LIGHT_DROP if is_light(t) else DROP for t in tasks])
    evidence = np.array([seen(t) for t in tasks]).reshape(len(tasks), 2)
    fell, clock = evidence[:, 0], evidence[:, 1]
    # how the run compares to what was believed
    run_shape = RUN_STRENGTH + SHAPE * clock.sum()
    run_rate = RUN_STRENGTH + SHAPE * (fell / prior).sum()
    run = run_rate / rng.gamma(run_shape, size=(samples, 1))
    shape = STRENGTH + SHAPE * clock
    rate = STRENGTH * prior * run + SHAPE * fell
    drops: Floats = rate / rng.gamma(shape, size=(samples, len(tasks)))
    return drops
