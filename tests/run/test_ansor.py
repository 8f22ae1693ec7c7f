"""Logs of the former auto-scheduler become read-only runs."""

import gzip
import json

import pytest

from autotune_nb.errors import InputError, RunError
from autotune_nb.run import ansor, journal
from autotune_nb.run import events as ev
from autotune_nb.run.directory import RunWriter
from autotune_nb.run.distill import distill
from autotune_nb.run.imports import import_run

CONV = '["conv2d_layer", 1, 7, 7, 512, [1, 1]]'
DENSE = '["0123456789abcdef0123456789abcdef", 1, 1000]'
CPU = "llvm -keys=cpu -link-params=0 -mcpu=core-avx2"
HARDWARE = [8, 64, 64, 0, 0, 0, 0, 0]


def line(key=CONV, costs=(1e-3,), error=0, cost_s=0.5, when=1000, target=CPU, task=None):
    steps = [[], [["SP", 3, 0, 1, [1, 1, 1, 1], 1], ["AN", 3, 2, 6], ["PR", 1, 0, "unroll$512"]]]
    task = task or [key, target, HARDWARE, "", 2, []]
    return json.dumps({"i": [task, steps], "r": [list(costs), error, cost_s, when], "v": "v0.6"})


def log(tmp_path, *lines):
    path = tmp_path / "conv2d.json"
    path.write_text("\n".join(["# a comment", *lines]) + "\n")
    return path


def test_a_log_becomes_a_run(tmp_path):
    source = log(
        tmp_path,
        line(costs=(4e-3, 2e-3), when=1000),
        line(costs=(1e10,), error=6, when=1002),
        line(DENSE, costs=(1e-4,), when=1005),
        line(costs=(2e-3,), when=1010),
    )
    run = import_run(source, tmp_path / "run", weights=[2, 3], device_name="old CPU")
    state = run.poll()
    assert (state.trials, state.failed_trials, state.phase) == (4, 1, "finished")
    assert [t.best_latency_s for t in state.tasks] == [2e-3, 1e-4]
    assert state.estimated_total_latency_s == pytest.approx(4.3e-3)
    assert state.used_s == pytest.approx(10.5)
    assert state.measure_s == pytest.approx(2.0)
    assert [t.info.name for t in state.tasks] == [
        "conv2d_layer(1,7,7,512,[1,1])",
        "subgraph_01234567(1,1000)",
    ]
    error = state.tasks[0].errors[0]
    assert (error.kind, error.count) == ("build_timeout", 1)
    assert "building took too long" in error.first_message
    assert run.manifest.name == "conv2d"
    assert run.manifest.device_name == "old CPU"
    assert run.manifest.target == {
        "kind": "llvm",
        "keys": ["cpu"],
        "link-params": 0,
        "mcpu": "core-avx2",
        "num-cores": 8,
    }
    with pytest.raises(RunError, match="read-only"):
        RunWriter(run.path)


def test_trials_have_their_times_and_costs(tmp_path):
    source = log(tmp_path, line(costs=(4e-3, 2e-3), when=1000), line(DENSE, when=1003, cost_s=2.0))
    run = import_run(source, tmp_path / "run")
    events, _ = journal.read(run.journal)
    first, second = [e for e in events if isinstance(e, ev.TrialDone)]
    assert (first.latency_s, first.latencies_s) == (3e-3, (4e-3, 2e-3))
    assert (second.time, second.used_s, second.measure_s) == (1003.0, 3.5, 2.0)
    assert (first.round, second.round) == (1, 2)


def test_a_pause_is_no_tuning_time_and_clocks_may_jump(tmp_path):
    times = [1000, 1010, 90000, 90007, 50]
    source = log(tmp_path, *(line(when=when, cost_s=0) for when in times))
    assert import_run(source, tmp_path / "run").poll().used_s == 17.0


@pytest.mark.parametrize(
    ("error", "kind"),
    [(1, "build"), (2, "build"), (3, "build"), (4, "measure"), (5, "measure"),
     (6, "build_timeout"), (7, "measure_timeout"), (8, "lost"), (99, "lost")],
)  # fmt: skip
def test_every_error_has_its_kind(tmp_path, error, kind):
    source = log(tmp_path, line(costs=(1e10,), error=error))
    assert import_run(source, tmp_path / "run").poll().tasks[0].errors[0].kind == kind


def test_old_versions_and_compressed_logs(tmp_path):
    source = tmp_path / "old.json.gz"
    text = line(task=[CONV, "cuda -max_num_threads=1024"]) + "\n"
    source.write_bytes(gzip.compress(text.encode()))
    run = import_run(source, tmp_path / "run", name="mine")
    assert run.manifest.target == {"kind": "cuda", "max_num_threads": 1024}
    assert run.manifest.device == "cuda:0"
    assert run.manifest.name == "mine"


def test_a_target_may_be_json(tmp_path):
    source = log(tmp_path, line(target='{"kind": "llvm", "mcpu": "x"}'))
    assert import_run(source, tmp_path / "run").manifest.target == {"kind": "llvm", "mcpu": "x"}


BAD = [
    "not json",
    "[]",
    "{}",
    line()[:-10],
    line(costs=()),
    line(costs=(0.0,)),
    line(costs=(-1.0,)),
    line(costs=(float("nan"),)),
    line(costs=(float("inf"),)),
    line(cost_s=-1),
    line(when=float("nan")),
    line(costs=("1",)).replace('"1"', '"x"'),
    line(error=0).replace('], 0, 0.5', '], "0", 0.5'),
    line(key=7),
    line(task=[CONV]),
    "[" * 3000,
]  # fmt: skip


@pytest.mark.parametrize("bad", BAD, ids=range(len(BAD)))
def test_damaged_lines_are_counted_not_believed(tmp_path, bad):
    state = import_run(log(tmp_path, line(), bad), tmp_path / "run").poll()
    assert state.trials == 1
    assert "1 damaged lines" in state.message
    with pytest.raises(RunError, match="is no log of the auto-scheduler"):
        import_run(log(tmp_path, bad), tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_what_is_no_log_says_so(tmp_path):
    old = '{"input": ["llvm", "conv", []], "config": {"index": 1}, "result": [[0.1], 0, 1, 2]}'
    with pytest.raises(RunError, match="AutoTVM"):
        import_run(log(tmp_path, old), tmp_path / "run")
    with pytest.raises(RunError, match="no such file"):
        import_run(tmp_path / "missing", tmp_path / "run")
    broken = tmp_path / "broken.gz"
    broken.write_bytes(b"\x1f\x8b broken")
    with pytest.raises(RunError, match="cannot be read"):
        import_run(broken, tmp_path / "run")


def test_two_targets_in_one_log_are_refused(tmp_path):
    with pytest.raises(RunError, match="2 targets"):
        import_run(log(tmp_path, line(), line(target="cuda")), tmp_path / "run")


def test_weights_are_checked(tmp_path):
    with pytest.raises(InputError, match="1 workloads, 2 weights"):
        import_run(log(tmp_path, line()), tmp_path / "run", weights=[1, 1])


def test_a_log_that_is_too_large_is_refused(tmp_path, monkeypatch):
    from autotune_nb.run import derived

    monkeypatch.setattr(derived, "_MAX_LOG_BYTES", 1 << 20)
    bomb = tmp_path / "bomb.gz"
    bomb.write_bytes(gzip.compress(b"\n" * (64 << 20)))
    with pytest.raises(RunError, match="holds more than"):
        import_run(bomb, tmp_path / "run")


def test_a_log_can_be_distilled(tmp_path):
    source = log(tmp_path, line(costs=(3e-3,)), line(costs=(1e-3,)), line(DENSE))
    run = import_run(source, tmp_path / "run")
    small = distill(run.path, tmp_path / "small").poll()
    assert (small.trials, small.tasks[0].best_latency_s) == (2, 1e-3)


def test_the_log_itself_is_kept(tmp_path):
    run = import_run(log(tmp_path, line()), tmp_path / "run")
    assert (run.path / ansor.FILE).read_text() == line() + "\n"
