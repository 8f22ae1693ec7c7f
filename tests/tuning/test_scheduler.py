"""The gradient scheduler, on states made by hand."""

import dataclasses

import pytest

from autotune_nb.run.records import Budget, Choice, ErrorCount, Formulation, TaskInfo
from autotune_nb.run.state import State, TaskState, initial
from autotune_nb.tuning import scheduler


def info(index, *, weight=1, flops=1e9, operators=(), trivial=False):
    return TaskInfo(
        id=index,
        name=f"task{index}",
        weight=weight,
        flops=flops,
        workload_hash=str(index),
        operators=operators or (f"op{index}",),
        trivial=trivial,
    )


def task(index, history, *, state="tuning", **details):
    """A task with one round of 16 trials for each best latency in `history`."""
    known = [latency for latency in history if latency is not None]
    return TaskState(
        info=info(index, **details),
        trials=16 * len(history),
        best_latency_s=known[-1] if known else None,
        rounds=tuple((16 * (n + 1), latency) for n, latency in enumerate(history)),
        state=state,
    )


def test_every_task_has_a_round_first_in_order_of_ids():
    state = initial([info(0), info(1), info(2)])
    assert scheduler.next_task(state) == 0
    assert scheduler.next_task(state, in_flight={0: 1}) == 1
    assert scheduler.next_task(state, in_flight={0: 1, 1: 1}) == 2


def test_the_gain_is_what_the_paper_says():
    # alpha 0.2, window 3: late = (8 - 2) / 3, ahead = best / rounds = 2 / 4, weight 5
    state = State(tasks=(task(0, [8.0, 4.0, 3.0, 2.0], weight=5),))
    assert scheduler.expected_gains(state) == {0: 5 * (0.2 * 2.0 + 0.8 * 0.5)}


def test_a_short_history_has_no_late_gain():
    state = State(tasks=(task(0, [8.0, 4.0]),))
    assert scheduler.expected_gains(state) == {0: 0.8 * 4.0 / 2}


def test_weight_decides_between_equal_tasks():
    state = State(tasks=(task(0, [1.0]), task(1, [1.0], weight=3)))
    assert scheduler.next_task(state) == 1


def test_a_task_slower_than_its_like_is_trusted_to_catch_up():
    slow = task(0, [1.0] * 10, operators=("conv2d",))
    fast = task(1, [0.1] * 10, operators=("conv2d",))
    alone = scheduler.expected_gains(State(tasks=(slow,)))
    beside = scheduler.expected_gains(State(tasks=(slow, fast)))
    # at least half of the speed of its like: from 1.0 down to 2 * 0.1
    assert beside[0] == pytest.approx(0.8 * (1.0 - 2 * 0.1))
    assert alone[0] == pytest.approx(0.8 * 1.0 / 10)


def test_rounds_under_way_count_as_spent():
    state = State(tasks=(task(0, [1.0, 1.0]), task(1, [0.6, 0.6])))
    assert scheduler.next_task(state) == 0
    assert scheduler.next_task(state, in_flight={0: 2}) == 1


def test_busy_failed_exhausted_and_unfocused_tasks_are_passed_over():
    tasks = (
        task(0, [9.0]),
        task(1, [5.0], state="exhausted"),
        task(2, [], state="failed"),
        task(3, [2.0]),
        task(4, [1.0]),
    )
    state = State(tasks=tasks)
    assert scheduler.next_task(state) == 0
    assert scheduler.next_task(state, busy={0}) == 3
    assert scheduler.next_task(dataclasses.replace(state, focus=(4, 1))) == 4
    assert scheduler.next_task(dataclasses.replace(state, focus=(1, 2))) is None


def test_a_small_gain_waits_for_a_busy_task_with_a_large_one():
    state = State(tasks=(task(0, [9.0]), task(1, [2.0]), task(2, [1.0])))
    assert scheduler.next_task(state, busy={0}) == 1
    assert scheduler.next_task(state, busy={0, 1}) is None
    # discounted for its rounds under way, the large one may be the smaller
    assert scheduler.next_task(state, in_flight={0: 9, 1: 9}, busy={0, 1}) == 2


def test_a_trivial_task_gets_only_its_first_round():
    state = State(tasks=(task(0, [9.0], trivial=True), task(1, [0.1])))
    assert scheduler.next_task(state) == 1
    assert scheduler.next_task(initial([info(0, trivial=True)])) == 0


def test_a_small_budget_is_shared_out_over_the_first_rounds():
    state = dataclasses.replace(
        initial([info(0), info(1), info(2)]), budget=Budget(trials=10, seconds=None)
    )
    assert scheduler.round_size(state, 0, 16, planned=0) == 3
    assert scheduler.round_size(state, 0, 16, planned=9) == 1
    assert scheduler.round_size(state, 0, 16, planned=10) == 0
    roomy = dataclasses.replace(state, budget=Budget(trials=1000))
    assert scheduler.round_size(roomy, 0, 16, planned=0) == 16
    assert scheduler.round_size(roomy, 0, 64, planned=0) == 32  # guesses: half a batch
    assert scheduler.round_size(dataclasses.replace(state, budget=Budget()), 0, 64, 0) == 32


def test_later_rounds_are_whole_until_the_budget_ends():
    state = State(tasks=(task(0, [1.0]), task(1, [])), trials=16, budget=Budget(trials=60))
    assert scheduler.round_size(state, 0, 64, planned=0) == 44
    assert scheduler.round_size(state, 0, 16, planned=40) == 4


def test_a_task_without_a_result_comes_first_until_it_is_set_aside():
    broken = dataclasses.replace(
        task(1, [None]),
        trials=16,
        failures=16,
        errors=(ErrorCount(kind="build", count=16, first_message="no such intrinsic"),),
    )
    state = State(tasks=(task(0, [9.0]), broken))
    assert scheduler.next_task(state) == 1
    assert scheduler.verdict(broken) is None
    spent = dataclasses.replace(broken, trials=48, failures=48)
    assert scheduler.verdict(spent) == (
        "none of 48 trials gave a result; most often build: no such intrinsic"
    )


def test_equal_gains_go_to_the_lower_id():
    state = State(tasks=(task(0, [1.0]), task(1, [1.0])))
    assert scheduler.next_task(state) == 0


def choosing(direct, transform, product, weight=2):
    """One choice between task 0 and tasks 1 and 2, each with its best latency after each round."""
    tasks = [task(0, direct), task(1, transform, state="exhausted"), task(2, product)]
    forms = (Formulation(name="direct", tasks=(0,)), Formulation(name="other", tasks=(1, 2)))
    return State(
        tasks=tuple(dataclasses.replace(t, uses=0) for t in tasks),
        choices=(Choice(name="c", weight=weight, formulations=forms),),
    )


def test_a_formulation_gains_what_it_lowers_the_minimum_by():
    # After two rounds the fall of a task is expected to be 0.4 of its latency.
    state = choosing([10.0, 10.0], [1.0, 1.0], [6.0, 6.0])
    gains = scheduler.expected_gains(state)
    assert gains[2] == pytest.approx(2 * 0.4 * 6)
    assert gains[0] == pytest.approx(2 * (7 - 10 + 4))
    assert gains[1] == pytest.approx(2 * 0.4)


def test_a_formulation_that_cannot_win_gets_no_more_rounds():
    state = choosing([20.0, 20.0], [1.0, 1.0], [6.0, 6.0])
    assert scheduler.expected_gains(state)[0] == 0
    assert scheduler.next_task(state) == 2
    # nor while the one that can is busy
    assert scheduler.next_task(state, in_flight={2: 1}, busy={2}) is None
    # but when nothing else is left
    failed = dataclasses.replace(state.tasks[2], state="exhausted")
    left = dataclasses.replace(state, tasks=(*state.tasks[:2], failed))
    assert scheduler.next_task(left) == 0


def test_a_task_that_two_choices_share_gains_for_both():
    one = choosing([10.0, 10.0], [1.0, 1.0], [6.0, 6.0])
    both = dataclasses.replace(one, choices=(*one.choices, *_renamed(one.choices)))
    assert scheduler.expected_gains(both)[2] == 2 * scheduler.expected_gains(one)[2]


def _renamed(choices):
    return [dataclasses.replace(choice, name="again") for choice in choices]


def test_a_first_round_is_short_where_the_task_may_not_be_used():
    state = dataclasses.replace(choosing([], [], []), budget=Budget(trials=1000))
    assert scheduler.round_size(state, 0, 16, 0) == 8
    plain = dataclasses.replace(state, tasks=(task(0, []), *state.tasks[1:]))
    assert scheduler.round_size(plain, 0, 16, 0) == 16
