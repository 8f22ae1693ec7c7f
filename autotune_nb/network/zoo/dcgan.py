"""The generator of DCGAN (Radford et al., 2015): 64x64 images from 100 random numbers."""

from __future__ import annotations

from autotune_nb.network.zoo.catalogue import Entry, Options
from autotune_nb.network.zoo.plan import Plan


def build(options: Options) -> Plan:
    """Build the generator; it ends in tanh, as the published one does."""
    plan = Plan()
    x = plan.image((options.batch_size, 100, 1, 1))
    for index, channels in enumerate((512, 256, 128, 64)):
        stride, pad = (1, 0) if index == 0 else (2, 1)
        x = plan.conv_transpose(x, f"up{index}_conv", channels, 4, stride=stride, pad=pad)
        x = plan.relu(plan.batch_norm(x, f"up{index}_bn"))
    x = plan.conv_transpose(x, "image", 3, 4, stride=2, pad=1)
    plan.finish(plan.unary("tanh", x))
    return plan


# TVM has transposed convolutions for channels first only.
ENTRIES = (Entry(name="dcgan", build=build, layouts=("NCHW",), image_size=None),)
