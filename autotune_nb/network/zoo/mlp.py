"""A multilayer perceptron on flat 28x28 digits."""

from __future__ import annotations

from autotune_nb.network.zoo.catalogue import Entry, Options
from autotune_nb.network.zoo.plan import Plan


def build(options: Options) -> Plan:
    """Build 784-128-64-10 with ReLU between."""
    plan = Plan()
    x = plan.vector((options.batch_size, 784))
    x = plan.relu(plan.dense(x, "hidden1", 128))
    x = plan.relu(plan.dense(x, "hidden2", 64))
    plan.finish(plan.dense(x, "classifier", 10))
    return plan


ENTRIES = (Entry(name="mlp", build=build, layouts=(), image_size=None),)
