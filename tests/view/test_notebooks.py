"""The notebooks run from top to bottom with a tiny budget, and are stored without outputs."""

import json
from pathlib import Path

import nbclient
import nbformat
import pytest

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
PATHS = sorted(NOTEBOOKS.glob("*.ipynb"))
# Small enough for a test: what each notebook's cell of parameters becomes.
TINY = {
    "01_quickstart.ipynb": {"NETWORK": "mlp", "LAYOUT": None, "IMAGE_SIZE": None, "TRIALS": 48},
}


def parameters(notebook):
    cells = [c for c in notebook.cells if "parameters" in c.metadata.get("tags", ())]
    assert len(cells) == 1, "a notebook has one cell tagged 'parameters'"
    return cells[0]


def with_parameters(notebook, values):
    """Return the notebook with other values in its cell of parameters."""
    cell = parameters(notebook)
    names = {line.split("=")[0].strip() for line in cell.source.splitlines() if "=" in line}
    assert set(values) <= names
    cell.source += "\n" + "\n".join(f"{name} = {value!r}" for name, value in values.items())
    return notebook


def test_there_are_notebooks():
    assert [path.name for path in PATHS] == sorted(TINY)


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_notebooks_are_stored_clean(path):
    raw = json.loads(path.read_text())
    for cell in raw["cells"]:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == []
            assert cell["execution_count"] is None
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    parameters(notebook)
    assert "assert " in notebook.cells[-1].source


@pytest.mark.slow
@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_notebooks_run(path, tmp_path):
    notebook = nbformat.read(path, as_version=4)
    with_parameters(notebook, {**TINY[path.name], "RUN": str(tmp_path / "run")})
    client = nbclient.NotebookClient(
        notebook, timeout=280, kernel_name="python3", resources={"metadata": {"path": tmp_path}}
    )
    client.execute()
    shown = [
        output
        for cell in notebook.cells
        if cell.cell_type == "code"
        for output in cell.outputs
        if output.output_type in ("display_data", "execute_result")
    ]
    assert any("application/vnd.jupyter.widget-view+json" in output.data for output in shown)
    assert any("application/vnd.plotly.v1+json" in output.data for output in shown)
    html = "".join(output.data.get("text/html", "") for output in shown)
    assert "Estimated total latency" in html  # what an exported notebook shows without widgets
    assert "Plotly.newPlot" in html
    assert (tmp_path / "run" / "artifacts" / "report.html").stat().st_size < 6e6
