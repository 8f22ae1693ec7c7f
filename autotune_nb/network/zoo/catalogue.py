"""Entries of the zoo: what one is, and what may be asked of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from autotune_nb.network.zoo.plan import Plan


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What a network is built for; `image_size` is 0 where there is no image."""

    batch_size: int
    image_size: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A network of the zoo.

    Attributes
    ----------
    name
        Its proper name.
    build
        Makes its plan.
    layouts
        Layouts it exists in, the preferred one first; empty where it has no images.
    image_size
        Side of the square image it was made for; None where the size cannot be chosen.
    aliases
        Other names people use.
    """

    name: str
    build: Callable[[Options], Plan]
    layouts: tuple[str, ...] = ("NHWC", "NCHW")
    image_size: int | None = 224
    aliases: tuple[str, ...] = ()
