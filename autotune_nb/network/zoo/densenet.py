"""DenseNet-121 (Huang et al., 2016): every layer reads all those before it in its block."""

from __future__ import annotations

from autotune_nb.network.zoo.catalogue import Entry, Options
from autotune_nb.network.zoo.plan import Plan, Value

_BLOCKS, _GROWTH = (6, 12, 24, 16), 32


def build(options: Options) -> Plan:
    """Build the network."""
    plan = Plan()
    x = plan.image((options.batch_size, 3, options.image_size, options.image_size))
    x = plan.relu(plan.conv_bn(x, "stem", 64, 7, stride=2, pad=3))
    x = plan.pool(x, "max", 3, stride=2, pad=1)
    for block, count in enumerate(_BLOCKS):
        for index in range(count):
            x = plan.concat([x, _layer(plan, x, f"block{block + 1}_{index}")])
        if block < len(_BLOCKS) - 1:
            name = f"transition{block + 1}"
            x = plan.relu(plan.batch_norm(x, f"{name}_bn"))
            x = plan.conv(x, f"{name}_conv", x.shape[1] // 2, 1)
            x = plan.pool(x, "avg", 2, stride=2)
    x = plan.relu(plan.batch_norm(x, "head_bn"))
    x = plan.global_avg_pool(x)
    plan.finish(plan.dense(x, "classifier", 1000))
    return plan


def _layer(plan: Plan, x: Value, name: str) -> Value:
    y = plan.relu(plan.batch_norm(x, f"{name}_bn"))
    y = plan.relu(plan.conv_bn(y, f"{name}_1", 4 * _GROWTH, 1))
    return plan.conv(y, f"{name}_2", _GROWTH, 3, pad=1)


ENTRIES = (Entry(name="densenet-121", build=build),)
