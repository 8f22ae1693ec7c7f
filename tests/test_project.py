"""The project itself: what is installed, who imports what, how modules look, what text may say."""

from __future__ import annotations

import ast
import importlib.metadata
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from packaging.markers import default_environment
from packaging.requirements import Requirement

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "autotune_nb"
MODULES = sorted(PACKAGE.rglob("*.py"))
PYTHONS = ("3.10", "3.11", "3.12", "3.13")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

# Distribution -> what it is imported as, where the two differ.
IMPORT_NAMES = {
    "apache-tvm": "tvm",
    "apache-tvm-ffi": "tvm_ffi",
    "cuda-bindings": "cuda",
    "ml-dtypes": "ml_dtypes",
    "xgboost-cpu": "xgboost",
}

# Layer -> the layers it may import besides itself: downwards only.
LAYERS = {
    "errors": set(),
    "run": {"errors"},
    "network": {"errors", "run"},
    "tuning": {"errors", "run", "network"},
    "deploy": {"errors", "run", "network", "tuning"},
    "doctor": {"errors", "tuning"},
    "view": {"errors", "run", "tuning"},
    "session": {"errors", "run", "network", "tuning", "deploy", "doctor", "view"},
    "cli": {"errors", "run", "network", "tuning", "deploy", "doctor", "view", "session"},
    # The public names, loaded lazily.
    "__init__": {"errors", "run", "network", "doctor", "view", "session"},
}
# Runs in a child process of doctor, where nothing is above it.
CHILDREN = {"autotune_nb/doctor/probe.py"}
TVM_LAYERS = {"network", "tuning", "deploy"}
VIEW_ONLY = {"plotly", "ipywidgets", "anywidget"}
# Decides and replays; needs no TVM, so that its tests and notebooks without TVM are fast.
PURE = {
    "autotune_nb/tuning/scheduler.py",
    "autotune_nb/tuning/cores.py",
    "autotune_nb/tuning/cross.py",
}
# Layers that may use nothing of tuning but what is pure.
NO_TUNER = ("doctor", "view")


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def layer(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(path: Path) -> Iterator[tuple[str, int]]:
    """Every module a file imports, wherever in the file, with its line."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node.lineno
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module, node.lineno
            for alias in node.names:
                yield f"{node.module}.{alias.name}", node.lineno


def our_layers(path: Path) -> Iterator[tuple[str, int]]:
    for name, line in imports(path):
        parts = name.split(".")
        if parts[0] == "autotune_nb" and len(parts) > 1 and parts[1] in LAYERS:
            yield parts[1], line


def normal(requirement: str) -> str:
    return str(Requirement(requirement))


# What is installed.


def test_conda_installs_what_pip_installs() -> None:
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    assert environment["name"] == PROJECT["name"]
    conda = [entry for entry in environment["dependencies"] if isinstance(entry, str)]
    assert f"python{PROJECT['requires-python']}" in conda
    (pip,) = [entry["pip"] for entry in environment["dependencies"] if isinstance(entry, dict)]
    options, packages = pip[:2], pip[2:]
    assert options == ["-c requirements.lock", "-e ."]
    wanted = PROJECT["dependencies"] + PROJECT["optional-dependencies"]["dev"]
    assert sorted(map(normal, packages)) == sorted(map(normal, wanted))


def locked() -> list[Requirement]:
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    return [Requirement(line) for line in lines if line and not line.lstrip().startswith("#")]


@pytest.mark.parametrize("python", PYTHONS)
def test_the_lock_pins_every_dependency_on_every_python(python: str) -> None:
    environment = default_environment() | {
        "python_version": python,
        "python_full_version": f"{python}.7",
    }
    pins: dict[str, str] = {}
    for requirement in locked():
        if requirement.marker is None or requirement.marker.evaluate(environment):
            (pin,) = requirement.specifier
            assert pin.operator == "=="
            assert requirement.name not in pins, "pinned twice"
            pins[requirement.name] = pin.version
    for text in PROJECT["dependencies"] + PROJECT["optional-dependencies"]["dev"]:
        wanted = Requirement(text)
        if wanted.marker is not None and not wanted.marker.evaluate(environment):
            continue
        assert wanted.specifier.contains(pins[wanted.name]), f"{wanted}: run `make lock`"


def test_the_installed_package_is_this_one() -> None:
    # The console script is what a user types; it appears only once the package is installed.
    try:
        entry_points = importlib.metadata.distribution("autotune-nb").entry_points
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("autotune-nb is not installed: the tests run from the checkout")
    assert {e.name: e.value for e in entry_points} == PROJECT["scripts"]


def test_continuous_integration_runs_the_readme_command() -> None:
    readme = (ROOT / "README.md").read_text()
    script = (ROOT / ".ci" / "run").read_text()
    assert "\nmake test\n" in readme
    # Last, so that pytest's summary is the last line printed.
    assert script.rstrip().endswith("\nexec make --no-print-directory test")
    assert os.access(ROOT / ".ci" / "run", os.X_OK)


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md"])
def test_links_lead_somewhere(name: str) -> None:
    targets = re.findall(r"\]\(([^)#]+)", (ROOT / name).read_text())
    assert targets
    local = [target for target in targets if "://" not in target]
    assert [target for target in local if not (ROOT / target).exists()] == []


def test_modules_named_in_the_guide_exist() -> None:
    guide = (ROOT / "CONTRIBUTING.md").read_text()
    named = re.findall(r"`((?:deploy|doctor|network|run|tuning|view)/(?:\w+\.py)?)`", guide)
    assert named
    assert [name for name in named if not (PACKAGE / name).exists()] == []


# Who imports what.


def test_imports_point_downwards() -> None:
    wrong = [
        f"{relative(path)}:{line}: {layer(path)} imports {imported}"
        for path in MODULES
        if relative(path) not in CHILDREN
        for imported, line in our_layers(path)
        if imported != layer(path) and imported not in LAYERS[layer(path)]
    ]
    assert wrong == []


def test_doctor_and_view_use_only_pure_parts_of_tuning() -> None:
    pure = {path.removesuffix(".py").replace("/", ".") for path in PURE}
    wrong = [
        f"{relative(path)}:{line}: imports {name}"
        for path in MODULES
        if layer(path) in NO_TUNER and relative(path) not in CHILDREN
        for name, line in imports(path)
        if name.startswith("autotune_nb.tuning.")
        and not any(name == module or name.startswith(f"{module}.") for module in pure)
    ]
    assert wrong == []


def test_every_module_belongs_to_a_layer() -> None:
    assert {layer(path) for path in MODULES} <= set(LAYERS)


def test_tvm_and_plotting_stay_in_their_layers() -> None:
    wrong = []
    for path in MODULES:
        for name, line in imports(path):
            top = name.partition(".")[0]
            if top in {"tvm", "tvm_ffi"}:
                allowed = layer(path) in TVM_LAYERS and relative(path) not in PURE
                allowed = allowed or relative(path) in CHILDREN
            elif top in VIEW_ONLY:
                allowed = layer(path) == "view"
            else:
                continue
            if not allowed:
                wrong.append(f"{relative(path)}:{line}: imports {name}")
    assert wrong == []


def test_nothing_imports_the_probe() -> None:
    wrong = [
        relative(path)
        for path in MODULES
        if any(name.startswith("autotune_nb.doctor.probe") for name, _ in imports(path))
    ]
    assert wrong == []


def test_every_imported_package_is_a_dependency() -> None:
    extras = [
        text for extra in ("gpu", "torch") for text in PROJECT["optional-dependencies"][extra]
    ]
    declared = {Requirement(text).name for text in PROJECT["dependencies"] + extras}
    known = {IMPORT_NAMES.get(name, name) for name in declared}
    # jupyterlab brings these; they are there whenever a notebook runs.
    known |= {"IPython", "ipykernel", "autotune_nb"}
    wrong = {
        f"{relative(path)}:{line}: {name}"
        for path in MODULES
        for name, line in imports(path)
        if (top := name.partition(".")[0]) not in known and top not in sys.stdlib_module_names
    }
    assert wrong == set()


# Start-up.


def python(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    return done.stdout.strip()


def test_importing_the_package_is_fast_and_light() -> None:
    heavy = ["tvm", "numpy", "pandas", "plotly", "ipywidgets", "onnx", "onnxruntime", "xgboost"]
    code = (
        "import sys, time; start = time.perf_counter(); import autotune_nb; "
        f"print(time.perf_counter() - start, [m for m in {heavy} if m in sys.modules])"
    )
    # The best of three: another program may have the cores.
    answers = [python(code).split(" ", 1) for _ in range(3)]
    assert min(float(seconds) for seconds, _ in answers) < 0.3
    assert {loaded for _, loaded in answers} == {"[]"}


def test_public_names_are_listed_and_unknown_ones_refused() -> None:
    import autotune_nb

    assert set(autotune_nb.__all__) <= set(dir(autotune_nb))
    assert set(autotune_nb._LAZY) == set(autotune_nb.__all__) - {"__version__"}
    with pytest.raises(AttributeError, match="no attribute 'networks'"):
        _ = autotune_nb.networks


@pytest.mark.parametrize("name", ["doctor", "errors", "list_networks", "network"])
def test_public_names_load(name: str) -> None:
    import autotune_nb

    assert getattr(autotune_nb, name) is getattr(autotune_nb, name)


@pytest.mark.parametrize("first", ["at.list_networks", "autotune_nb.network.network", ""])
def test_network_is_callable_whatever_was_imported_first(first: str) -> None:
    # The package autotune_nb.network and the function of that name share one attribute.
    code = (
        f"import autotune_nb as at, autotune_nb; import autotune_nb.network.network; {first}\n"
        "print(callable(at.network), callable(autotune_nb.network.network))"
        if first
        else "import autotune_nb as at; print(callable(at.network), callable(at.network.network))"
    )
    assert python(code) == "True True"


# How modules look.


@pytest.mark.parametrize("path", MODULES, ids=relative)
def test_a_module_says_what_it_is_for_and_is_short(path: Path) -> None:
    text = path.read_text()
    first = text.splitlines()[0] if text.strip() else ""
    assert first.startswith('"""'), "the first line says what the module is for"
    length = text.count("\n")
    assert length <= 350, "split it by purpose"


def test_no_module_is_called_utils() -> None:
    names = {path.stem for path in MODULES}
    assert names.isdisjoint({"utils", "util", "helpers", "misc", "common"})


def test_modules_parse_on_the_oldest_python() -> None:
    for path in [*MODULES, *(ROOT / "tests").rglob("*.py")]:
        ast.parse(path.read_text(), filename=str(path), feature_version=(3, 10))


# What committed text may say.

# A path that begins at the root of a machine, in quotes or after a space or an equals sign.
ABSOLUTE = re.compile(r"(?:^|[\s\"'`=(:])(/[A-Za-z][\w.-]*/[\w./-]+)")
SYSTEM = ("/usr/", "/bin/", "/dev/", "/proc/", "/sys/", "/etc/", "/path/to/", "/src/tvm/")
UNFINISHED = re.compile(r"\b(?:TODO|FIXME|XXX|HACK)\b")
# Where packages are downloaded from is each user's own configuration.
REGISTRY = re.compile(r"\bpypi\.|/simple\b|--(?:extra-)?index-url|--find-links|\bindex-url\s*=")
OUTSIDE = re.compile(r"(?<![\w/.])((?:\.\./)+[\w./-]*)")
TEXT = {".py", ".md", ".toml", ".yml", ".yaml", ".txt", ".lock", ".ipynb", ".cfg", ".sh", ""}


def committed() -> list[Path]:
    """Text files of the repository: what git tracks or would add, or all of them without git."""
    try:
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        ).stdout.split("\0")
        paths = [ROOT / name for name in listed if name]
    except (OSError, subprocess.CalledProcessError):
        top = [ROOT / name for name in (".ci", "autotune_nb", "benchmarks", "notebooks", "tests")]
        paths = [path for directory in top for path in directory.rglob("*")]
        paths += [path for path in ROOT.iterdir() if path.is_file()]
    return [p for p in paths if p.is_file() and p.suffix in TEXT and p != Path(__file__)]


def lines() -> Iterator[tuple[Path, str, str]]:
    for path in committed():
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
            yield path, f"{relative(path)}:{number}", line


def test_no_path_of_one_machine() -> None:
    wrong = [
        f"{where}: {found}"
        for _, where, line in lines()
        for found in ABSOLUTE.findall(line)
        if not found.startswith(SYSTEM)
    ]
    assert wrong == []


def test_no_path_out_of_the_repository() -> None:
    wrong = []
    for path, where, line in lines():
        for found in OUTSIDE.findall(line):
            if not (path.parent / found).resolve().is_relative_to(ROOT):
                wrong.append(f"{where}: {found}")
    assert wrong == []


def test_no_registry_is_named() -> None:
    wrong = [
        where
        for path, where, line in lines()
        if REGISTRY.search(line) and "--no-emit-index-url" not in line
    ]
    assert wrong == []


def test_nothing_is_left_unfinished() -> None:
    wrong = [f"{where}: {line.strip()}" for _, where, line in lines() if UNFINISHED.search(line)]
    assert wrong == []


def test_notebooks_are_committed_without_outputs() -> None:
    import nbformat

    wrong = []
    for path in committed():
        if path.suffix == ".ipynb":
            for index, cell in enumerate(nbformat.read(path, as_version=4).cells):
                if cell.cell_type == "code" and (cell.outputs or cell.execution_count):
                    wrong.append(f"{relative(path)}: cell {index}")
    assert wrong == []
