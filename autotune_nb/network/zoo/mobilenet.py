"""MobileNet v1 (Howard et al., 2017) and v2 (Sandler et al., 2018), at width 1."""

from __future__ import annotations

from autotune_nb.network.zoo.catalogue import Entry, Options
from autotune_nb.network.zoo.plan import Plan, Value

_V1 = ((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2))
_V1_TAIL = (*((512, 1),) * 5, (1024, 2), (1024, 1))
# Of v2: expansion, channels, repetitions, stride of the first.
_V2 = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


def build_v1(options: Options) -> Plan:
    """Build v1: depthwise 3x3 and pointwise convolutions in turn."""
    plan = Plan()
    x = plan.image((options.batch_size, 3, options.image_size, options.image_size))
    x = plan.relu(plan.conv_bn(x, "stem", 32, 3, stride=2, pad=1))
    for index, (channels, stride) in enumerate((*_V1, *_V1_TAIL)):
        x = _depthwise(plan, x, f"block{index}_depthwise", stride, "relu")
        x = plan.relu(plan.conv_bn(x, f"block{index}_pointwise", channels, 1))
    x = plan.global_avg_pool(x)
    plan.finish(plan.dense(x, "classifier", 1000))
    return plan


def build_v2(options: Options) -> Plan:
    """Build v2: inverted residuals, linear at their narrow ends."""
    plan = Plan()
    x = plan.image((options.batch_size, 3, options.image_size, options.image_size))
    x = plan.unary("relu6", plan.conv_bn(x, "stem", 32, 3, stride=2, pad=1))
    for stage, (expansion, channels, count, first) in enumerate(_V2):
        for index in range(count):
            stride = first if index == 0 else 1
            x = _inverted(
                plan,
                x,
                f"stage{stage}_{index}",
                expansion=expansion,
                channels=channels,
                stride=stride,
            )
    x = plan.unary("relu6", plan.conv_bn(x, "head", 1280, 1))
    x = plan.global_avg_pool(x)
    plan.finish(plan.dense(x, "classifier", 1000))
    return plan


def _depthwise(plan: Plan, x: Value, name: str, stride: int, activation: str) -> Value:
    channels = x.shape[1]
    y = plan.conv_bn(x, name, channels, 3, stride=stride, pad=1, groups=channels)
    return plan.unary(activation, y)


def _inverted(
    plan: Plan, x: Value, name: str, *, expansion: int, channels: int, stride: int
) -> Value:
    y = x
    if expansion > 1:
        y = plan.unary("relu6", plan.conv_bn(x, f"{name}_expand", expansion * x.shape[1], 1))
    y = _depthwise(plan, y, f"{name}_depthwise", stride, "relu6")
    shortcut = stride == 1 and x.shape[1] == channels
    y = plan.conv_bn(y, f"{name}_project", channels, 1, damped=shortcut)
    return plan.add(x, y) if shortcut else y


ENTRIES = (
    Entry(name="mobilenet", build=build_v1, aliases=("mobilenet_v1",)),
    Entry(name="mobilenet_v2", build=build_v2),
)
