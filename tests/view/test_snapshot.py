"""Snapshots: static, complete, and without anything from the network or from outside."""

import re

from autotune_nb.view.snapshot import Snapshot


def test_snapshot_shows_table_plot_and_failures(told, run_of):
    html = Snapshot.take(run_of(told))._repr_html_()
    assert "toy on a CPU" in html
    assert "lost" in html  # the lock says that nobody tunes it
    assert "fused_conv2d_add_relu" in html
    assert "partial: 1 of 3 tasks have no result" in html
    assert "no room" in html
    assert "Plotly.newPlot" in html
    assert 3e6 < len(html) < 6e6  # plotly.js is inside


def test_snapshot_asks_nothing_of_the_network(told, run_of, tmp_path):
    path = Snapshot.take(run_of(told)).save(tmp_path / "page.html")
    html = path.read_text()
    # what plotly.js holds in its own text is not a request; tags that load something would be
    tags = re.findall(
        r"<(?:script|link|img|iframe)\b[^>]*(?:src|href)=", html[:3000] + html[-3000:]
    )
    assert tags == []
    assert html.startswith("<!doctype html>")


def test_snapshot_without_plot_is_small_and_escaped(told, run_of):
    evil = "<script>alert(1)</script>"
    html = Snapshot.take(run_of(told, device_name=evil), plot=False)._repr_html_()
    assert len(html) < 20_000
    assert "<script" not in html


def test_snapshot_of_a_state_and_as_text(told):
    shot = Snapshot.take(told.state, plot=False)
    assert "tuning" in shot._repr_html_()
    assert "Estimated total latency: 4.500 ms" in str(shot)
