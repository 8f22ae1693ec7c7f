"""The cost model, on features made by hand."""

import numpy as np
import pytest

from autotune_nb.tuning.cost_model import GroupedCostModel, Lesson


class Context:
    task_name = "task0"


def model_of(features):
    """A model that takes the features of a candidate from a table."""
    model = GroupedCostModel(seed=0)
    model._features = lambda context, candidates: [features[c] for c in candidates]
    return model


@pytest.fixture
def candidates():
    """Sixty candidates of two stores each; the slower, the larger their first feature."""
    random = np.random.default_rng(0)
    speed = random.uniform(1, 10, 60)
    features = {
        n: np.stack([[s, 1.0, noise], [s / 2, 0.0, noise]]).astype(np.float32)
        for n, (s, noise) in enumerate(zip(speed, random.uniform(size=60), strict=True))
    }
    return features, {n: [float(s) * 1e-3] for n, s in enumerate(speed)}


def test_it_guesses_until_it_has_data(candidates):
    features, _ = candidates
    model = model_of(features)
    guesses = model.predict(Context, [0, 1, 2])
    assert guesses.shape == (3,)
    assert not model.trained
    assert np.all((guesses >= 0) & (guesses <= 1))


def test_it_ranks_what_it_has_not_seen(candidates):
    features, times = candidates
    model = model_of(features)
    model.add(Context, list(range(40)), [times[n] for n in range(40)])
    assert model.trained
    scores = model.predict(Context, list(range(40, 60)))
    seconds = np.array([times[n][0] for n in range(40, 60)])
    assert np.corrcoef(np.argsort(np.argsort(-scores)), np.argsort(np.argsort(seconds)))[0, 1] > 0.8


def test_failures_score_below_results(candidates):
    features, times = candidates
    model = model_of(features)
    broken = [n for n in range(40) if times[n][0] > 7e-3]
    model.add(Context, list(range(40)), [[] if n in broken else times[n] for n in range(40)])
    scores = model.predict(Context, list(range(40)))
    good = [n for n in range(40) if n not in broken]
    assert scores[good].mean() > scores[broken].mean() + 0.1


def test_a_lesson_teaches_another_model_the_same(candidates):
    features, times = candidates
    first, second = model_of(features), model_of(features)
    lesson = first.add(Context, list(range(40)), [times[n] for n in range(40)])
    second.hear(Lesson.from_bytes(lesson.to_bytes()))
    rest = list(range(40, 60))
    assert np.array_equal(first.predict(Context, rest), second.predict(Context, rest))


def test_an_empty_lesson_survives_the_way():
    empty = Lesson.from_bytes(Lesson(task="task3").to_bytes())
    assert (empty.task, empty.features, empty.times) == ("task3", [], [])
