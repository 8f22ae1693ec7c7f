"""Where candidates are measured, on the command line; and rpc-up."""

import signal
import subprocess
import sys

import psutil
import pytest

from autotune_nb.cli import main
from autotune_nb.run.measure import rpc
from autotune_nb.tuning import rpc_ask


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--key", "box"], "pass --tracker"),
        (["--tracker", "host"], "pass --key"),
        (["--tracker", "host", "--key", "box", "--devices", "cpu:0"], "exclude each other"),
        (["--devices", "cuda:x"], "is no device"),
        (["--devices", "cuda:0"], "does not run code for this target"),
    ],
)
def test_what_does_not_fit_together_is_refused(given, message, tmp_path, capsys):
    run = tmp_path / "run"
    assert main(["tune", "mlp", "--trials", "1", "--run", str(run), *given]) == 2
    assert message in capsys.readouterr().err
    assert not run.exists()


def test_rpc_up_serves_until_it_is_told_to_end():
    command = [sys.executable, "-c", "import sys; from autotune_nb.cli import main; main()"]
    with subprocess.Popen(
        [*command, "rpc-up", "--port", "0", "--servers", "1", "--key", "box"],
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        first, second = process.stdout.readline(), process.stdout.readline()
        address = first.split(";")[0].removeprefix("Tracker ")
        assert f"--tracker {address} --key box" in second
        assert len(rpc_ask.servers(rpc(address, key="box")).servers) == 1
        family = psutil.Process(process.pid).children(recursive=True)
        assert len(family) == 3
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=15) == 0
    assert not any(p.is_running() for p in family)
