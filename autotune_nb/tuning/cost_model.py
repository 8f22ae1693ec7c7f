"""The cost model of a search worker: gradient-boosted trees over TVM's features of each store.

TVM's own ``XGBModel`` trains for up to 10,000 rounds until its error on the training data stops
falling, in Python callbacks: seconds a round of tuning, on cores that have candidates to build.
This one has the same features, the same target (best time over time, summed over a candidate's
stores) and the same loss, trains a fixed number of shallow rounds with histograms, and only when a
tenth of the data is new. It begins to predict after two batches instead of 100 trials. Each round
is a small forest on samples of the data: few and noisy as these are, single trees fit the noise.
"""

from __future__ import annotations

import dataclasses
import io
from typing import Any

import numpy as np
import xgboost
from numpy.typing import NDArray
from tvm.ir.utils import derived_object
from tvm.s_tir import meta_schedule as ms

Floats = NDArray[np.float32]
_WARM_UP = 32  # trials before the first training
_GROWTH = 1.1  # train again when the data have grown by this factor
_ROUNDS = 60
_PARAMETERS = {
    "max_depth": 7,
    "eta": 0.2,
    "gamma": 0.001,
    "min_child_weight": 0,
    "tree_method": "hist",
    "max_bin": 64,
    # Less variance helps: on four recorded runs the quarter of the next batch that it likes best
    # scored 1.7 to 3.1 % higher than with one tree on all data, with errors of half as much, for
    # three times the training. That tuned latencies come out lower has not been shown.
    "num_parallel_tree": 3,
    "subsample": 0.7,
    "colsample_bynode": 0.3,
    "nthread": 1,
}


@dataclasses.dataclass(slots=True, kw_only=True)
class Lesson:
    """Measured candidates of one task: features of each, and its seconds (inf if it failed)."""

    task: str
    features: list[Floats] = dataclasses.field(default_factory=list)
    times: list[float] = dataclasses.field(default_factory=list)

    def to_bytes(self) -> bytes:
        """Return it as bytes that pass through a process without NumPy."""
        file = io.BytesIO()
        np.savez(
            file,
            task=np.array(self.task),
            stores=np.concatenate(self.features) if self.features else np.zeros((0, 0), np.float32),
            counts=np.array([len(features) for features in self.features], np.int64),
            times=np.array(self.times),
        )
        return file.getvalue()

    @classmethod
    def from_bytes(cls, data: bytes) -> Lesson:
        """Return what `to_bytes` was called on."""
        with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
            ends = np.cumsum(arrays["counts"])
            features = np.split(arrays["stores"], ends[:-1]) if len(ends) else []
            return cls(task=str(arrays["task"]), features=features, times=arrays["times"].tolist())


class GroupedCostModel:
    """Predicts how good candidates are, relative to the best of their task, from all tasks' trials.

    Parameters
    ----------
    seed
        Seed of the training and of the guesses made before the first.
    """

    def __init__(self, seed: int = 0) -> None:
        self._extractor = ms.feature_extractor.PerStoreFeature()
        self._groups: dict[str, Lesson] = {}
        self._size = 0
        self._trained_size = 0
        self._booster: Any = None
        self._random = np.random.default_rng(seed)
        self._parameters = {**_PARAMETERS, "seed": seed}

    @property
    def trained(self) -> bool:
        """True once predictions come from data."""
        return self._booster is not None

    def add(self, context: Any, candidates: list[Any], times: list[list[float]]) -> Lesson:
        """Learn from measured candidates of one task; return the same for other models.

        Parameters
        ----------
        context
            The task's ``TuneContext``.
        candidates
            Its ``MeasureCandidate`` objects.
        times
            Seconds of each repeat, by candidate; empty for one that failed.
        """
        lesson = Lesson(task=context.task_name)
        for features, measured in zip(self._features(context, candidates), times, strict=True):
            if len(features):
                lesson.features.append(features)
                lesson.times.append(float(np.median(measured)) if measured else np.inf)
        self.hear(lesson)
        return lesson

    def hear(self, lesson: Lesson) -> None:
        """Learn what another model was taught."""
        group = self._groups.setdefault(lesson.task, Lesson(task=lesson.task))
        group.features += lesson.features
        group.times += lesson.times
        self._size += len(lesson.times)
        if self._size >= max(_WARM_UP, self._trained_size * _GROWTH):
            self._train()

    def predict(self, context: Any, candidates: list[Any]) -> NDArray[np.float64]:
        """Return a score for each candidate, larger for faster ones."""
        if self._booster is None:
            return self._random.uniform(size=len(candidates))
        features = self._features(context, candidates)
        rows = [f if len(f) else np.zeros((1, self._width), np.float32) for f in features]
        stores = np.concatenate(rows)
        margin = self._booster.inplace_predict(stores, predict_type="margin")
        owner = np.repeat(np.arange(len(rows)), [len(r) for r in rows])
        scores = np.bincount(owner, weights=margin, minlength=len(rows)).astype("float64")
        scores[[i for i, f in enumerate(features) if not len(f)]] = 0.0
        return scores

    def for_search(self) -> Any:
        """Return this model as the object that TVM's search asks."""
        return _SearchModel(self)

    def _features(self, context: Any, candidates: list[Any]) -> list[Floats]:
        found = self._extractor.extract_from(context, candidates)
        return [tensor.numpy().astype(np.float32) for tensor in found]

    def _train(self) -> None:
        features: list[Floats] = []
        labels: list[float] = []
        for group in self._groups.values():
            best = min(group.times, default=np.inf)
            features += group.features
            # 1 for the best of its task, 0 for a failure
            labels += [best / t if np.isfinite(t) else 0.0 for t in group.times]
        counts = [len(f) for f in features]
        owner = np.repeat(np.arange(len(features)), counts)
        wanted = np.repeat(np.asarray(labels, np.float32), counts)
        data = xgboost.DMatrix(np.concatenate(features), label=wanted)
        self._width = features[0].shape[1]

        def loss(
            predicted: NDArray[np.float32], _: Any
        ) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
            # a candidate's score is the sum over its stores; good candidates matter more
            total = np.bincount(owner, weights=predicted).astype(np.float32)[owner]
            return (total - wanted) * wanted, wanted + 1e-6

        self._booster = xgboost.train(
            {**self._parameters, "base_score": 0.0, "disable_default_eval_metric": True},
            data,
            num_boost_round=_ROUNDS,
            obj=loss,
        )
        self._trained_size = self._size


@derived_object
class _SearchModel(ms.cost_model.PyCostModel):
    """What TVM calls while it searches; the learning is ours."""

    def __init__(self, model: GroupedCostModel) -> None:
        super().__init__()
        self._model = model

    def load(self, path: str) -> None:
        raise NotImplementedError(path)

    def save(self, path: str) -> None:
        raise NotImplementedError(path)

    def update(self, context: Any, candidates: list[Any], results: list[Any]) -> None:
        """Do nothing: results come through `GroupedCostModel.add`."""

    def predict(self, context: Any, candidates: list[Any]) -> NDArray[np.float64]:
        return self._model.predict(context, candidates)
