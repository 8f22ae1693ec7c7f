"""The live view in JupyterLab and headless Chromium, with a real tuner behind it.

Screenshots are left in build/screenshots.
"""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import nbformat
import pytest

from autotune_nb.run import requests
from autotune_nb.run.directory import RunDirectory

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(600)]

SCREENSHOTS = Path(__file__).parents[2] / "build" / "screenshots"
CHROMIUM_FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
MAKE = """import autotune_nb as at
session = at.TuningSession.create("run", at.network("mlp", batch_size=16), target="llvm")
session.view()"""
TUNE = "session.tune(trials=100_000)"
OPEN = """import autotune_nb as at
session = at.TuningSession.open("run")
session.view()"""


@pytest.fixture
def lab(tmp_path, request):
    """Start JupyterLab in an empty folder, with settings of its own, and return its address."""
    notebook = nbformat.v4.new_notebook()
    notebook.cells = [nbformat.v4.new_code_cell(source) for source in (MAKE, TUNE, OPEN)]
    notebook.metadata["kernelspec"] = {
        "name": "python3",
        "display_name": "Python 3",
        "language": "python",
    }
    folder = tmp_path / "lab"
    folder.mkdir()
    nbformat.write(notebook, folder / "live.ipynb")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [
        sys.executable,
        "-m",
        "jupyterlab",
        "--no-browser",
        "--allow-root",
        "--ServerApp.token=",
        "--ServerApp.password=",
        f"--ServerApp.port={port}",
        "--ServerApp.port_retries=0",
        f"--ServerApp.root_dir={folder}",
        "--LabApp.news_url=",
        "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
    ]
    places = {
        name: str(tmp_path / name.lower())
        for name in (
            "IPYTHONDIR",
            "JUPYTERLAB_SETTINGS_DIR",
            "JUPYTERLAB_WORKSPACES_DIR",
            "JUPYTER_CONFIG_DIR",
            "JUPYTER_DATA_DIR",
            "JUPYTER_RUNTIME_DIR",
        )
    }
    settings = Path(places["JUPYTERLAB_SETTINGS_DIR"], "@jupyterlab", "apputils-extension")
    settings.mkdir(parents=True)
    theme = getattr(request, "param", "JupyterLab Light")
    (settings / "themes.jupyterlab-settings").write_text(json.dumps({"theme": theme}))
    no_news = json.dumps({"fetchNews": "false", "checkForUpdates": False})
    (settings / "notification.jupyterlab-settings").write_text(no_news)
    with (tmp_path / "lab.log").open("wb") as log:
        process = subprocess.Popen(
            command, env={**os.environ, **places}, stdout=log, stderr=subprocess.STDOUT
        )
    address = f"http://127.0.0.1:{port}"
    try:
        for _ in range(300):
            try:
                urllib.request.urlopen(f"{address}/api/status", timeout=5).close()
                break
            except OSError:
                assert process.poll() is None, (tmp_path / "lab.log").read_text()
                time.sleep(0.2)
        yield address, folder
    finally:
        if (folder / "run" / "manifest.json").exists():
            requests.append(folder / "run" / "requests.jsonl", "stop")
            wait(lambda: not RunDirectory(folder / "run").holder().alive, 60)
        process.terminate()
        process.wait(30)


@pytest.fixture
def page(lab):
    """Open the notebook; after the test no script may have failed, and nothing left the machine."""
    from playwright.sync_api import sync_playwright

    address, _ = lab
    outside, errors = [], []
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=CHROMIUM_FLAGS)
        tab = browser.new_page(viewport={"width": 1280, "height": 1500})
        tab.on("request", lambda r: outside.append(r.url) if not at_home(r.url, address) else None)
        tab.on("pageerror", lambda error: errors.append(str(error)))
        tab.goto(f"{address}/lab/tree/live.ipynb", timeout=60_000)
        ready(tab)
        yield tab
        browser.close()
    assert outside == []
    assert errors == []


def at_home(url, address):
    return url.startswith((address, address.replace("http", "ws", 1), "data:", "blob:"))


def ready(page):
    page.wait_for_selector(".jp-Notebook .jp-Cell", timeout=60_000)
    page.wait_for_selector("[data-status='idle']", timeout=60_000)
    page.wait_for_timeout(3000)  # keys pressed earlier are lost


def wait(condition, seconds=30.0):
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.1)
    return True


def until(page, condition, seconds=30.0):
    """Wait without keeping the browser's events from being handled."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            shot(page, "failed")
            pytest.fail(f"not within {seconds} s; the page: {page.inner_text('.jp-Notebook')}")
        page.wait_for_timeout(100)


def run_cell(page, number):
    page.locator(".jp-Cell").nth(number).locator(".jp-InputPrompt").click()
    page.wait_for_timeout(300)
    page.keyboard.press("Control+Enter")


def view(page, cell):
    return page.locator(".jp-Cell").nth(cell).locator(".jp-OutputArea").first


def spent(page, cell):
    """Return how many trials a view shows."""
    found = re.search(r"(\d+)(?: of \d+)? trials ·", view(page, cell).inner_text())
    return int(found.group(1)) if found else -1


def shot(page, name):
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=SCREENSHOTS / f"{name}.png")


def test_a_tuning_is_watched_and_steered_in_a_browser(lab, page):
    _, folder = lab
    run = folder / "run"
    run_cell(page, 0)
    until(page, lambda: spent(page, 0) == 0, 120)
    page.wait_for_selector(".js-plotly-plot", timeout=60_000)
    shot(page, "1_new")

    run_cell(page, 1)
    until(page, lambda: spent(page, 0) >= 20, 120)
    assert "tuning" in view(page, 0).inner_text()
    page.wait_for_selector(".scatterlayer .trace path.js-line", timeout=60_000)
    shot(page, "2_tuning")

    # the slider asks for another budget, and the tuner takes it
    before = RunDirectory(run).poll().budget.trials
    handle = view(page, 0).locator(".noUi-handle").first
    handle.focus()
    for _ in range(5):
        handle.press("ArrowLeft")
    until(page, lambda: RunDirectory(run).poll().budget.trials != before)
    until(page, lambda: "in effect after" in view(page, 0).inner_text())
    until(page, lambda: "expected" in view(page, 0).inner_text())

    # pause and resume; each button twice, as impatient people do
    pause = view(page, 0).get_by_role("button", name="Pause")
    pause.click()
    pause.click()
    until(page, lambda: "paused" in view(page, 0).inner_text())
    until(page, lambda: RunDirectory(run).poll().phase == "paused")
    assert [r.wish for r in requests.read(run / "requests.jsonl")[0]].count("pause") == 1
    shot(page, "3_paused")
    trials = RunDirectory(run).poll().trials
    view(page, 0).get_by_role("button", name="Resume").click()
    until(page, lambda: RunDirectory(run).poll().trials > trials)

    # a reloaded page finds the view again, and it goes on
    page.keyboard.press("Control+s")
    page.wait_for_timeout(2000)
    page.reload()
    ready(page)
    until(page, lambda: spent(page, 0) >= trials, 60)
    seen = spent(page, 0)
    until(page, lambda: spent(page, 0) > seen, 60)
    shot(page, "4_reloaded")

    # so does a new kernel: the tuner has not noticed
    page.locator(".jp-Cell").nth(2).locator(".jp-InputPrompt").click()
    page.keyboard.press("Escape")
    page.keyboard.press("0")
    page.keyboard.press("0")
    page.locator(".jp-Dialog .jp-mod-accept").click()
    page.wait_for_timeout(3000)
    assert RunDirectory(run).holder().alive
    run_cell(page, 2)
    until(page, lambda: spent(page, 2) > seen, 90)
    view(page, 2).get_by_role("button", name="Stop").click()
    until(page, lambda: "stopped" in view(page, 2).inner_text())
    shot(page, "5_new_kernel")
    until(page, lambda: not RunDirectory(run).holder().alive)


@pytest.mark.parametrize("lab", ["JupyterLab Dark"], indirect=True)
def test_the_view_can_be_read_in_the_dark_and_at_900_pixels(lab, page):
    page.set_viewport_size({"width": 900, "height": 1400})
    run_cell(page, 0)
    until(page, lambda: spent(page, 0) == 0, 120)
    page.wait_for_selector(".js-plotly-plot .main-svg", timeout=60_000)
    page.wait_for_timeout(1000)
    shot(page, "6_narrow_and_dark")
    assert page.evaluate("document.body.dataset.jpThemeLight") == "false"
    box = view(page, 0).bounding_box()
    right = box["x"] + box["width"] + 1
    for name in ("Start", "Pause", "Resume", "Stop", "Tune only selected", "Tune all"):
        button = view(page, 0).get_by_role("button", name=name)
        inside = button.bounding_box()
        assert inside["x"] + inside["width"] <= right
        assert button.evaluate("e => e.scrollWidth <= e.clientWidth + 1"), f"{name} is cut"
    plot = view(page, 0).locator(".js-plotly-plot .main-svg").first.bounding_box()
    assert plot["x"] + plot["width"] <= right
    for label in ("Trial budget", "Sort by", "Tasks", "Against", "Table after trial"):
        assert view(page, 0).get_by_text(label, exact=True).count() >= 1
    # text and ground of the table differ enough: 4.5 is what WCAG asks of body text
    colours = (
        view(page, 0)
        .locator(".atnb td.name")
        .first.evaluate(
            "e => { let g = e; const none = c => c === 'rgba(0, 0, 0, 0)' || c === 'transparent';"
            " while (none(getComputedStyle(g).backgroundColor)) g = g.parentElement;"
            " return [getComputedStyle(e).color, getComputedStyle(g).backgroundColor]; }"
        )
    )
    high, low = sorted((luminance(c) for c in colours), reverse=True)
    assert (high + 0.05) / (low + 0.05) >= 4.5


def luminance(colour):
    parts = [float(v) for v in re.findall(r"[\d.]+", colour)]
    # rgba(...) counts alpha; of what shines through nothing is known, so it must be opaque enough
    assert len(parts) == 3 or parts[3] >= 0.8
    linear = [
        v / 255 / 12.92 if v / 255 <= 0.03928 else ((v / 255 + 0.055) / 1.055) ** 2.4
        for v in parts[:3]
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
