"""Inception v3 (Szegedy et al., 2015), on 299x299, without its auxiliary classifier."""

from __future__ import annotations

from collections.abc import Sequence

from autotune_nb.network.zoo.catalogue import Entry, Options
from autotune_nb.network.zoo.plan import Plan, Value

_EPSILON = 1e-3
# A convolution: channels, kernel, padding, and its stride if that is not 1.
_Conv = tuple[int, "int | tuple[int, int]", "int | tuple[int, int]"]


def build(options: Options) -> Plan:
    """Build the network."""
    plan = Plan()
    x = plan.image((options.batch_size, 3, options.image_size, options.image_size))
    x = _conv(plan, x, "stem1", 32, 3, stride=2)
    x = _conv(plan, x, "stem2", 32, 3)
    x = _conv(plan, x, "stem3", 64, 3, pad=1)
    x = plan.pool(x, "max", 3, stride=2)
    x = _conv(plan, x, "stem4", 80, 1)
    x = _conv(plan, x, "stem5", 192, 3)
    x = plan.pool(x, "max", 3, stride=2)
    for index, pooled in enumerate((32, 64, 64)):
        x = _block_a(plan, x, f"a{index}", pooled)
    x = _reduce_a(plan, x, "b")
    for index, width in enumerate((128, 160, 160, 192)):
        x = _block_c(plan, x, f"c{index}", width)
    x = _reduce_c(plan, x, "d")
    for index in range(2):
        x = _block_e(plan, x, f"e{index}")
    x = plan.global_avg_pool(x)
    plan.finish(plan.dense(x, "classifier", 1000))
    return plan


def _conv(
    plan: Plan,
    x: Value,
    name: str,
    channels: int,
    kernel: int | tuple[int, int],
    *,
    pad: int | tuple[int, int] = 0,
    stride: int = 1,
) -> Value:
    y = plan.conv_bn(x, name, channels, kernel, pad=pad, stride=stride, epsilon=_EPSILON)
    return plan.relu(y)


def _chain(plan: Plan, x: Value, name: str, convs: Sequence[_Conv], last_stride: int = 1) -> Value:
    for index, (channels, kernel, pad) in enumerate(convs):
        stride = last_stride if index == len(convs) - 1 else 1
        x = _conv(plan, x, f"{name}_{index}", channels, kernel, pad=pad, stride=stride)
    return x


def _pooled(plan: Plan, x: Value, name: str, channels: int) -> Value:
    return _conv(plan, plan.pool(x, "avg", 3, stride=1, pad=1), name, channels, 1)


def _block_a(plan: Plan, x: Value, name: str, pooled: int) -> Value:
    return plan.concat(
        [
            _chain(plan, x, f"{name}_1x1", [(64, 1, 0)]),
            _chain(plan, x, f"{name}_5x5", [(48, 1, 0), (64, 5, 2)]),
            _chain(plan, x, f"{name}_3x3", [(64, 1, 0), (96, 3, 1), (96, 3, 1)]),
            _pooled(plan, x, f"{name}_pool", pooled),
        ]
    )


def _reduce_a(plan: Plan, x: Value, name: str) -> Value:
    return plan.concat(
        [
            _chain(plan, x, f"{name}_3x3", [(384, 3, 0)], 2),
            _chain(plan, x, f"{name}_twice", [(64, 1, 0), (96, 3, 1), (96, 3, 0)], 2),
            plan.pool(x, "max", 3, stride=2),
        ]
    )


def _block_c(plan: Plan, x: Value, name: str, width: int) -> Value:
    row, column = ((1, 7), (0, 3)), ((7, 1), (3, 0))
    return plan.concat(
        [
            _chain(plan, x, f"{name}_1x1", [(192, 1, 0)]),
            _chain(plan, x, f"{name}_7x7", [(width, 1, 0), (width, *row), (192, *column)]),
            _chain(
                plan,
                x,
                f"{name}_twice",
                [
                    (width, 1, 0),
                    (width, *column),
                    (width, *row),
                    (width, *column),
                    (192, *row),
                ],
            ),
            _pooled(plan, x, f"{name}_pool", 192),
        ]
    )


def _reduce_c(plan: Plan, x: Value, name: str) -> Value:
    seven: list[_Conv] = [(192, 1, 0), (192, (1, 7), (0, 3)), (192, (7, 1), (3, 0)), (192, 3, 0)]
    return plan.concat(
        [
            _chain(plan, x, f"{name}_3x3", [(192, 1, 0), (320, 3, 0)], 2),
            _chain(plan, x, f"{name}_7x7", seven, 2),
            plan.pool(x, "max", 3, stride=2),
        ]
    )


def _block_e(plan: Plan, x: Value, name: str) -> Value:
    three = _chain(plan, x, f"{name}_3x3", [(384, 1, 0)])
    twice = _chain(plan, x, f"{name}_twice", [(448, 1, 0), (384, 3, 1)])
    return plan.concat(
        [
            _chain(plan, x, f"{name}_1x1", [(320, 1, 0)]),
            *_split(plan, three, f"{name}_3x3"),
            *_split(plan, twice, f"{name}_twice"),
            _pooled(plan, x, f"{name}_pool", 192),
        ]
    )


def _split(plan: Plan, x: Value, name: str) -> tuple[Value, Value]:
    """Convolve once along the rows and once along the columns."""
    row = _conv(plan, x, f"{name}_row", 384, (1, 3), pad=(0, 1))
    return row, _conv(plan, x, f"{name}_column", 384, (3, 1), pad=(1, 0))


ENTRIES = (Entry(name="inception_v3", build=build, image_size=299),)
