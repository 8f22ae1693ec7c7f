"""Finds the best tuning record of each function of a lowered network, and applies it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import tvm
import tvm_ffi
from tvm.s_tir import Schedule
from tvm.s_tir import meta_schedule as ms

from autotune_nb.errors import CompileError
from autotune_nb.run import database
from autotune_nb.run.database import StoredRecord
from autotune_nb.tuning import tvm_setup
from autotune_nb.tuning.extract import normalized

# A record that no longer applies is no reason to go without: the next best are tried.
_ATTEMPTS = 5


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TunedFunction:
    """A function scheduled by a tuning record.

    Attributes
    ----------
    function
        The TensorIR function, scheduled.
    task
        Number of the record's workload in the database.
    digest
        Name of the record in the journal.
    latency_s
        What the record measured.
    """

    function: Any
    task: int
    digest: str
    latency_s: float


class History:
    """The records of a database, best first, ready to be looked up by function.

    Reading takes one pass over the text; only records that are applied are given to TVM.

    Parameters
    ----------
    workloads
        The lines of ``database_workload.json``.
    records
        The tuning records; failed ones are passed over.
    spare
        Workloads that no function need ask for, such as those of formulations not chosen.

    Raises
    ------
    CompileError
        If a workload line is not one.
    """

    def __init__(
        self,
        workloads: Sequence[str],
        records: Sequence[StoredRecord],
        spare: Collection[int] = (),
    ) -> None:
        self._workloads = [_workload(line, number) for number, line in enumerate(workloads)]
        self._by_hash: dict[int, list[int]] = {}
        for task, workload in enumerate(self._workloads):
            self._by_hash.setdefault(_hash(workload.mod), []).append(task)
        self._records: dict[int, list[StoredRecord]] = {}
        for record in records:
            if record.latency_s is not None and record.task < len(self._workloads):
                self._records.setdefault(record.task, []).append(record)
        for found in self._records.values():
            found.sort(key=lambda record: record.latency_s or 0.0)
        self._used: set[int] = set(spare)
        self.problems: list[str] = []

    @classmethod
    def read(cls, directory: Path, spare: Collection[int] = ()) -> History:
        """Read the database of a run, at any moment, also while it is being written."""
        records = database.read_records(directory)[0]
        return cls(database.read_workloads(directory), records, spare)

    def apply(
        self, name: str, function: Any, target: tvm.target.Target, *, skip: frozenset[str]
    ) -> TunedFunction | None:
        """Schedule a function by its best record.

        Parameters
        ----------
        name
            Of the function, for messages.
        function
            As `autotune_nb.network.lowering.lower` leaves it.
        target
            What the records were measured on.
        skip
            Digests of records to pass over.

        Returns
        -------
        TunedFunction or None
            None if the database has no record that applies; `problems` says so if it should have.
        """
        module = normalized(function)
        for task in self._by_hash.get(_hash(module), []):
            workload = self._workloads[task]
            if not tvm_ffi.structural_equal(workload.mod, module):
                continue
            self._used.add(task)
            candidates = [r for r in self._records.get(task, []) if r.digest not in skip]
            for record in candidates[:_ATTEMPTS]:
                try:
                    scheduled = _replay(workload, record, target)
                except Exception as error:  # a trace fails in any way TVM has
                    reason = (str(error).strip().splitlines() or [type(error).__name__])[-1]
                    self.problems.append(
                        f"{name}: record {record.digest} could not be applied ({reason})"
                    )
                    continue
                assert record.latency_s is not None
                return TunedFunction(
                    function=scheduled.with_attrs(
                        {**_attributes(function), "tirx.is_scheduled": True}
                    ),
                    task=task,
                    digest=record.digest,
                    latency_s=record.latency_s,
                )
        return None

    def unused(self) -> tuple[str, ...]:
        """Return what the database holds of workloads that no function asked for."""
        return tuple(
            f"workload {task}: its {len(records)} records fit no function of this network"
            for task, records in sorted(self._records.items())
            if task not in self._used
        )


def _replay(workload: Any, record: StoredRecord, target: tvm.target.Target) -> Any:
    # The part of the line that TVM reads is the second of its two.
    value = json.loads(record.line)[1]
    if "Tensorize" in record.line:
        tvm_setup.prepare(_configuration(target))
    trace = ms.database.TuningRecord.from_json(value, workload).trace
    schedule = Schedule(workload.mod, debug_mask="none", error_render_level="fast")
    trace.apply_to_schedule(schedule, remove_postproc=False)
    return schedule.mod["main"]


def _workload(line: str, number: int) -> Any:
    try:
        return ms.database.Workload.from_json(json.loads(line))
    except Exception as error:  # JSON's or any of TVM's
        raise CompileError(
            f"{database.WORKLOAD_FILE}: line {number + 1} is damaged or was written by another "
            "TVM; restore the file from a copy, or tune anew in another directory"
        ) from error


def _hash(module: tvm.ir.IRModule) -> int:
    return int(tvm_ffi.structural_hash(module))


def _attributes(function: Any) -> Mapping[str, Any]:
    return dict(function.attrs.items()) if function.attrs is not None else {}


def _configuration(target: tvm.target.Target) -> dict[str, Any]:
    configuration: dict[str, Any] = json.loads(str(target))
    return configuration
