"""Reports say what is so, in words first; they open offline and nothing can be injected."""

import csv
import dataclasses
import json
import re
from pathlib import Path

import pytest

from autotune_nb.errors import InputError
from autotune_nb.run.imports import import_database
from autotune_nb.view.report import write_report
from autotune_nb.view.status import status
from autotune_nb.view.summary import commands, summarise

DATA = Path(__file__).parent.parent / "data" / "h200-resnet18"
EVIL = "<script>alert(1)</script>"
EVALUATION = {
    "correct": True,
    "max_error": 3.2e-7,
    "tolerance": 2e-5,
    "latency_s": {"mean": 4e-3, "median": 4e-3, "std": 1e-4},
    "baselines": {
        "untuned": {"mean": 0.4, "median": 0.4, "std": 0.0},
        "onnxruntime": {"mean": 2e-3, "median": 2e-3, "std": 0.0},
    },
}


def words(told, evaluation=None, **manifest):
    state = told.state
    made = summarise(told.manifest(**manifest), state, status(state), evaluation=evaluation)
    return made, " ".join([made.subject, *made.facts]), " ".join(made.advice)


def test_summary_of_a_partial_run(told):
    _, facts, advice = words(told)
    assert "toy, tuned for a CPU." in facts
    assert "5 trials in 9 s of tuning, 1 of them failed" in facts
    assert "partial, for 1 of 3 tasks have no result" in facts
    assert "was not evaluated" in facts
    assert "has not converged" in facts
    assert "resume RUN --trials 1005" in advice
    assert "autotune-nb evaluate RUN" in advice


def test_summary_with_an_evaluation(told):
    _, facts, advice = words(told, EVALUATION)
    assert "correct: the largest error is 3.2e-07, 2e-05 is allowed" in facts
    assert "Measured: 4.000 ms" in facts
    assert "100 times as fast as TVM without schedules" in facts
    assert "2.00 times as slow as ONNX Runtime" in facts
    assert "evaluate" not in advice


@pytest.mark.parametrize(("error", "shown"), [(0.5, "5.0e-01"), (None, "not a number")])
def test_a_wrong_network_gets_no_speed(told, error, shown):
    evaluation = {**EVALUATION, "correct": False, "max_error": error}
    _, facts, advice = words(told, evaluation)
    assert f"NOT CORRECT: its largest error is {shown}" in facts
    assert "Measured" not in facts
    assert "times as fast" not in facts
    assert "Do not use" in advice


def test_summary_before_any_trial(story):
    _, facts, _ = words(story)
    assert "No task has a result yet" in facts


def test_summary_of_a_run_that_fails_a_lot(story):
    story.start().round(0, [None, None, 1e-3])
    _, _, advice = words(story)
    assert "More than 30 % of the trials failed" in advice


def test_an_imported_run_is_not_to_be_tuned(told):
    _, _, advice = words(told, read_only=True)
    assert "was imported and cannot be tuned on" in advice
    assert "resume" not in advice


def test_a_distilled_run_says_what_it_is(told):
    network = {"derived": "distilled from toy: the best 1 of each task, 3 of 5 trials"}
    _, _, advice = words(told, read_only=True, network=network)
    assert "The run was distilled from toy: the best 1 of each task" in advice
    assert "imported" not in advice


def test_commands_make_the_run_again(told):
    source = {"kind": "zoo", "name": "resnet-18", "batch_size": 2, "layout": "NHWC"}
    lines = commands(told.manifest(network={"source": source}), told.state)
    assert lines[0] == (
        "autotune-nb tune resnet-18 --target llvm --layout NHWC --batch-size 2 --seed 0 "
        "--trials 20 --run RUN"
    )
    odd = {"kind": "onnx", "path": "a b;rm -rf.onnx"}
    assert "'a b;rm -rf.onnx'" in commands(told.manifest(network={"source": odd}), told.state)[0]
    assert commands(told.manifest(), told.state) == []


def test_html_report_is_whole_small_and_self_contained(told, run_of, tmp_path):
    path = write_report(run_of(told), tmp_path / "r.html", evaluation=EVALUATION)
    html = path.read_text()
    assert len(html) < 6e6
    for part in ("What to do next", "fused_conv2d_add_relu", "no room", "Environment", "znver3"):
        assert part in html
    assert html.count("Plotly.newPlot(") >= 8
    assert html.count("plotly.js v") == 1
    assert not re.search(r"<(?:script|link|img|iframe)\b[^>]*\b(?:src|href)=", html[-50_000:])


def test_reports_cannot_be_injected_into(story, run_of, tmp_path):
    story.tasks = (dataclasses.replace(story.tasks[0], name=EVIL),)
    story.start().round(0, [1e-3]).trial(0, None, error=EVIL, kind=EVIL)
    network = {"inputs": [EVIL], "source": {"name": EVIL}}
    run = run_of(story, name="x", device_name=EVIL, network=network)
    manifest = json.loads((run / "manifest.json").read_text())
    (run / "manifest.json").write_text(json.dumps({**manifest, "name": EVIL}))
    for suffix in ("html", "md"):
        text = write_report(run, tmp_path / f"r.{suffix}").read_text()
        if suffix == "md":  # in a block of code it is only text
            text = "\n".join(x for x in text.splitlines() if not x.startswith("    "))
            text = text.replace("\\<", "")
        assert "<script>alert" not in text


def test_markdown_report(told, run_of, tmp_path):
    text = write_report(run_of(told), tmp_path / "r.md").read_text()
    assert text.startswith("# toy, tuned for a CPU.\n")
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert len(rows) == 5
    assert len({len(row) for row in rows}) == 1
    assert "fused\\_conv2d\\_add\\_relu" in rows[2]


def test_csv_report_holds_tasks_and_trials(told, run_of, tmp_path):
    path = write_report(run_of(told), tmp_path / "r.csv")
    with path.open() as file:
        tasks = list(csv.DictReader(file))
    assert [row["trials"] for row in tasks] == ["3", "2", "0"]
    with (tmp_path / "r.trials.csv").open() as file:
        trials = list(csv.DictReader(file))
    assert [row["result"] for row in trials] == ["ok", "ok", "build", "ok", "ok"]
    assert float(trials[1]["latency (ms)"]) == 2.0


@pytest.mark.parametrize("evil", ["=1+1", "@x", "+1", "-1"])
def test_csv_holds_no_formulas(story, run_of, tmp_path, evil):
    story.tasks = (dataclasses.replace(story.tasks[0], name=evil),)
    path = write_report(run_of(story), tmp_path / "r.csv")
    with path.open() as file:
        assert next(csv.DictReader(file))["name"] == f"'{evil}"


def test_stored_evaluation_is_found(told, run_of, tmp_path):
    run = run_of(told)
    (run / "artifacts").mkdir()
    (run / "artifacts" / "evaluation.json").write_text(json.dumps(EVALUATION))
    assert "Its outputs are correct" in write_report(run, tmp_path / "r.md").read_text()
    (run / "artifacts" / "evaluation.json").write_text("{")
    assert "was not evaluated" in write_report(run, tmp_path / "r.md").read_text()


def test_reports_of_empty_and_damaged_runs(story, told, run_of, tmp_path):
    assert write_report(run_of(story), tmp_path / "r.html").stat().st_size > 1e6
    run = run_of(told, name="damaged")
    with (run / "journal.jsonl").open("ab") as file:
        file.write(b"broken\n")
    for suffix in ("html", "md", "csv"):
        write_report(run, tmp_path / f"d.{suffix}")
    assert "damaged lines passed over" in (tmp_path / "d.html").read_text()


def test_what_cannot_be_written(told, run_of, tmp_path):
    with pytest.raises(InputError, match=r"\.html, \.md, \.csv"):
        write_report(run_of(told), tmp_path / "r.pdf")
    with pytest.raises(InputError, match="folder does not exist"):
        write_report(run_of(told), tmp_path / "none" / "r.html")
    with pytest.raises(InputError, match="a state cannot be reported"):
        write_report(told.state, tmp_path / "r.html")


def test_report_of_the_recorded_h200_run(tmp_path):
    run = import_database(DATA, tmp_path / "run")
    html = write_report(run, tmp_path / "r.html").read_text()
    assert len(html) < 6e6
    assert "1776 trials" in html
    assert "cannot be tuned on" in html
