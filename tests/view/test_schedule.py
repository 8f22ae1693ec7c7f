"""Schedules made readable: decisions of recorded traces, and what the best ones differ in."""

import json
from pathlib import Path

import pytest

from autotune_nb.errors import InputError, RunError
from autotune_nb.run import database
from autotune_nb.run.directory import RunDirectory
from autotune_nb.run.imports import import_database
from autotune_nb.run.workload import Block, blocks
from autotune_nb.view.schedule import best_records, schedule, summary
from autotune_nb.view.trace import decisions

DATA = Path(__file__).parent.parent / "data" / "h200-resnet18"


@pytest.fixture(scope="module")
def h200(tmp_path_factory):
    return import_database(DATA, tmp_path_factory.mktemp("runs") / "h200")


def line(*instructions, chosen=(), times=(1e-3,), task=0):
    return database.record_line(task, [list(instructions), list(chosen)], times, {}, [])


def shown(text, known=()):
    return [(d.step, d.block, d.what, d.value) for d in decisions(text, known)]


# A convolution on a CPU as MetaSchedule's own rules tile it, shortened.
CPU = [
    ["GetSBlock", [], ["pad_temp", "main"], ["b0"]],
    ["GetSBlock", [], ["conv", "main"], ["b1"]],
    ["GetSBlock", [], ["root", "main"], ["b2"]],
    ["ComputeInline", ["b0"], [], []],
    ["Annotate", ["b1", '"SRS"'], ["meta_schedule.tiling_structure"], []],
    ["GetLoops", ["b1"], [], ["l3", "l4"]],
    ["SamplePerfectTile", ["l3"], [2, 64], ["v5", "v6"]],
    ["Split", ["l3", "v5", "v6"], [True, False], ["l7", "l8"]],
    ["Split", ["l4", "None", 8], [True, False], ["l9", "l10"]],
    ["Reorder", ["l7", "l9", "l8", "l10"], [], []],
    ["GetConsumers", ["b1"], [], ["b11"]],
    ["ReverseComputeAt", ["b11", "l7"], [1, -1], []],
    ["Annotate", ["b2", 32], ["meta_schedule.parallel"], []],
    ["SampleCategorical", [], [[0, 16, 64], [0.3, 0.3, 0.4]], ["v12"]],
    ["Annotate", ["b2", "v12"], ["meta_schedule.unroll_explicit"], []],
    ["EnterPostproc", [], [], []],
    ["GetSBlock", [], ["root", "main"], ["b13"]],
    ["GetChildBlocks", ["b13"], [], ["b14", "b15"]],
    ["GetLoops", ["b14"], [], ["l16", "l17", "l18", "l19"]],
    ["Fuse", ["l16", "l17"], [1], ["l20"]],
    ["Parallel", ["l20"], [], []],
    ["GetLoops", ["b15"], [], ["l21", "l22"]],
    ["Vectorize", ["l22"], [], []],
    ["DecomposeReduction", ["b1", "l18"], [], ["b23"]],
]
CHOSEN = [[6, [7, 4]], [13, 2]]
KNOWN = (
    Block(name="pad_temp", loops=(("i0", 30),)),
    Block(name="conv", loops=(("y", 28), ("x", 64))),
    Block(name="relu", loops=(("ax0", 28),)),
)


def test_a_cpu_trace():
    assert shown(line(*CPU, chosen=CHOSEN), KNOWN) == [
        ("inline", "pad_temp", "", "into its consumers"),
        ("tiling", "conv", "", "SRS"),
        ("tile", "conv", "loop y (28)", "7 × 4"),
        ("tile", "conv", "loop x (64)", "8 × 8"),
        ("compute at", "consumer of conv", "", "loop y.1 of conv"),
        ("unroll", "root", "", "up to 64 steps"),
        ("parallel", "conv", "loop y.1+x.1", "56"),
        ("vectorise", "consumer of conv", "loop 2", "?"),
    ]


def test_without_the_workload_loops_have_numbers():
    found = shown(line(*CPU, chosen=CHOSEN))
    assert ("tile", "conv", "loop 1 (28)", "7 × 4") in found
    assert ("tile", "conv", "loop 2", "? × 8") in found
    assert ("parallel", "conv", "loop 1.1+2.1", "?") in found


def test_child_blocks_before_anything_moved_are_those_of_the_workload():
    found = shown(
        line(
            ["GetSBlock", [], ["root", "main"], ["b0"]],
            ["GetChildBlocks", ["b0"], [], ["b1", "b2", "b3"]],
            ["GetLoops", ["b2"], [], ["l4", "l5"]],
            ["Split", ["l5", "None", 16], [True, False], ["l6", "l7"]],
            ["Vectorize", ["l7"], [], []],
            ["Unroll", ["l6"], [], []],
        ),
        KNOWN,
    )
    assert found == [
        ("tile", "conv", "loop x (64)", "4 × 16"),
        ("vectorise", "conv", "loop x.2", "16"),
        ("unroll loop", "conv", "loop x.1", "4"),
    ]


def test_other_instructions():
    found = shown(
        line(
            ["GetBlock", [], ["dense", "main"], ["b0"]],
            ["GetLoops", ["b0"], [], ["l1", "l2"]],
            ["RFactor", ["l1"], [0], ["b3"]],
            ["Tensorize", ["l2"], ['"dot_4x4"', True], []],
            ["Annotate", ["b0", '"<b>"'], ["custom"], []],
            ["Annotate", ["b0", "v9"], ["meta_schedule.cooperative_fetch"], []],
            ["SampleComputeLocation", ["b0"], [], ["l4"]],
            ["ComputeAt", ["b0", "l4"], [True, -1], []],
            ["CacheRead", ["b0", []], [1, "shared"], ["b5"]],
            ["Bind", ["l1"], ["threadIdx.x"], []],
            ["SomethingNew", ["b0"], [], ["b6"]],
            chosen=[[6, -1]],
        )
    )
    assert found == [
        ("factor reduction", "dense", "loop 1", "0"),
        ("tensorise", "dense", "loop 2", "dot_4x4, True"),
        ("annotate", "dense", "custom", "<b>"),
        ("fetch", "dense", "", "vectors of v9"),
        ("compute at", "dense", "", "loop none (at the root)"),
        ("cache", "dense read 1", "", "shared"),
        ("bind", "dense", "loop 1", "threadIdx.x (?)"),
    ]


def test_every_record_of_a_real_run_can_be_read(h200):
    records, _ = database.read_records(h200.path)
    good = [record for record in records if record.latency_s is not None]
    assert all(decisions(record.line) for record in good[::7])


def test_blocks_of_a_real_workload(h200):
    found = blocks(database.read_workloads(h200.path)[0])
    assert [block.name for block in found] == ["pad_temp", "conv2d_nhwc", "T_add", "compute"]
    assert found[1].loops == (
        ("nn", 1),
        ("yy", 7),
        ("xx", 7),
        ("ff", 512),
        ("ry", 3),
        ("rx", 3),
        ("rc", 512),
    )


def test_the_best_schedules_of_a_task(h200):
    found = schedule(h200, 0)
    assert found.latencies_s[0] == h200.poll().tasks[0].best_latency_s
    assert found.records[0] == h200.poll().tasks[0].best_record
    assert list(found.latencies_s) == sorted(found.latencies_s)
    best = found.best
    assert list(best.columns) == ["step", "block", "what", "choice"]
    tiles = best[best["step"] == "tile"].set_index("what")["choice"]
    assert tiles["loop ff (512)"] == "128 × 1 × 2 × 2 × 1"
    binds = best[best["step"] == "bind"]["choice"].tolist()
    assert binds[:3] == ["blockIdx.x (128)", "vthread.x (1)", "threadIdx.x (98)"]


def test_the_differences_are_only_what_differs(h200):
    found = schedule(h200, 0)
    apart = found.differences
    one, two, three = apart.columns[3:]
    assert [one, two] == ["1: 0.05092 ms", "2: 0.05093 ms"]
    row = apart[(apart["step"] == "unroll")].iloc[0]
    assert row[[one, two, three]].tolist() == [
        "up to 1024 steps",
        "up to 512 steps",
        "up to 256 steps",
    ]
    assert "loop nn (1)" not in apart["what"].tolist()
    same = found.table.merge(apart, how="outer", indicator=True)
    assert (same[same["_merge"] == "left_only"].iloc[:, 3:6].nunique(axis=1) == 1).all()


def test_it_is_shown_as_text_and_html(h200):
    found = schedule(h200, 0)
    text = found.to_text(100)
    assert max(map(len, text.splitlines())) <= 100
    assert "Where the best 3 differ" in text
    assert "128 × 1 × 2 × 2 × 1" in found._repr_html_()
    assert schedule(h200, 0, count=1)._repr_html_().count("<table>") == 1


def test_summary_of_a_schedule():
    found = decisions(line(*CPU, chosen=CHOSEN), KNOWN)
    assert summary(found) == "tiles 7×4, 8×8; parallel 56; unroll up to 64 steps"


def test_of_equal_records_the_first_and_of_equal_schedules_one(run_of, told):
    path = run_of(told)
    unroll = [["Unroll", ["l0"], [], []]]
    for text in (
        line(*CPU, chosen=[[6, [7, 4]], [13, 1]], times=(2e-3,)),
        line(*CPU, chosen=CHOSEN, times=(1e-3,)),
        line(*CPU, chosen=CHOSEN, times=(1.5e-3,)),  # the same, measured again
        line(*unroll, times=(1e-3,)),
        line(*unroll, times=()),
    ):
        database.append_record(path, text)
    found = schedule(path, 0, count=3)
    assert found.latencies_s == (1e-3, 1e-3, 2e-3)
    assert found.decisions[0][0].step == "inline"
    assert [r.latency_s for r in best_records(RunDirectory(path), 0)] == [1e-3]


def test_of_a_schedule_measured_again_the_better_result_counts(run_of, told):
    path = run_of(told)
    for seconds in (2e-3, 1e-3, 3e-3):
        database.append_record(path, line(*CPU, chosen=CHOSEN, times=(seconds,)))
    database.append_record(path, line(*CPU, chosen=CHOSEN, times=(1e-4,), task=10))
    assert schedule(path, 0).latencies_s == (1e-3,)


def test_what_cannot_be_shown_is_told(h200, told, run_of):
    with pytest.raises(InputError, match="task 19 does not exist; ids go from 0 to 18"):
        schedule(h200, 19)
    with pytest.raises(InputError, match="pass a number from 1"):
        schedule(h200, 0, count=0)
    with pytest.raises(InputError, match="a state holds no schedules"):
        schedule(h200.poll(), 0)
    with pytest.raises(InputError, match="no tuning record yet"):
        schedule(run_of(told), 2)


@pytest.mark.parametrize(
    "text",
    ["", "[]", "[0, []]", "[0, [[]]]", "[0, [[[], [1]]]]", "[0, [[[[1]], []]]]", "[" * 9999,
     json.dumps([0, [[[["Split", [], [], []]], []]]]),
     json.dumps([0, [[[["SampleCategorical", [], [[1]], ["v0"]]], [[0, 7]]]]])],
)  # fmt: skip
def test_what_is_no_trace_is_told(text):
    with pytest.raises(RunError, match="trace cannot be read"):
        decisions(text)


def test_names_cannot_inject_markup(run_of, told):
    path = run_of(told)
    evil = [["GetSBlock", [], ["<img src=x>\x1b[31m", "main"], ["b0"]],
            ["ComputeInline", ["b0"], [], []]]  # fmt: skip
    database.append_record(path, line(*evil))
    found = schedule(path, 0)
    assert "<img" not in found._repr_html_()
    assert "\x1b" not in str(found)


def test_a_workload_in_circles_is_refused():
    import base64

    nodes = [
        {"type": "tirx.PrimFunc", "data": {"body": 1}},
        {"type": "tirx.SeqStmt", "data": {"seq": 2}},
        {"type": "ffi.Array", "data": [1, 1]},
    ]
    text = json.dumps({"nodes": nodes}).encode()
    data = len(text).to_bytes(8, "little") + text
    with pytest.raises(RunError, match="cannot be read"):
        blocks(json.dumps(["1", base64.b64encode(data).decode()]))
