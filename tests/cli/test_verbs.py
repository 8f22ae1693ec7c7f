"""The command line: the main job from end to end, and one clear line for whatever is wrong."""

import json

import pytest

from autotune_nb.cli import main
from autotune_nb.session import TuningSession


@pytest.fixture(scope="module")
def tuned(tmp_path_factory):
    """A run of the MLP, made and tuned by the command line."""
    path = tmp_path_factory.mktemp("cli") / "mlp"
    code = main(
        ["tune", "mlp", "--trials", "24", "--batch-trials", "8", "--run", str(path), "--seed", "3"]
    )
    assert code == 0
    return path


def test_status_tells_what_others_rely_on(tuned, capsys):
    assert main(["status", str(tuned), "--json"]) == 0
    value = json.loads(capsys.readouterr().out)
    assert value["state"] == "finished"
    assert value["trials"] == 24
    assert value["failed_trials"] == 0
    assert value["partial"] is False
    assert value["used_s"] > 0
    assert value["trials_per_s"] > 0
    assert value["next_task"] is None
    total = sum(task["latency_s"] * task["weight"] for task in value["tasks"])
    assert value["estimated_total_latency_s"] == pytest.approx(total)
    keys = {"id", "name", "weight", "flops", "latency_s", "gflops", "trials", "failures", "state"}
    assert all(keys <= task.keys() for task in value["tasks"])


def test_output_that_is_no_terminal_is_plain_lines_and_a_table(tuned, capsys):
    assert main(["watch", str(tuned)]) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "Estimated total latency:" in out
    assert "24/24 trials" in out


def test_evaluate_checks_first_and_then_compares(tuned, capsys):
    assert main(["evaluate", str(tuned), "--json", "--baselines", "untuned,onnxruntime"]) == 0
    value = json.loads(capsys.readouterr().out)
    assert value["correct"] is True
    assert value["max_error"] <= value["tolerance"]
    assert {"mean", "median", "std"} <= value["latency_s"].keys()
    assert value["baselines"].keys() == {"untuned", "onnxruntime"}
    assert value["coverage"]["fallback"] == []
    assert value["estimated_total_latency_s"] > 0


def test_compile_and_report_write_what_they_say(tuned, tmp_path, capsys):
    assert main(["compile", str(tuned), "-o", str(tmp_path / "mlp.so")]) == 0
    assert main(["report", str(tuned), "-o", str(tmp_path / "mlp.md")]) == 0
    assert (tmp_path / "mlp.so").stat().st_size > 10_000
    assert "mlp" in (tmp_path / "mlp.md").read_text()
    assert f"Wrote {tmp_path / 'mlp.so'}" in capsys.readouterr().out


def test_profile_is_told_and_kept_for_reports(tuned, tmp_path, capsys):
    assert main(["profile", str(tuned), "--json"]) == 0
    value = json.loads(capsys.readouterr().out)
    assert value["latency_s"] > 0
    kept = json.loads((tuned / "artifacts" / "profile.json").read_text())
    assert kept == value
    assert main(["report", str(tuned), "-o", str(tmp_path / "mlp.html")]) == 0
    assert "Time of each function in one execution" in (tmp_path / "mlp.html").read_text()
    (tuned / "artifacts" / "profile.json").write_text('{"functions": [{"name": 3}]}')
    assert main(["report", str(tuned), "-o", str(tmp_path / "mlp.html")]) == 0
    assert "Time of each function in one execution" not in (tmp_path / "mlp.html").read_text()


def test_tasks_and_networks_list(tuned, capsys):
    assert main(["tasks", str(tuned), "--json"]) == 0
    tasks = json.loads(capsys.readouterr().out)
    assert [task["id"] for task in tasks] == list(range(len(tasks)))
    assert main(["tasks", str(tuned), "--listing", "0"]) == 0
    assert "T.prim_func" in capsys.readouterr().out
    assert main(["networks", "--json"]) == 0
    networks = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert networks["resnet-18"]["parameters"] == 11_689_512


def test_resume_goes_on_in_the_background(tuned, capsys):
    assert main(["resume", str(tuned), "--trials", "5000", "--detach"]) == 0
    assert main(["pause", str(tuned)]) == 0
    session = TuningSession.open(tuned)
    assert session.state.phase == "paused"
    assert main(["resume", str(tuned), "--trials", "5000", "--detach"]) == 0
    with pytest.raises(SystemExit) as stopped:
        main(["resume", str(tuned), "--trials", "many"])
    assert stopped.value.code == 2
    assert main(["stop", str(tuned)]) == 0
    assert not session.running
    assert session.state.phase == "stopped"


BAD = [
    (["tune", "resnet-19", "--trials", "5"], "did you mean resnet-18"),
    (["tune", "mlp"], "no budget given; pass --trials, --seconds or both"),
    (["tune", "mlp", "--trials", "0"], "a budget of 0 trials is not possible"),
    (["tune", "mlp", "--seconds", "-1"], "a budget of -1.0 seconds is not possible"),
    (["tune", "mlp", "--trials", "5", "--target", "lvlm"], "target lvlm: does not exist"),
    (["tune", "missing.onnx", "--trials", "5"], "missing.onnx: does not exist"),
    (["tune", "broken.onnx", "--trials", "5"], "broken.onnx: not an ONNX model"),
    (["tune", "mlp", "--trials", "5", "--shape", "x=1,3"], "--shape is for ONNX models"),
    (["tune", "mlp", "--trials", "5", "--seed-from", "nowhere"], "nowhere: no such run"),
    (["tune", "mlp", "--trials", "5", "--run", "taken"], "taken: is not empty"),
    (["tune", "mlp", "--trials", "5", "--run", "broken.onnx"], "broken.onnx: is a file"),
    (["status", "nowhere"], "nowhere: no such run"),
    (["status", "."], "not a run directory"),
    (["stop", "{run}"], "is not being tuned, there is nothing to stop"),
    (["pause", "{run}"], "is not being tuned, there is nothing to pause"),
    (["tune", "mlp", "--trials", "5", "--run", "{run}"], "holds a run already"),
    (["resume", "{run}", "--trials", "1"], "is spent already"),
    (["evaluate", "{run}", "--baselines", "tensorrt"], "tensorrt"),
    (["tasks", "{run}", "--listing", "77"], "task 77 does not exist"),
    (["report", "{run}", "-o", "x.pdf"], "cannot tell the format"),
]


@pytest.mark.parametrize(("arguments", "message"), BAD, ids=lambda value: str(value)[:60])
def test_bad_input_is_one_line_and_changes_nothing(
    tuned, arguments, message, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken.onnx").write_bytes(b"\x08\x07nonsense")
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "file").write_text("mine")
    before = listing(tmp_path) | listing(tuned)
    code = main([argument.format(run=tuned) for argument in arguments])
    said = capsys.readouterr().err
    assert code == 2
    assert message in said
    assert said.startswith(f"autotune-nb {arguments[0]}: ")
    assert said.count("\n") == 1
    assert listing(tmp_path) | listing(tuned) == before


def listing(folder):
    """Every file under a folder, with its size and time of change."""
    # who holds the lock is asked by opening it; a log is opened before a tuner is started
    return {
        path: (path.stat().st_size, path.stat().st_mtime_ns)
        for path in folder.rglob("*")
        if path.is_file() and path.name not in ("lock", "tuner.log")
    }


@pytest.mark.parametrize("arguments", [[], ["frobnicate"], ["tune"], ["status", "a", "b"]])
def test_bad_usage_is_one_line(arguments, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "--help" in said
