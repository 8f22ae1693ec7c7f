"""What is not trusted: runs made elsewhere, and whatever is read from a run."""

import ast
import dataclasses
import json
from pathlib import Path

import pytest

from autotune_nb.errors import RunError
from autotune_nb.run.directory import RunDirectory
from autotune_nb.session import TuningSession
from autotune_nb.tuning import launch

pytestmark = [pytest.mark.faults, pytest.mark.timeout(60)]
PACKAGE = Path(launch.__file__).parents[1]
UNSAFE_MODULES = {"pickle", "cPickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}
UNSAFE_CALLS = {"eval", "exec", "compile", "__import__"}


def foreign(run, **changes):
    manifest = run.directory.manifest
    dataclasses.replace(manifest, **changes).write(run.path)


def other_tvm(run):
    foreign(run, versions=run.directory.manifest.versions | {"apache-tvm": "0.99.0"})


def other_processor(run):
    foreign(run, device_name="Another Processor 9000")


def other_network(run):
    path = run.path / "database_workload.json"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[1], lines[0], *lines[2:]]) + "\n")


def missing_workload(run):
    path = run.path / "database_workload.json"
    path.write_text(path.read_text().splitlines()[0] + "\n")


def garbled_workload(run):
    path = run.path / "database_workload.json"
    path.write_text(path.read_text().replace('["1",', "[[", 1))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (other_tvm, r"made with apache-tvm 0\.99\.0, this environment has .*tune it there"),
        (other_processor, r"measured on Another Processor 9000, this machine has .*tune it there"),
        (other_network, r"database_workload\.json: holds other workloads than the tasks"),
        (missing_workload, r"database_workload\.json: holds other workloads than the tasks"),
        (garbled_workload, r"database_workload\.json: holds other workloads than the tasks"),
    ],
)
def test_a_run_from_elsewhere_is_not_tuned_on_but_can_be_read(make, change, message):
    run = make()
    tuned = run.tune(60)
    change(run)
    with pytest.raises(RunError, match=message):
        launch.start(run.path)
    session = TuningSession.open(run.path)
    assert session.state == tuned
    assert len(session.trial_table()) == 60
    assert len(session.task_table()) == 3
    assert not session.running


def test_an_untouched_run_is_tuned_on(make, monkeypatch):
    run = make()
    launch.check_origin(run.directory)  # raises if it is refused


def test_nothing_that_is_read_can_run_code():
    wrong = []
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            elif isinstance(node, ast.Call):
                wrong += [f"{path.name}:{node.lineno}" for _ in _unsafe(node)]
            wrong += [
                f"{path.name}:{node.lineno}: {name}"
                for name in names
                if name.partition(".")[0] in UNSAFE_MODULES
            ]
    assert wrong == []


def _unsafe(call):
    """Yield what is unsafe about a call."""
    if isinstance(call.func, ast.Name) and call.func.id in UNSAFE_CALLS:
        yield call.func.id
    if not isinstance(call.func, ast.Attribute):
        return
    owner = call.func.value.id if isinstance(call.func.value, ast.Name) else ""
    if (owner, call.func.attr) in {("yaml", "load"), ("torch", "load")}:
        yield call.func.attr
    if (owner, call.func.attr) == ("np", "load"):
        allowed = [k.value for k in call.keywords if k.arg == "allow_pickle"]
        if not (allowed and isinstance(allowed[0], ast.Constant) and allowed[0].value is False):
            yield call.func.attr


@pytest.mark.parametrize(
    "code", ["eval(x)", "torch.load(f)", "np.load(f)", "np.load(f, allow_pickle=True)"]
)
def test_the_test_above_sees_what_is_unsafe(code):
    (call,) = [n for n in ast.walk(ast.parse(code)) if isinstance(n, ast.Call)]
    assert list(_unsafe(call))


def test_what_a_run_holds_is_never_executed(make, tmp_path):
    # each text is one that some reader could be tempted to evaluate, import or format
    run = make()
    run.tune(30)
    proof = tmp_path / "executed"
    evil = f"__import__('pathlib').Path({str(proof)!r}).touch()"
    foreign(run, name=evil, network={"source": {"name": evil, "path": f"$(touch {proof})"}})
    with (run.path / "requests.jsonl").open("a") as requests:
        requests.write(json.dumps({"id": evil, "wish": evil, "time": 1}) + "\n")
        requests.write(f"cos\nsystem\n(S'touch {proof}'\ntR.\n")  # a pickle
    session = TuningSession.open(run.path)
    assert session.state.trials == 30
    repr(session)
    session.task_table()
    session.trial_table()
    session.report(tmp_path / "report.md")
    session.report(tmp_path / "report.html")
    assert run.tune(60).trials == 60
    assert RunDirectory(run.path).poll().trials == 60
    assert not proof.exists()
