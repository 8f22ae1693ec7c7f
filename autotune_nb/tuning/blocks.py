"""What the schedule rules need to know of a machine and of the blocks of a TensorIR function."""

from __future__ import annotations

import dataclasses
import math
import re
from typing import Any

import tvm
from tvm.s_tir import Schedule
from tvm.target import codegen
from tvm.tirx.analysis import undefined_vars


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What the rules need to know of a CPU: cores, bits of a vector register, their number."""

    cores: int
    vector_bits: int
    registers: int

    @classmethod
    def of(cls, target: tvm.target.Target) -> Machine:
        """Return the machine that a target describes."""
        features = {str(feature) for feature in codegen.llvm_get_cpu_features(target)}
        cores = int(target.attrs.get("num-cores", 1))
        if "avx512f" in features:
            return cls(cores=cores, vector_bits=512, registers=32)
        if "avx" in features:
            return cls(cores=cores, vector_bits=256, registers=16)
        arm = str(target.attrs.get("mtriple", "")).startswith(("aarch64", "arm64"))
        return cls(cores=cores, vector_bits=128, registers=32 if arm else 16)

    def lanes(self, dtype: str) -> int:
        """Return how many values of a dtype fill one vector register."""
        digits = re.search(r"\d+", dtype)
        return self.vector_bits // max(8, int(digits[0]) if digits else 8)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """A buffer that a block reads: its extents, and the axes each of its indices depends on."""

    shape: tuple[int, ...]
    axes: tuple[frozenset[str], ...]

    @property
    def size(self) -> int:
        """How many values the whole buffer holds."""
        return math.prod(self.shape)

    def uses(self, axis: str) -> bool:
        """Tell whether what is read depends on the axis."""
        return any(axis in names for names in self.axes)

    def contiguous(self, axis: str) -> bool:
        """Tell whether neighbours on the axis lie side by side in memory."""
        wide = [names for extent, names in zip(self.shape, self.axes, strict=True) if extent > 1]
        return bool(wide) and axis in wide[-1]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """One axis of a block."""

    name: str
    extent: int
    reduced: bool


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """What a block is made of.

    Attributes
    ----------
    axes
        In the order of its loops.
    reads
        The buffers it reads and does not write.
    dtype
        Of what it writes.
    elements
        How many elements it writes each time it runs.
    """

    axes: tuple[Axis, ...]
    reads: tuple[Read, ...]
    dtype: str
    elements: int

    @classmethod
    def of(cls, schedule: Schedule, block: Any) -> Block:
        """Return what a block of a schedule looks like."""
        node = schedule.get(block)
        axes = tuple(
            Axis(
                name=axis.var.name,
                extent=int(axis.dom.extent),
                reduced=axis.iter_type == axis.CommReduce,
            )
            for axis in node.iter_vars
        )
        written = [region.source for region in node.writes]
        reads = tuple(
            Read(
                shape=tuple(int(extent) for extent in region.source.ty.shape),
                axes=tuple(
                    frozenset(variable.name for variable in undefined_vars(index.min))
                    for index in region.region
                ),
            )
            for region in node.reads
            if not any(region.source.same_as(buffer) for buffer in written)
        )
        return cls(
            axes=axes,
            reads=reads,
            dtype=str(written[0].ty.dtype),
            elements=math.prod(int(extent.extent) for extent in node.writes[0].region),
        )

    @property
    def is_reduction(self) -> bool:
        """Whether any axis is reduced."""
        return any(axis.reduced for axis in self.axes)

    @property
    def work(self) -> int:
        """How many elements the block writes in all, as often as it does."""
        return math.prod(axis.extent for axis in self.axes) * self.elements


def divisors(extent: int, limit: int) -> list[int]:
    """Return the divisors of `extent` up to `limit`, in ascending order."""
    return [d for d in range(1, min(extent, limit) + 1) if extent % d == 0]


def largest_divisor(extent: int, limit: int, multiple: int = 1) -> int:
    """Return the largest divisor of `extent` up to `limit`, preferring multiples of `multiple`."""
    fits = divisors(extent, max(1, limit))
    return max([d for d in fits if d % multiple == 0] or fits)
