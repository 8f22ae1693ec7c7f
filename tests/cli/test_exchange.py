"""The verbs import, export, distill, merge and compare, as a person types them."""

import gzip
import json
from pathlib import Path

import pytest

from autotune_nb.cli import main
from autotune_nb.run import database
from autotune_nb.run.directory import RunDirectory

DATA = Path(__file__).parent.parent / "data" / "h200-resnet18"
WEIGHTS = "1,2,1,1,1,1,2,2,1,2,1,1,2,1,1,1,1,1,1"


@pytest.fixture(scope="module")
def h200(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "h200"
    given = ["--weights", WEIGHTS, "--name", "resnet-18", "--device-name", "NVIDIA H200"]
    assert main(["import", str(DATA), "--run", str(path), *given]) == 0
    return path


def test_import(h200):
    run = RunDirectory(h200)
    assert run.manifest.name == "resnet-18"
    assert run.manifest.device_name == "NVIDIA H200"
    assert run.poll().estimated_total_latency_s == pytest.approx(0.445e-3, abs=5e-7)


def test_distill_keeps_the_best(h200, tmp_path, capsys):
    assert main(["distill", str(h200), "--run", str(tmp_path / "small"), "-k", "2"]) == 0
    assert "19 tasks, 38 trials, read-only" in capsys.readouterr().out
    small = RunDirectory(tmp_path / "small")
    before = RunDirectory(h200).poll()
    assert small.poll().estimated_total_latency_s == before.estimated_total_latency_s
    kept = {record.digest for record in database.read_records(small.path)[0]}
    assert {task.best_record for task in before.tasks} <= kept
    assert database.read_workloads(small.path) == database.read_workloads(h200)


def test_export_and_back(h200, tmp_path, capsys):
    packed = tmp_path / "h200.tar.gz"
    assert main(["export", str(h200), "-o", str(packed)]) == 0
    assert main(["import", str(packed), "--run", str(tmp_path / "back")]) == 0
    assert "1776 trials, read-only" in capsys.readouterr().out
    assert RunDirectory(tmp_path / "back").poll() == RunDirectory(h200).poll()


def test_export_of_the_database_is_what_was_imported(h200, tmp_path):
    assert main(["export", str(h200), "--database", "-o", str(tmp_path / "db")]) == 0
    for name in (database.WORKLOAD_FILE, database.RECORD_FILE):
        original = gzip.decompress((DATA / f"{name}.gz").read_bytes())
        assert (tmp_path / "db" / name).read_bytes() == original


def test_merge_with_a_part_of_itself(h200, tmp_path, capsys):
    assert main(["distill", str(h200), "--run", str(tmp_path / "small")]) == 0
    sources = [str(h200), str(tmp_path / "small")]
    assert main(["merge", *sources, "--run", str(tmp_path / "both")]) == 0
    assert "1776 trials, read-only" in capsys.readouterr().out
    merged = RunDirectory(tmp_path / "both").poll()
    assert merged.failed_trials == RunDirectory(h200).poll().failed_trials


def test_compare(h200, tmp_path, capsys):
    assert main(["distill", str(h200), "--run", str(tmp_path / "small")]) == 0
    capsys.readouterr()
    assert main(["compare", str(h200), str(tmp_path / "small")]) == 0
    text = capsys.readouterr().out
    assert "small / h200" in text
    assert "0.4452" in text
    assert main(["compare", str(h200), str(tmp_path / "small"), "--json"]) == 0
    value = json.loads(capsys.readouterr().out)
    assert [run["trials"] for run in value["runs"]] == [1776, 19]
    assert [run["ratio"] for run in value["runs"]] == [1.0, 1.0]
    assert len(value["tasks"]) == 19
    latency = ["--latency", "0.5", "--json"]
    assert main(["compare", str(h200), str(tmp_path / "small"), *latency]) == 0
    assert json.loads(capsys.readouterr().out)["reached_s"] == 5e-4


def test_import_of_a_log(tmp_path, capsys):
    line = {"i": [['["matmul", 8]', "llvm"], [[], []]], "r": [[1e-3], 0, 0.1, 5], "v": "v0.6"}
    log = tmp_path / "matmul.json"
    log.write_text(json.dumps(line) + "\n")
    assert main(["import", str(log), "--run", str(tmp_path / "run")]) == 0
    assert "matmul, 1 tasks, 1 trials, read-only" in capsys.readouterr().out


BAD = {
    "no run": ["export", "{missing}", "-o", "{new}.tar.gz"],
    "no source": ["import", "{missing}", "--run", "{new}"],
    "no database": ["import", "{empty}", "--run", "{new}"],
    "no log": ["import", "{text}", "--run", "{new}"],
    "a run": ["import", "{h200}", "--run", "{new}"],
    "taken": ["import", "{data}", "--run", "{h200}"],
    "not empty": ["distill", "{h200}", "--run", "{full}"],
    "too few weights": ["import", "{data}", "--run", "{new}", "--weights", "1,2"],
    "no k": ["distill", "{h200}", "--run", "{new}", "-k", "0"],
    "one to merge": ["merge", "{h200}", "--run", "{new}"],
    "one to compare": ["compare", "{h200}"],
    "no latency": ["compare", "{h200}", "{h200}", "--latency", "-1"],
    "exists": ["export", "{h200}", "-o", "{text}.tar.gz"],
    "no folder": ["export", "{h200}", "-o", "{missing}/run.tar.gz"],
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_line_and_changes_nothing(h200, tmp_path, capsys, name):
    places = {n: tmp_path / n for n in ("missing", "new", "empty", "text", "full")}
    places["empty"].mkdir()
    places["text"].write_text("some text")
    (tmp_path / "text.tar.gz").write_text("mine")
    places["full"].mkdir()
    (places["full"] / "mine").write_text("mine")
    known = {**places, "h200": h200, "data": DATA}
    before = sorted(p.relative_to(tmp_path).as_posix() for p in tmp_path.rglob("*"))
    assert main([part.format(**known) for part in BAD[name]]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"autotune-nb {BAD[name][0]}: ")
    assert captured.err.count("\n") == 1
    after = sorted(p.relative_to(tmp_path).as_posix() for p in tmp_path.rglob("*"))
    assert after == before
    assert (tmp_path / "text.tar.gz").read_text() == "mine"


@pytest.mark.parametrize(
    "arguments",
    [["import", "x"], ["export", "x"], ["distill", "x"], ["merge", "--run", "x"], ["compare"],
     ["import", "x", "--run", "y", "--weights", "1,a"]],
)  # fmt: skip
def test_bad_usage(arguments, capsys):
    with pytest.raises(SystemExit) as end:
        main(arguments)
    assert end.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1
