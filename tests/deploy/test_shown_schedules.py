"""What is shown of a schedule is what TVM makes of its record."""

import json
import re
from pathlib import Path

import pytest
from tvm.s_tir import Schedule
from tvm.s_tir import meta_schedule as ms

from autotune_nb.run import database
from autotune_nb.run.imports import import_database
from autotune_nb.run.workload import blocks
from autotune_nb.view.schedule import schedule
from autotune_nb.view.trace import decisions

DATA = Path(__file__).parent.parent / "data" / "h200-resnet18"
WORDS = {"parallel": "T.parallel", "vectorise": "T.vectorized"}


def script(workload, line):
    """Return the scheduled function that TVM makes of a record."""
    stored = ms.database.Workload.from_json(json.loads(workload))
    trace = ms.database.TuningRecord.from_json(json.loads(line)[1], stored).trace
    scheduled = Schedule(stored.mod, debug_mask="none")
    trace.apply_to_schedule(scheduled, remove_postproc=False)
    return re.sub(r"T\.int64\((\d+)\)", r"\1", scheduled.mod.script())


def patterns(found):
    """Return what must be in the script, for all decisions whose extent is known."""
    for decision in found:
        if decision.step in WORDS and decision.value != "?":
            yield re.escape(WORDS[decision.step]) + rf"\((?:0, )?{decision.value}\b"
        elif decision.step == "bind" and "?" not in decision.value:
            axis, extent = re.fullmatch(r"(\S+) \((\d+)\)", decision.value).groups()
            yield rf'T\.thread_binding\({extent}, thread="{axis}"'


@pytest.mark.parametrize("task", [0, 3, 13, 18])
def test_schedules_of_a_gpu(task, tmp_path):
    run = import_database(DATA, tmp_path / "run")
    workload = database.read_workloads(run.path)[task]
    known = {record.digest: record.line for record in database.read_records(run.path)[0]}
    found = schedule(run, task, count=2)
    for digest, chosen in zip(found.records, found.decisions, strict=True):
        text = script(workload, known[digest])
        wanted = list(patterns(chosen))
        assert len(wanted) >= 2
        assert [pattern for pattern in wanted if not re.search(pattern, text)] == []


def test_fallback_schedules_of_a_cpu(workloads, records):
    checked = 0
    for line in records:
        workload = workloads[json.loads(line)[0]]
        text = script(workload, line)
        for pattern in patterns(decisions(line, blocks(workload))):
            assert re.search(pattern, text), pattern
            checked += 1
    assert checked >= 4
