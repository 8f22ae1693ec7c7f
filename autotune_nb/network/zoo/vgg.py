"""VGG (Simonyan and Zisserman, 2014), without batch norms."""

from __future__ import annotations

from functools import partial

from autotune_nb.network.zoo.catalogue import Entry, Options
from autotune_nb.network.zoo.plan import Plan

# Convolutions of each stage.
_STAGES = {
    11: (1, 1, 2, 2, 2),
    13: (2, 2, 2, 2, 2),
    16: (2, 2, 3, 3, 3),
    19: (2, 2, 4, 4, 4),
}


def build(depth: int, options: Options) -> Plan:
    """Build VGG of a depth; the image size decides how large its first dense layer is."""
    plan = Plan()
    x = plan.image((options.batch_size, 3, options.image_size, options.image_size))
    for stage, count in enumerate(_STAGES[depth]):
        for index in range(count):
            channels = min(64 << stage, 512)
            x = plan.relu(
                plan.conv(x, f"conv{stage + 1}_{index + 1}", channels, 3, pad=1, bias=True)
            )
        x = plan.pool(x, "max", 2, stride=2)
    x = plan.flatten(x)
    x = plan.relu(plan.dense(x, "hidden1", 4096))
    x = plan.relu(plan.dense(x, "hidden2", 4096))
    plan.finish(plan.dense(x, "classifier", 1000))
    return plan


ENTRIES = tuple(Entry(name=f"vgg-{depth}", build=partial(build, depth)) for depth in _STAGES)
