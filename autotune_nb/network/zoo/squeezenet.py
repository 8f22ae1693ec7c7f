"""SqueezeNet 1.1 (Iandola et al., 2016)."""

from __future__ import annotations

from autotune_nb.network.zoo.catalogue import Entry, Options
from autotune_nb.network.zoo.plan import Plan, Value

# Channels of the squeezing convolution; those of each expanding one are four times as many.
_STAGES = ((16, 16), (32, 32), (48, 48, 64, 64))


def build(options: Options) -> Plan:
    """Build the network; its classifier is a convolution, then a ReLU and an average."""
    plan = Plan()
    x = plan.image((options.batch_size, 3, options.image_size, options.image_size))
    x = plan.relu(plan.conv(x, "stem", 64, 3, stride=2, bias=True))
    for stage, widths in enumerate(_STAGES):
        x = plan.pool(x, "max", 3, stride=2, ceil=True)
        for index, width in enumerate(widths):
            x = _fire(plan, x, f"fire{stage}_{index}", width)
    x = plan.relu(plan.conv(x, "classifier", 1000, 1, bias=True))
    plan.finish(plan.global_avg_pool(x))
    return plan


def _fire(plan: Plan, x: Value, name: str, width: int) -> Value:
    x = plan.relu(plan.conv(x, f"{name}_squeeze", width, 1, bias=True))
    one = plan.relu(plan.conv(x, f"{name}_expand1", 4 * width, 1, bias=True))
    three = plan.relu(plan.conv(x, f"{name}_expand3", 4 * width, 3, pad=1, bias=True))
    return plan.concat([one, three])


ENTRIES = (Entry(name="squeezenet_v1.1", build=build, aliases=("squeezenet", "squeezenet1.1")),)
