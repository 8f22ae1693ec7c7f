"""What a schedule decides, read from the trace in its tuning record; pure, without TVM.

A trace is a list of instructions ``[kind, inputs, attributes, outputs]`` and the decisions of
those that sample, ``[index of the instruction, decision]``. Inputs name earlier outputs: blocks
``b0``, loops ``l1``, values ``v2``.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Sequence
from typing import Any

from autotune_nb.errors import RunError
from autotune_nb.run.workload import Block

# Instructions that are no choice of their own but change what a loop or block is.
_INLINE = {"ComputeInline": "into its consumers", "ReverseComputeInline": "into its producer"}
# After these the blocks are no longer those of the workload.
_MOVING = frozenset(
    [
        "ComputeAt",
        "ReverseComputeAt",
        "CacheRead",
        "CacheWrite",
        "RFactor",
        "DecomposeReduction",
        "DecomposePadding",
        "PadEinsum",
    ]
)
_LOOP_KINDS = {"Parallel": "parallel", "Vectorize": "vectorise", "Unroll": "unroll loop"}
_OTHERS = {
    "RFactor": "factor reduction",
    "Tensorize": "tensorise",
    "PadEinsum": "pad",
    "TransformLayout": "transform layout",
    "TransformBlockLayout": "transform layout",
    "StorageAlign": "align storage",
    "SetScope": "scope",
    "DecomposePadding": "decompose padding",
}
_ANNOTATIONS = {
    "meta_schedule.tiling_structure": "tiling",
    "meta_schedule.unroll_explicit": "unroll",
    "meta_schedule.unroll_implicit": "unroll",
    "meta_schedule.cooperative_fetch": "fetch",
    "meta_schedule.random_compute_producer": "",
    "meta_schedule.parallel": "",
    "meta_schedule.vectorize": "",
    "meta_schedule.thread_extent_low_inclusive": "",
    "meta_schedule.thread_extent_high_inclusive": "",
    # what a rule writes down at the end to carry out the annotations above
    "pragma_auto_unroll_max_step": "",
    "pragma_unroll_explicit": "",
}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """One choice of a schedule.

    Attributes
    ----------
    step
        What is chosen: ``tile``, ``split``, ``parallel``, ``vectorise``, ``unroll``, ``bind``,
        ``inline``, ``compute at``, ``cache``, ``fetch``, …
    block
        The block it is chosen for.
    what
        The loops, where there are several. Loop ``2.1`` or ``yy.1`` is the outermost tile of a
        loop, which has the name of what it iterates over, or its number.
    value
        The choice.
    """

    step: str
    block: str
    what: str
    value: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Loop:
    """A loop as far as the trace tells: its extent may be unknown."""

    name: str
    extent: int | None = None


def decisions(line: str, blocks: Sequence[Block] = ()) -> list[Decision]:
    """Return what the schedule of a tuning record decides, in the order of its trace.

    Parameters
    ----------
    line
        A line of ``database_tuning_record.json``.
    blocks
        The blocks of its workload, as `autotune_nb.run.workload.blocks` gives them; without them
        loops are numbered, and some extents are not known.

    Raises
    ------
    RunError
        If it has no trace that can be read.
    """
    try:
        (instructions, chosen), *_ = json.loads(line)[1]
        reader = _Reader({int(index): decision for index, decision in chosen}, blocks)
        for index, (kind, inputs, attributes, outputs) in enumerate(instructions):
            reader.read(index, str(kind), inputs, attributes, outputs)
    except (ValueError, TypeError, KeyError, IndexError, RecursionError) as error:
        raise RunError(
            f"a tuning record's trace cannot be read ({type(error).__name__}: {error}); is it one "
            "of TVM's MetaSchedule?"
        ) from error
    return reader.found


class _Reader:
    """Follows a trace and keeps what its names stand for."""

    def __init__(self, chosen: dict[int, Any], blocks: Sequence[Block]) -> None:
        self.found: list[Decision] = []
        self._known = {block.name: block.loops for block in blocks}
        self._original = [block.name for block in blocks]
        self._chosen = chosen
        self._blocks: dict[str, str] = {}
        self._loops: dict[str, _Loop] = {}
        self._values: dict[str, Any] = {}
        # of each block by its name: its loops, outermost first
        self._nests: dict[str, list[str]] = {}
        self._inlined: set[str] = set()
        self._children: list[str] = []
        self._sampled = True  # until the rules that only carry out what was chosen before

    def read(
        self, index: int, kind: str, inputs: list[Any], attributes: list[Any], outputs: list[str]
    ) -> None:
        """Take in one instruction."""
        if kind.startswith("Sample"):
            self._sample(index, kind, inputs, attributes, outputs)
        elif kind in ("GetSBlock", "GetBlock"):
            self._blocks[outputs[0]] = str(attributes[0])
        elif kind == "GetLoops":
            self._get_loops(inputs[0], outputs)
        elif kind in ("GetConsumers", "GetProducers"):
            role = kind.removeprefix("Get").removesuffix("s").lower()
            for output in outputs:
                self._blocks[output] = f"{role} of {self._block(inputs[0])}"
        elif kind == "GetChildBlocks":
            self._children = list(outputs)
            names = [f"block {number} of {len(outputs)}" for number in range(1, len(outputs) + 1)]
            if len(self._original) == len(outputs):
                names = self._original
            self._blocks.update(zip(outputs, names, strict=True))
        elif kind == "GetOutputBlocks":
            self._blocks.update((output, "output block") for output in outputs)
        elif kind == "EnterPostproc":
            self._sampled = False
        elif kind == "Split":
            self._split(inputs, outputs)
        elif kind == "Fuse":
            self._fuse(inputs, outputs[0])
        elif kind == "Reorder":
            self._reorder(inputs)
        elif kind == "Annotate":
            self._annotate(inputs, attributes)
        else:
            self._transform(kind, inputs, attributes, outputs)

    def _add(self, step: str, block: str, what: str, value: str) -> None:
        self.found.append(Decision(step=step, block=block, what=what, value=value))

    # -- what names stand for

    def _block(self, name: Any) -> str:
        return self._blocks.get(name, str(name))

    def _loop(self, name: Any) -> _Loop:
        return self._loops.get(name, _Loop(name=str(name)))

    def _value(self, item: Any) -> Any:
        if not isinstance(item, str):
            return item
        if item in self._values:
            return self._values[item]
        try:
            return json.loads(item)  # text is quoted once more
        except ValueError:
            return None if item == "None" else item

    def _owner(self, loop: str) -> str:
        """Return the block in whose nest a loop is."""
        return next((block for block, nest in self._nests.items() if loop in nest), "")

    # -- instructions

    def _sample(
        self, index: int, kind: str, inputs: list[Any], attributes: list[Any], outputs: list[str]
    ) -> None:
        decision = self._chosen.get(index)
        if kind == "SamplePerfectTile" and decision is not None:
            self._values.update(zip(outputs, map(int, decision), strict=True))
            loop = self._loop(inputs[0])
            self._loops[inputs[0]] = dataclasses.replace(loop, extent=math.prod(map(int, decision)))
        elif kind == "SampleCategorical" and decision is not None:
            self._values[outputs[0]] = attributes[0][int(decision)]
        elif kind == "SampleComputeLocation" and decision is not None:
            self._values[outputs[0]] = int(decision)
            self._loops[outputs[0]] = _Loop(name=_location(int(decision)))

    def _get_loops(self, block: Any, outputs: list[str]) -> None:
        name = self._block(block)
        nest = self._nests.get(name)
        if nest is None and name.startswith("block "):
            # the blocks are not named here; the number of loops tells most of them
            like = [b for b, loops in self._nests.items() if len(loops) == len(outputs)]
            if len(like) == 1:
                self._blocks[block] = name = like[0]
                nest = self._nests[name]
                self._name_last()
        if nest is not None and len(nest) == len(outputs):
            self._loops.update((new, self._loop(o)) for new, o in zip(outputs, nest, strict=True))
        elif nest is None and len(self._known.get(name, ())) == len(outputs):
            for output, (title, extent) in zip(outputs, self._known[name], strict=True):
                self._loops[output] = _Loop(name=title, extent=extent)
        else:
            for number, output in enumerate(outputs, 1):
                self._loops[output] = _Loop(name=str(number))
        self._nests[name] = list(outputs)

    def _name_last(self) -> None:
        """Name the last child block that has no name yet, if only one block is left for it."""
        named = {self._block(child) for child in self._children}
        open_ = [c for c in self._children if self._block(c).startswith("block ")]
        left = {
            name
            for key, name in self._blocks.items()
            if key not in self._children and name != "root" and name not in self._inlined
        } - named
        if len(open_) == 1 and len(left) == 1:
            self._blocks[open_[0]] = left.pop()

    def _split(self, inputs: list[Any], outputs: list[str]) -> None:
        loop = self._loop(inputs[0])
        factors = [self._value(item) for item in inputs[1:]]
        known = [f for f in factors if isinstance(f, int)]
        if len(known) == len(factors) - 1 and loop.extent is not None:
            rest = math.ceil(loop.extent / math.prod(known))
            factors = [f if isinstance(f, int) else rest for f in factors]
        shown = " × ".join(str(f) if isinstance(f, int) else "?" for f in factors)
        owner = self._owner(inputs[0])
        of = "" if loop.extent is None else f" ({loop.extent})"
        self._add("tile" if self._sampled else "split", owner, f"loop {loop.name}{of}", shown)
        for number, (output, factor) in enumerate(zip(outputs, factors, strict=True), 1):
            extent = factor if isinstance(factor, int) else None
            self._loops[output] = _Loop(name=f"{loop.name}.{number}", extent=extent)
        self._replace(owner, [inputs[0]], outputs)

    def _fuse(self, inputs: list[str], output: str) -> None:
        parts = [self._loop(name) for name in inputs]
        extents = [part.extent for part in parts if part.extent is not None]
        self._loops[output] = _Loop(
            name="+".join(part.name for part in parts),
            extent=math.prod(extents) if len(extents) == len(parts) else None,
        )
        self._replace(self._owner(inputs[0]), inputs, [output])

    def _replace(self, block: str, old: list[str], new: list[str]) -> None:
        nest = self._nests.get(block, [])
        if old and old[0] in nest:
            at = nest.index(old[0])
            rest = [name for name in nest if name not in old]
            self._nests[block] = [*rest[:at], *new, *rest[at:]]

    def _reorder(self, inputs: list[str]) -> None:
        block = self._owner(inputs[0])
        nest = self._nests.get(block, [])
        order = iter([name for name in inputs if name in nest])
        moved = set(inputs)
        self._nests[block] = [next(order) if name in moved else name for name in nest]

    def _annotate(self, inputs: list[Any], attributes: list[Any]) -> None:
        key, value = str(attributes[0]), self._value(inputs[1])
        step = _ANNOTATIONS.get(key, "annotate")
        if not step:
            return
        loop = inputs[0] in self._loops
        block = self._owner(inputs[0]) if loop else self._block(inputs[0])
        what = f"loop {self._loop(inputs[0]).name}" if loop else ""
        shown = value if isinstance(value, str) else json.dumps(value)
        if step == "unroll":
            shown = f"up to {shown} steps" if value else "none"
        elif step == "fetch":
            shown = f"vectors of {shown}"
        elif step == "annotate":
            what = f"{what} {key}".strip()
        self._add(step, block, what, shown)

    def _transform(
        self, kind: str, inputs: list[Any], attributes: list[Any], outputs: list[str]
    ) -> None:
        if kind in _MOVING:
            self._original = []
        if kind == "DecomposeReduction":
            self._blocks[outputs[0]] = f"{self._block(inputs[0])} init"
        elif kind in _INLINE:
            block = self._block(inputs[0])
            self._original = [name for name in self._original if name != block]
            self._inlined.add(block)
            self._add("inline", block, "", _INLINE[kind])
        elif kind in ("ComputeAt", "ReverseComputeAt"):
            loop = self._loop(inputs[1])
            owner = self._owner(inputs[1])
            where = f"loop {loop.name}" + (f" of {owner}" if owner else "")
            self._add("compute at", self._block(inputs[0]), "", where)
        elif kind in ("CacheRead", "CacheWrite"):
            way = "read" if kind == "CacheRead" else "write"
            block = self._block(inputs[0])
            name = f"{block} {way} {attributes[0]}"
            self._blocks[outputs[0]] = name
            self._add("cache", name, "", str(self._value(attributes[1])))
        elif kind in _LOOP_KINDS or kind == "Bind":
            loop = self._loop(inputs[0])
            extent = "?" if loop.extent is None else str(loop.extent)
            step = _LOOP_KINDS.get(kind, "bind")
            if kind == "Bind":
                extent = f"{self._value(attributes[0])} ({extent})"
            self._add(step, self._owner(inputs[0]), f"loop {loop.name}", extent)
        elif kind in _OTHERS:
            of_loop = inputs[0] in self._loops
            block = self._owner(inputs[0]) if of_loop else self._block(inputs[0])
            what = f"loop {self._loop(inputs[0]).name}" if of_loop else ""
            shown = [str(self._value(a)) for a in attributes if not isinstance(a, list)]
            self._add(_OTHERS[kind], block, what, ", ".join(shown) or "yes")


def _location(decision: int) -> str:
    """Return where a sampled location is: -1 and -2 are no loops."""
    return {-1: "none (at the root)", -2: "none (inlined)"}.get(decision, f"number {decision + 1}")
