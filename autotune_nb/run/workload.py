"""What a workload of TVM's database computes, read from its JSON without TVM."""

from __future__ import annotations

import base64
import dataclasses
import json
from typing import Any

from autotune_nb.errors import RunError

# Nodes that count as one operation, as in TVM's estimate of a function's FLOPs: arithmetic, no
# comparisons, no loads, no calls.
_ARITHMETIC = frozenset({"Add", "Sub", "Mul", "Div", "Mod", "FloorDiv", "FloorMod", "Min", "Max"})
# Blocks that only move or prepare what another block computes.
_HELPERS = ("root", "pad_temp")
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


def describe(line: str) -> Workload:
    """Read one line of ``database_workload.json``.

    Raises
    ------
    RunError
        If it is none that this version can read.
    """
    try:
        workload_hash, encoded = json.loads(line)
        data = base64.b64decode(encoded, validate=True)
        # a byte string of tvm-ffi: its length in eight bytes, then the text
        size = int.from_bytes(data[:8], "little")
        graph = _Graph(json.loads(data[8 : 8 + size])["nodes"])
        function = graph.first("tirx.PrimFunc")
        return Workload(
            workload_hash=str(workload_hash),
            operators=tuple(graph.operators()),
            shapes=tuple(graph.buffer(p) for p in graph.items(function["params"])),
            flops=graph.operations(function["body"], 0),
        )
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError) as error:
        raise RunError(
            f"a workload of the database cannot be read ({type(error).__name__}: {error}); is it "
            "one of TVM 0.27?"
        ) from error


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
