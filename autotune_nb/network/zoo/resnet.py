"""ResNet (He et al., 2015), version 1.5: a bottleneck strides in its 3x3 convolution."""

from __future__ import annotations

from functools import partial

from autotune_nb.network.zoo.catalogue import Entry, Options
from autotune_nb.network.zoo.plan import Plan, Value

BLOCKS = {
    18: (2, 2, 2, 2),
    34: (3, 4, 6, 3),
    50: (3, 4, 6, 3),
    101: (3, 4, 23, 3),
    152: (3, 8, 36, 3),
}


def basic_block(plan: Plan, x: Value, name: str, channels: int, stride: int) -> Value:
    """Two 3x3 convolutions beside a shortcut."""
    y = plan.relu(plan.conv_bn(x, f"{name}_1", channels, 3, stride=stride, pad=1))
    y = plan.conv_bn(y, f"{name}_2", channels, 3, pad=1, damped=True)
    return plan.relu(plan.add(y, shortcut(plan, x, name, channels, stride)))


def bottleneck(plan: Plan, x: Value, name: str, channels: int, stride: int) -> Value:
    """Convolutions 1x1, 3x3 and 1x1 beside a shortcut."""
    y = plan.relu(plan.conv_bn(x, f"{name}_1", channels, 1))
    y = plan.relu(plan.conv_bn(y, f"{name}_2", channels, 3, stride=stride, pad=1))
    y = plan.conv_bn(y, f"{name}_3", 4 * channels, 1, damped=True)
    return plan.relu(plan.add(y, shortcut(plan, x, name, 4 * channels, stride)))


def shortcut(plan: Plan, x: Value, name: str, channels: int, stride: int) -> Value:
    """Return `x`, projected where the block changes its shape."""
    if stride == 1 and x.shape[1] == channels:
        return x
    return plan.conv_bn(x, f"{name}_shortcut", channels, 1, stride=stride)


def build(depth: int, options: Options) -> Plan:
    """Build ResNet of a depth in `BLOCKS`."""
    plan = Plan()
    block = basic_block if depth < 50 else bottleneck
    x = plan.image((options.batch_size, 3, options.image_size, options.image_size))
    x = plan.relu(plan.conv_bn(x, "stem", 64, 7, stride=2, pad=3))
    x = plan.pool(x, "max", 3, stride=2, pad=1)
    for stage, count in enumerate(BLOCKS[depth]):
        for index in range(count):
            stride = 2 if stage > 0 and index == 0 else 1
            x = block(plan, x, f"stage{stage + 1}_{index}", 64 << stage, stride)
    x = plan.global_avg_pool(x)
    plan.finish(plan.dense(x, "classifier", 1000))
    return plan


ENTRIES = tuple(
    Entry(
        name=f"resnet-{depth}",
        build=partial(build, depth),
        aliases=(f"resnet-{depth}_v1", f"resnet-{depth}_v1.5"),
    )
    for depth in BLOCKS
)
