"""Tasks with several formulations: the fastest counts, in the total and everywhere else."""

import json

import pytest

from autotune_nb.errors import RunError
from autotune_nb.run import checkpoint, choices
from autotune_nb.run import events as ev
from autotune_nb.run.directory import RunDirectory
from autotune_nb.run.manifest import FILE, Manifest
from autotune_nb.run.records import Choice, Formulation
from autotune_nb.run.state import fold, initial

# task 0 is direct; tasks 1 (twice) and 2 make up the other way
CHOICE = Choice(
    name="conv",
    weight=3,
    formulations=(
        Formulation(name="direct", tasks=(0,)),
        Formulation(name="winograd2", tasks=(1, 2, 1)),
    ),
)


@pytest.fixture
def blank(tasks):
    return initial(tasks, (CHOICE,))


def total(state):
    return state.estimated_total_latency_s


def test_the_fastest_complete_formulation_counts(blank, teller):
    assert choices.chosen(blank) == {"conv": "direct"}
    assert blank.partial
    assert total(blank) is None
    state = fold(blank, teller.round(1, [1e-3]))
    assert choices.chosen(state) == {"conv": "direct"}  # winograd2 has no result for task 2
    assert state.partial
    assert total(state) is None
    state = fold(state, teller.round(2, [1e-3]))
    assert choices.chosen(state) == {"conv": "winograd2"}
    assert not state.partial  # one formulation is enough
    assert total(state) == pytest.approx(3 * 3e-3)
    assert [task.weight for task in state.tasks] == [0, 6, 3]
    state = fold(state, teller.round(0, [4e-3, 2e-3]))
    assert choices.chosen(state) == {"conv": "direct"}
    assert total(state) == pytest.approx(3 * 2e-3)
    assert [task.weighted_latency_s for task in state.tasks] == [pytest.approx(6e-3), 0.0, 0.0]
    # the first of the two was slower than what was chosen: the total stood still
    assert [p.estimated_total_latency_s for p in state.curve[-2:]] == [
        pytest.approx(9e-3),
        pytest.approx(6e-3),
    ]
    assert [p.partial for p in state.curve] == [True, False, False, False]


def test_equal_formulations_leave_the_direct_one(blank, teller):
    events = [*teller.round(0, [3e-3]), *teller.round(1, [1e-3]), *teller.round(2, [1e-3])]
    assert choices.chosen(fold(blank, events)) == {"conv": "direct"}


def test_the_total_does_not_depend_on_how_events_are_batched(blank, teller):
    events = [
        *teller.round(0, [4e-3, None]),
        *teller.round(1, [1e-3, 5e-4]),
        *teller.round(2, [2e-3, 1e-3, 7e-4]),
        *teller.round(0, [1.6e-3]),
    ]
    whole = fold(blank, events)
    single = blank
    for event in events:
        single = fold(single, [event])
        assert single.curve == () or single.curve[-1].partial == single.partial
        if single.curve:
            assert single.curve[-1].estimated_total_latency_s == total(single)
    assert single == whole
    for cut in range(len(events)):
        assert fold(fold(blank, events[:cut]), events[cut:]) == whole


def test_choices_that_share_a_task_each_count_it(tasks, teller):
    other = Choice(
        name="other",
        weight=1,
        formulations=(
            Formulation(name="direct", tasks=(1,)),
            Formulation(name="winograd2", tasks=(2,)),
        ),
    )
    state = initial(tasks, (CHOICE, other))
    for task, latency in enumerate([9e-3, 2e-3, 1e-3]):
        state = fold(state, teller.round(task, [latency]))
    assert choices.chosen(state) == {"conv": "winograd2", "other": "winograd2"}
    assert [task.weight for task in state.tasks] == [0, 6, 4]
    assert total(state) == pytest.approx(3 * 5e-3 + 1e-3)


def test_a_lost_record_gives_the_choice_back(blank, teller):
    events = [*teller.round(0, [2e-3]), *teller.round(1, [1e-4]), *teller.round(2, [1e-4])]
    state = fold(blank, events)
    assert choices.chosen(state) == {"conv": "winograd2"}
    lost = ev.RecordLost(time=1.0, trial=state.tasks[2].best_trial, task=2)
    state = fold(state, [lost])
    assert choices.chosen(state) == {"conv": "direct"}
    assert total(state) == pytest.approx(6e-3)


def test_a_run_on_disk_keeps_its_choices(make_run, tasks):
    run = make_run(choices=(CHOICE,))
    opened = RunDirectory(run.path)
    assert opened.manifest.choices == (CHOICE,)
    state = run.write(((0, (4e-3,)), (1, (1e-4,)), (2, (1e-4,))))
    assert opened.poll() == state == RunDirectory(run.path).poll()
    assert choices.chosen(state) == {"conv": "winograd2"}
    checkpoint.write(run.journal, state)
    with run.journal.open("rb") as file:
        kept, _ = checkpoint.load(file, run.journal, initial(tasks, (CHOICE,)))
        assert kept == state
        assert checkpoint.load(file, run.journal, initial(tasks)) is None


def test_a_manifest_without_choices_has_none(run, tasks):
    path = run.path / FILE
    value = json.loads(path.read_text())
    del value["choices"]
    path.write_text(json.dumps(value))
    assert Manifest.read(run.path).choices == ()
    assert [t.uses for t in RunDirectory(run.path).poll().tasks] == [None] * len(tasks)


@pytest.mark.parametrize(
    "formulations", [[], [{"name": "direct", "tasks": []}], [{"name": "direct", "tasks": [7]}]]
)
def test_a_damaged_choice_is_refused(run, formulations):
    path = run.path / FILE
    value = json.loads(path.read_text())
    value["choices"] = [{"name": "conv", "weight": 1, "formulations": formulations}]
    path.write_text(json.dumps(value))
    with pytest.raises(RunError, match="choice conv"):
        Manifest.read(run.path)
