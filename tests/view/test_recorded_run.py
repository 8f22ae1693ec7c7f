"""A recorded H200 run goes the whole way: import, every plot, comparison, distilling, report."""

import dataclasses
import inspect
from pathlib import Path

import pytest

from autotune_nb.run.directory import RunDirectory
from autotune_nb.run.distill import distill
from autotune_nb.run.imports import import_run
from autotune_nb.view import plots
from autotune_nb.view.compare import compare
from autotune_nb.view.report import write_report
from autotune_nb.view.schedule import schedule

DATA = Path(__file__).parent.parent / "data" / "h200-resnet18"
WEIGHTS = [1, 2, 1, 1, 1, 1, 2, 2, 1, 2, 1, 1, 2, 1, 1, 1, 1, 1, 1]
OF_ONE_RUN = (
    "allocation",
    "convergence",
    "estimated_against_measured",
    "failures",
    "forecast",
    "latency_share",
    "task_convergence",
    "timeline",
    "trial_costs",
    "trial_results",
    "trials_per_task",
)
# These take several runs, a machine or a profile.
OTHERS = {"compare", "roofline", "operator_profile"}


@pytest.fixture(scope="module")
def h200(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "h200"
    return import_run(DATA, path, weights=WEIGHTS, device_name="NVIDIA H200")


@pytest.fixture
def cpu(h200, story, run_of):
    """Return a run of the same network on a CPU, ten times as slow, as another TVM hashed it."""
    story.tasks = tuple(
        dataclasses.replace(t, name=f"fused_{t.name}", workload_hash=f"9{t.workload_hash}")
        for t in h200.manifest.tasks
    )
    story.start()
    for task in h200.poll().tasks:
        story.round(task.info.id, [None, 20 * task.best_latency_s, 10 * task.best_latency_s])
    return RunDirectory(run_of(story.stop(), "cpu"))


def test_every_plot_is_listed_here():
    made = {
        name
        for name in plots.__all__
        if not name.endswith("_data") and inspect.isfunction(getattr(plots, name))
    }
    assert made == {*OF_ONE_RUN, *OTHERS}
    assert {f"{name}_data" for name in made} <= set(plots.__all__)


@pytest.mark.parametrize("name", OF_ONE_RUN)
def test_every_plot_draws_the_run(h200, name):
    fig = getattr(plots, name)(h200)
    assert fig.layout.title.text
    if name != "timeline":  # a database keeps no times
        assert fig.data


def test_the_roofline_of_an_h200(h200):
    table = plots.roofline_data(h200, peak_gflops=60_000, bandwidth_gbs=4_800)
    assert len(table) == 19
    assert table["attained (%)"].between(0, 100).all()
    hover = [
        text for trace in plots.roofline(h200, 60_000, 4_800).data[1:] for text in trace.hovertext
    ]
    assert sum("tiles" in text and "blockIdx.x" in text for text in hover) >= 13


def test_against_a_cpu(h200, cpu):
    found = compare([h200, cpu])
    table = found.table
    assert len(table) == 19
    assert table["cpu / h200"].tolist() == pytest.approx([10.0] * 19)
    runs = found.runs.set_index("run")
    assert runs["ratio"]["cpu"] == pytest.approx(10.0)
    assert runs["trials to same"]["cpu"] == 57
    assert runs["trials to same"]["h200"] < 1776
    assert len(plots.compare([h200, cpu]).data) >= 4


def test_distilled_it_reports_the_same_total(h200, tmp_path):
    small = distill(h200.path, tmp_path / "small", k=3)
    for name in OF_ONE_RUN:
        assert getattr(plots, name)(small).layout.title.text
    pages = [write_report(run, tmp_path / f"{run.path.name}.html") for run in (h200, small)]
    for page in pages:
        text = page.read_text()
        assert "0.4452" in text
        assert page.stat().st_size < 6_000_000
    assert schedule(small, 0).decisions == schedule(h200, 0).decisions
