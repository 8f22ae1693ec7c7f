"""Schedule rules for CPUs that need no measuring: parallel, vectorised and tiled in registers.

A contraction (convolution, matrix multiplication) keeps a tile of its output in registers: a few
rows of a few vectors each. The vectors run along the output's last axis; the rows along an axis
whose values reuse the operand that is loaded as vectors.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import Any

import tvm
from tvm.s_tir import Schedule
from tvm.tirx.analysis import undefined_vars

from autotune_nb.tuning.blocks import Axis, Block, Machine, divisors, largest_divisor

# Less work than this (elements written times reduced) is done sooner than threads are woken.
_PARALLEL_WORK = 16_384
# An expression inlined wherever it is read must not grow without bound.
_INLINE_LIMIT = 64
_MOST_VECTORS = 4
_MOST_ROWS = 16
_INDEPENDENT_SUMS = 8


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Variation:
    """A way to depart from what the rules think best.

    Attributes
    ----------
    tile
        Which of the possible tiles, the best first.
    flip
        Whether the outer loops run in the other order; without a reduction, whether each thread
        takes whole lines.
    """

    tile: int = 0
    flip: bool = False


def tiled(schedule: Schedule, machine: Machine, variation: Variation | None = None) -> None:
    """Schedule every block by its kind; raises where it cannot."""
    root = schedule.get_sblock("root")
    _inline(schedule, root)
    done: set[str] = set()
    variation = variation or Variation()
    blocks = schedule.get_child_blocks(root)
    lines = variation.flip and not any(Block.of(schedule, b).is_reduction for b in blocks)
    for block in blocks:
        name = schedule.get(block).name_hint
        if name in done:
            continue
        info = Block.of(schedule, block)
        if info.is_reduction:
            done |= _Reduction(schedule, machine, block, info, variation).apply()
        else:
            _spatial(schedule, machine, block, lines=lines)


def parallel(schedule: Schedule, machine: Machine) -> None:
    """Schedule every block alone: outer loops in parallel, the last one in vectors."""
    for block in schedule.get_child_blocks(schedule.get_sblock("root")):
        info = Block.of(schedule, block)
        if not info.is_reduction:
            _spatial(schedule, machine, block)
            continue
        loops = schedule.get_loops(block)
        outer = loops[: len([axis for axis in info.axes if not axis.reduced])]
        if len(loops) == len(info.axes) and outer and info.work >= _PARALLEL_WORK:
            schedule.parallel(schedule.fuse(*outer))


# -- inlining ------------------------------------------------------------------------------------


def _inline(schedule: Schedule, root: Any) -> None:
    """Inline what is computed element by element into what reads it, unless that reduces."""
    sizes: dict[str, int] = {}
    outputs = {schedule.get(block).name_hint for block in schedule.get_output_blocks(root)}
    for block in schedule.get_child_blocks(root):
        node = schedule.get(block)
        size = 1 + sum(sizes.get(region.source.name, 0) for region in node.reads)
        if node.name_hint in outputs or Block.of(schedule, block).is_reduction:
            continue
        consumers = [Block.of(schedule, consumer) for consumer in schedule.get_consumers(block)]
        if size > _INLINE_LIMIT or any(consumer.is_reduction for consumer in consumers):
            continue
        try:
            schedule.compute_inline(block)
        except tvm.s_tir.ScheduleError:
            continue
        sizes[node.writes[0].source.name] = 2 * size


# -- blocks without a reduction ------------------------------------------------------------------


def _spatial(schedule: Schedule, machine: Machine, block: Any, *, lines: bool = False) -> None:
    """Run a block in parallel, its last axis in vectors; `lines` keeps that axis in one thread."""
    loops = schedule.get_loops(block)
    if not loops:
        return
    branches = _branches_along(schedule, block)
    if branches and schedule.can_decompose_padding(block, loops[0]):
        # Vectors cannot branch: fill all with the padding, then copy what is inside.
        border = schedule.decompose_padding(block, loops[0])
        _vectors(schedule, machine, border)
        branches = False
    _vectors(schedule, machine, block, scalar=branches, lines=lines)


def _vectors(
    schedule: Schedule, machine: Machine, block: Any, *, scalar: bool = False, lines: bool = False
) -> None:
    info = Block.of(schedule, block)
    *outer, last = schedule.get_loops(block)
    work = info.elements * math.prod(int(schedule.get(i).extent) for i in (*outer, last))
    lanes = machine.lanes(info.dtype)
    width = largest_divisor(int(schedule.get(last).extent), lanes)
    if not scalar and width >= min(4, lanes):
        rest, inner = schedule.split(last, [None, width])
        schedule.vectorize(inner)
        if not (lines and outer):
            outer.append(rest)
    elif not outer:
        outer.append(last)
    # Otherwise the last loop stays by itself: divided out of a fused one, its index would cost
    # more than its work.
    if work >= _PARALLEL_WORK:
        schedule.parallel(schedule.fuse(*outer))


def _branches_along(schedule: Schedule, block: Any) -> bool:
    """Tell whether a block chooses between values by its position on its last axis."""
    node = schedule.get(block)
    axes = [axis.var.name for axis in node.iter_vars if int(axis.dom.extent) > 1]
    if not axes or not hasattr(node.body, "value"):
        return False

    def search(expr: Any) -> bool:
        if isinstance(expr, tvm.ir.Call):
            if getattr(expr.op, "name", "") == "tirx.if_then_else":
                condition = {variable.name for variable in undefined_vars(expr.args[0])}
                if axes[-1] in condition:
                    return True
            return any(search(argument) for argument in expr.args)
        parts = (getattr(expr, name, None) for name in ("a", "b", "value"))
        return any(isinstance(part, tvm.ir.Expr) and search(part) for part in parts)

    return search(node.body.value)


# -- reductions ----------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Tile:
    """What is kept in registers: for each of the rows, a few vectors of some lanes."""

    lanes: int
    vectors: int
    rows: dict[str, int]


class _Reduction:
    """Schedules one block that reduces, together with what alone reads it element by element."""

    def __init__(
        self,
        schedule: Schedule,
        machine: Machine,
        block: Any,
        info: Block,
        variation: Variation,
    ) -> None:
        self.variation = variation
        self.schedule = schedule
        self.machine = machine
        self.block = block
        self.info = info
        self.lanes = machine.lanes(info.dtype)

    def apply(self) -> set[str]:
        """Schedule it; return the names of the blocks that are done with."""
        loops = self.schedule.get_loops(self.block)
        if len(loops) != len(self.info.axes):
            raise ValueError("not one loop for each axis")
        wide = [axis for axis in self.info.axes if not axis.reduced and axis.extent > 1]
        vector = wide[-1] if wide else None
        reduced = [axis for axis in self.info.axes if axis.reduced]
        if vector is None or not any(read.contiguous(vector.name) for read in self.info.reads):
            last = reduced[-1]
            width = largest_divisor(last.extent, 2 * self.lanes, self.lanes)
            if width >= 4 and any(read.contiguous(last.name) for read in self.info.reads):
                return self._partial_sums(loops, width)
        return self._tile(loops, vector or self.info.axes[0])

    def _partial_sums(self, loops: list[Any], width: int) -> set[str]:
        """Reduce along memory: one partial result for each lane, then these into one."""
        schedule = self.schedule
        index = max(i for i, axis in enumerate(self.info.axes) if axis.reduced)
        _, lane = schedule.split(loops[index], [None, width])
        partial = schedule.rfactor(lane, 0)
        for block in (partial, self.block):
            self._outer_parallel(block)
        loops = schedule.get_loops(partial)
        spatial = len([axis for axis in self.info.axes if not axis.reduced])
        if len(loops) < 2:
            raise ValueError("nothing is left to reduce")
        first = loops[1] if self.info.work >= _PARALLEL_WORK else loops[spatial]
        schedule.vectorize(loops[-1])
        init = schedule.decompose_reduction(partial, first)
        self._in_registers(schedule.get_loops(init)[-1:])
        return {schedule.get(self.block).name_hint}

    def _outer_parallel(self, block: Any) -> None:
        spatial = len([axis for axis in self.info.axes if not axis.reduced])
        outer = self.schedule.get_loops(block)[:spatial]
        if outer and self.info.work >= _PARALLEL_WORK:
            self.schedule.parallel(self.schedule.fuse(*outer))

    # -- a tile in registers

    def _tile(self, loops: list[Any], vector: Axis) -> set[str]:
        schedule, axes = self.schedule, self.info.axes
        epilogue = self._epilogue()
        tile = self._tile_sizes(vector)
        outer: dict[str, Any] = {}
        inner: list[Any] = []
        lanes: list[Any] = []
        for axis, loop in zip(axes, loops, strict=True):
            if axis is vector:
                whole, lane = schedule.split(loop, [None, tile.lanes])
                outer[axis.name], part = self._split(whole, tile.vectors, _MOST_VECTORS)
                lanes = [part, lane]
            elif axis.name in tile.rows:
                outer[axis.name], row = self._split(loop, tile.rows[axis.name], _MOST_ROWS)
                inner.append(row)
            elif not axis.reduced:
                outer[axis.name] = loop
        inner += lanes
        reductions = [loop for axis, loop in zip(axes, loops, strict=True) if axis.reduced]
        order = self._order(outer, vector)
        schedule.reorder(*order, *reductions, *inner)
        # With unit loops, so that the trace also replays with other sizes of the tile.
        schedule.reverse_compute_at(epilogue, self._parallel(order), preserve_unit_loops=True)
        self._in_registers(inner)
        init = schedule.decompose_reduction(self.block, reductions[0])
        self._in_registers(schedule.get_loops(init)[-len(inner) :])
        around = len(schedule.get_loops(self.block)) - len(inner) - len(reductions)
        *rows, last = schedule.get_loops(epilogue)[around:]
        self._in_registers([*rows, *schedule.split(last, [None, tile.lanes])])
        return {schedule.get(epilogue).name_hint}

    def _split(self, loop: Any, size: int, limit: int) -> list[Any]:
        """Split off `size`, as a decision that an evolutionary search can change."""
        extent = int(self.schedule.get(loop).extent)
        factors = self.schedule.sample_perfect_tile(
            loop, n=2, max_innermost_factor=limit, decision=[extent // size, size]
        )
        return list(self.schedule.split(loop, factors))

    def _epilogue(self) -> Any:
        """Return the block that alone reads the result, or a copy of the result to its place."""
        schedule = self.schedule
        consumers = schedule.get_consumers(self.block)
        if len(consumers) == 1:
            info = Block.of(schedule, consumers[0])
            extents = [axis.extent for axis in self.info.axes if not axis.reduced]
            if not info.is_reduction and [axis.extent for axis in info.axes] == extents:
                return consumers[0]
        return schedule.cache_write(self.block, 0, "global")

    def _tile_sizes(self, vector: Axis) -> _Tile:
        """Return a tile with few loads for each multiplication that fits the registers.

        Vectors are at most a register wide: LLVM splits wider ones badly unless their width is
        a power of two.
        """
        lanes = largest_divisor(vector.extent, self.lanes)
        loaded = [read for read in self.info.reads if read.contiguous(vector.name)]
        others = [
            axis
            for axis in reversed(self.info.axes)
            if not axis.reduced and axis is not vector and axis.extent > 1
        ]
        # Rows along these axes multiply the same vectors.
        reusing = [a for a in others if any(not read.uses(a.name) for read in loaded)][:2]
        nothing_reused = not reusing
        if len(self.info.reads) < 2:
            reusing = []
        elif nothing_reused:
            reusing = others[:1]
        found: dict[tuple[int, int], tuple[float, _Tile]] = {}
        for vectors in divisors(vector.extent // lanes, _MOST_VECTORS):
            # The innermost axis takes as many rows as it can: their values lie close together.
            choices = [divisors(axis.extent, _MOST_ROWS)[::-1] for axis in reusing]
            for sizes in itertools.product(*choices):
                rows = math.prod(sizes)
                # Accumulators, the loaded vectors, and what they are multiplied by.
                if rows * vectors + vectors + 1 <= self.machine.registers:
                    chosen = {a.name: n for a, n in zip(reusing, sizes, strict=True)}
                    cost = (rows + vectors) / (rows * vectors)
                    if nothing_reused:  # only enough sums that none waits for another
                        cost = abs(rows * vectors - _INDEPENDENT_SUMS)
                    tile = _Tile(lanes=lanes, vectors=vectors, rows=chosen)
                    found.setdefault((vectors, rows), (cost, tile))
        tiles = [tile for _, tile in sorted(found.values(), key=lambda item: item[0])]
        return tiles[min(self.variation.tile, len(tiles) - 1)]

    def _order(self, outer: dict[str, Any], vector: Axis) -> list[Any]:
        """Return the outer loops: those first whose operand is too large to be read repeatedly."""
        loaded = sum(r.size for r in self.info.reads if r.uses(vector.name))
        other = sum(r.size for r in self.info.reads if not r.uses(vector.name))
        names = list(outer)
        if (loaded > other) != self.variation.flip:
            names.sort(key=lambda name: name != vector.name)
        return [outer[name] for name in names]

    def _parallel(self, order: Sequence[Any]) -> Any:
        """Fuse as many outer loops as keep the cores busy; return the innermost outer loop."""
        if self.info.work < _PARALLEL_WORK:
            return order[-1]
        count, used = 1, 0
        for loop in order:
            count *= int(self.schedule.get(loop).extent)
            used += 1
            if count >= 16 * self.machine.cores:
                break
        fused = self.schedule.fuse(*order[:used])
        self.schedule.parallel(fused)
        return order[-1] if used < len(order) else fused

    def _in_registers(self, loops: Sequence[Any]) -> None:
        for loop in loops[:-1]:
            self.schedule.unroll(loop)
        if loops and self.schedule.get(loops[-1]).kind != tvm.tirx.ForKind.VECTORIZED:
            self.schedule.vectorize(loops[-1])
