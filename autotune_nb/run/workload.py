"""What a workload of TVM's database computes, read from its JSON without TVM."""

from __future__ import annotations

import base64
import dataclasses
import json
from collections.abc import Iterator
from typing import Any

from autotune_nb.errors import RunError

# Nodes that count as one operation, as in TVM's estimate of a function's FLOPs: arithmetic, no
# comparisons, no loads, no calls.
_ARITHMETIC = frozenset({"Add", "Sub", "Mul", "Div", "Mod", "FloorDiv", "FloorMod", "Min", "Max"})
# Blocks that only move or prepare what another block computes.
_HELPERS = ("root", "pad_temp")
_UNREADABLE = (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError)
_MAX_DEPTH = 400  # of nested expressions; deeper ones are no workload of a real network


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One line of ``database_workload.json``; the attributes are those of `TaskInfo`."""

    workload_hash: str
    operators: tuple[str, ...]
    shapes: tuple[str, ...]
    flops: float

    @property
    def name(self) -> str:
        """A name made of the operators, since the database keeps none."""
        return "_".join(self.operators) or "copy"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A block of a workload before any schedule, and its loops with their extents, outermost first.

    A loop is called what it iterates over in the block, or by its position; an extent that is no
    constant is None.
    """

    name: str
    loops: tuple[tuple[str, int | None], ...]


def describe(line: str) -> Workload:
    """Read one line of ``database_workload.json``.

    Raises
    ------
    RunError
        If it is none that this version can read.
    """
    try:
        workload_hash, graph = _graph(line)
        function = graph.first("tirx.PrimFunc")
        return Workload(
            workload_hash=str(workload_hash),
            operators=tuple(graph.operators()),
            shapes=tuple(graph.buffer(p) for p in graph.items(function["params"])),
            flops=graph.operations(function["body"], 0),
        )
    except _UNREADABLE as error:
        raise _unreadable(error) from error


def blocks(line: str) -> tuple[Block, ...]:
    """Return the blocks of one line of ``database_workload.json``, in their order.

    Raises
    ------
    RunError
        If it is none that this version can read.
    """
    try:
        _, graph = _graph(line)
        return tuple(graph.blocks(graph.first("tirx.PrimFunc")["body"]))
    except _UNREADABLE as error:
        raise _unreadable(error) from error


def _graph(line: str) -> tuple[Any, _Graph]:
    workload_hash, encoded = json.loads(line)
    data = base64.b64decode(encoded, validate=True)
    # a byte string of tvm-ffi: its length in eight bytes, then the text
    size = int.from_bytes(data[:8], "little")
    return workload_hash, _Graph(json.loads(data[8 : 8 + size])["nodes"])


def _unreadable(error: Exception) -> RunError:
    return RunError(
        f"a workload of the database cannot be read ({type(error).__name__}: {error}); is it one "
        "of TVM 0.27?"
    )


class _Graph:
    """The nodes of a module as TVM serialises them: a list in which they name each other."""

    def __init__(self, nodes: list[dict[str, Any]]) -> None:
        self._nodes = nodes
        self._known: dict[int, float] = {}

    def first(self, kind: str) -> dict[str, Any]:
        """Return the fields of the first node of a kind."""
        for node in self._nodes:
            if node["type"] == kind:
                fields: dict[str, Any] = node["data"]
                return fields
        raise ValueError(f"it has no {kind}")

    def items(self, index: int) -> list[int]:
        """Return the elements of an array node."""
        return list(self._nodes[index]["data"])

    def _value(self, index: int) -> Any:
        """Return the value of a number or string node; None of any other."""
        node = self._nodes[index]
        if node["type"] in ("int", "ffi.String"):
            return node["data"]
        if node["type"] == "ir.IntImm":
            return self._nodes[node["data"]["value"]]["data"]
        return None

    def buffer(self, index: int) -> str:
        """Return a buffer variable as ``dtype[d0, d1, …]``."""
        buffer = self._nodes[self._nodes[index]["data"]["ty"]]["data"]
        dims = [self._value(dim) for dim in self.items(buffer["shape"])]
        shown = ", ".join("?" if dim is None else str(dim) for dim in dims)
        return f"{self._nodes[buffer['dtype']]['data']['dtype']}[{shown}]"

    def operators(self) -> list[str]:
        """Return what the blocks are called, without those that only help."""
        names = [
            str(self._value(node["data"]["name_hint"]))
            for node in self._nodes
            if node["type"] == "s_tir.SBlock"
        ]
        return [name.removeprefix("T_") for name in names if name not in _HELPERS]

    def blocks(self, body: int) -> Iterator[Block]:
        """Yield the blocks below a statement, the root left out."""
        waiting: list[tuple[int, tuple[int | None, ...]]] = [(body, ())]
        while waiting:
            if len(waiting) > len(self._nodes):
                raise ValueError("its statements lead in a circle")
            index, extents = waiting.pop()
            kind, data = self._nodes[index]["type"].rpartition(".")[2], self._nodes[index]["data"]
            if kind == "For":
                extent = self._value(data["extent"])
                extents = (*extents, extent if isinstance(extent, int) else None)
                waiting.append((data["body"], extents))
            elif kind == "SeqStmt":
                waiting += [(part, extents) for part in reversed(self.items(data["seq"]))]
            elif kind == "SBlockRealize":
                block = self._nodes[data["block"]]["data"]
                name = str(self._value(block["name_hint"]))
                if name == "root":
                    waiting.append((block["body"], ()))
                else:
                    yield Block(
                        name=name,
                        loops=tuple(
                            zip(self._iterators(block, len(extents)), extents, strict=True)
                        ),
                    )

    def _iterators(self, block: dict[str, Any], loops: int) -> list[str]:
        """Return what the loops of a block are called, outermost first."""
        names = []
        for index in self.items(block["iter_vars"]):
            variable = self._nodes[self._nodes[index]["data"]["var"]]["data"]
            names.append(str(self._value(variable["name"])).removeprefix("v_"))
        if len(names) == loops == len(set(names)):
            return names
        return [str(number) for number in range(1, loops + 1)]

    def operations(self, index: int, depth: int) -> float:
        """Return the operations of a statement or expression and all below it."""
        if depth > _MAX_DEPTH:
            raise ValueError("it is nested too deeply")
        if index not in self._known:
            self._known[index] = self._operations(self._nodes[index], depth + 1)
        return self._known[index]

    def _operations(self, node: dict[str, Any], depth: int) -> float:
        # without the namespace, which is not the same in all versions
        kind, data = node["type"].rpartition(".")[2], node.get("data") or {}

        def of(*names: str) -> float:
            return sum(self.operations(data[name], depth) for name in names if data[name])

        def most_of(*names: str) -> float:
            return max((self.operations(data[n], depth) for n in names if data[n]), default=0.0)

        if kind in _ARITHMETIC:
            return of("a", "b") + 1
        if kind in ("And", "Or"):
            return of("a", "b")
        if kind == "For":
            extent = self._value(data["extent"])
            return of("body") * (extent if isinstance(extent, int) else 1)
        if kind == "SeqStmt":
            return sum(self.operations(i, depth) for i in self.items(data["seq"]))
        if kind == "Call":
            return sum(self.operations(i, depth) for i in self.items(data["args"]))
        if kind == "SBlockRealize":
            # like TVM, which passes over how a reduction begins
            return self.operations(self._nodes[data["block"]]["data"]["body"], depth)
        if kind == "IfThenElse":
            return of("condition") + most_of("then_case", "else_case")
        if kind == "Select":
            return of("condition") + most_of("true_value", "false_value")
        return of("value") if kind in ("BufferStore", "Cast") else 0.0
