"""ResNet on video: three-dimensional convolutions on 16 frames of 112x112 (Tran et al., 2018)."""

from __future__ import annotations

from functools import partial

from autotune_nb.network.zoo.catalogue import Entry, Options
from autotune_nb.network.zoo.plan import Plan
from autotune_nb.network.zoo.resnet import BLOCKS, basic_block, bottleneck

FRAMES, CLASSES = 16, 400


def build(depth: int, options: Options) -> Plan:
    """Build a 3-D ResNet; its frames are as many as those of the Kinetics models."""
    plan = Plan()
    block = basic_block if depth < 50 else bottleneck
    x = plan.image((options.batch_size, 3, FRAMES, options.image_size, options.image_size))
    x = plan.relu(plan.conv_bn(x, "stem", 64, (3, 7, 7), stride=(1, 2, 2), pad=(1, 3, 3)))
    for stage, count in enumerate(BLOCKS[depth]):
        for index in range(count):
            stride = 2 if stage > 0 and index == 0 else 1
            x = block(plan, x, f"stage{stage + 1}_{index}", 64 << stage, stride)
    x = plan.global_avg_pool(x)
    plan.finish(plan.dense(x, "classifier", CLASSES))
    return plan


ENTRIES = tuple(
    Entry(
        name=f"resnet3d-{depth}",
        build=partial(build, depth),
        image_size=112,
        aliases=(f"r3d-{depth}",),
    )
    for depth in (18, 34, 50)
)
