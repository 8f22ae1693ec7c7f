"""Measuring over TVM's own tracker and servers, on this machine's loopback address."""

import contextlib
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time

import psutil
import pytest

from autotune_nb.errors import InputError, TrackerError
from autotune_nb.run import measure as ms
from autotune_nb.tuning import rpc_ask, tracker
from autotune_nb.tuning.rpc_up import RpcUp


@pytest.fixture(scope="module")
def up():
    with RpcUp(2, key="box", port=0) as started:
        yield started


@pytest.fixture(scope="module")
def target():
    from autotune_nb.tuning.target import resolve

    return json.loads(str(resolve("llvm")))


def in_time(function, *arguments):
    """Call it; return its error, which must come within 15 seconds."""
    start = time.monotonic()
    with pytest.raises(TrackerError) as caught:
        function(*arguments)
    assert time.monotonic() - start < 15
    assert "\n" not in str(caught.value)
    return str(caught.value)


# What is asked for.


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [("pi", "pi", 9190), ("10.0.0.1:80", "10.0.0.1", 80), ("[::1]:9191", "::1", 9191)],
)
def test_addresses(text, host, port):
    assert ms.address(text) == (host, port)
    assert ms.Measure.from_json(ms.rpc(text, key="k").to_json()) == ms.rpc(text, key="k")


@pytest.mark.parametrize("text", ["", ":9190", "host:0", "host:65536", "host:x", "a b:1"])
def test_what_is_no_address_is_refused(text):
    with pytest.raises(InputError, match="is no address"):
        ms.rpc(text, key="box")


@pytest.mark.parametrize("key", ["", "a b", "a:b", "a\n"])
def test_what_is_no_key_is_refused(key):
    with pytest.raises(InputError, match="names no servers"):
        ms.rpc("host", key=key)


@pytest.mark.parametrize(
    ("devices", "message"),
    [
        ("", "none given"),
        ("cuda:0,cuda", "is no device"),
        ("cuda:0,rocm:1", "devices of one kind"),
        ("cuda:0,cuda:0", "shares"),
        ("cpu:0-2,cpu:2-4", "shares"),
        ("cpu:3-1", "no set of cores"),
    ],
)
def test_devices_that_cannot_measure_together_are_refused(devices, message):
    with pytest.raises(InputError, match=message):
        ms.local(devices)


def test_devices_are_kept():
    found = ms.local("cpu:0-1, cpu:2-3")
    assert found.devices == ("cpu:0-1", "cpu:2-3")
    assert ms.cores_of("cpu:2-3") == (2, 3)
    assert ms.Measure.from_json(found.to_json()) == found
    assert ms.Measure.from_json({}) == ms.Measure()


# What the tracker says.


def test_a_kernel_runs_on_a_server(up, target):
    found = rpc_ask.servers(up.measure)
    assert sorted(found.servers) == sorted(up.servers)
    assert rpc_ask.probe(up.measure, target, "cpu") in up.servers


def test_no_tracker():
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))  # bound and not listening: nobody else takes it either
        message = in_time(rpc_ask.servers, ms.rpc(f"127.0.0.1:{held.getsockname()[1]}", key="box"))
    assert "nothing listens there" in message


def test_no_host():
    message = in_time(rpc_ask.servers, ms.rpc("no-such-host.invalid", key="box"))
    assert "no host of that name" in message


def test_the_port_of_a_server_is_no_tracker(up):
    message = in_time(rpc_ask.servers, ms.rpc(up.servers[0], key="box"))
    assert "no TVM tracker" in message
    assert "another one than the tracker" in message


def test_a_port_at_which_nobody_answers(monkeypatch):
    monkeypatch.setattr(tracker.summary, "__defaults__", (1.0,))
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        message = in_time(rpc_ask.servers, ms.rpc(f"127.0.0.1:{silent.getsockname()[1]}", "box"))
    assert "does not answer within" in message


def test_the_key_of_no_server(up):
    message = in_time(rpc_ask.servers, ms.rpc(up.measure.tracker, key="bx"))
    assert "it has servers with box" in message
    assert "did you mean box" in message


@contextlib.contextmanager
def a_server(at, key, behave):
    """Register a server whose connections `behave(connection, match_key)` serves, once."""
    with socket.socket() as listening, socket.socket() as line:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        port = listening.getsockname()[1]
        line.connect((at.measure.host, at.measure.port))
        line.sendall(struct.pack("<i", 0x2F271))
        line.recv(4, socket.MSG_WAITALL)
        for message in (
            [5, {"key": f"server:{key}", "addr": [None, port]}],
            [3, key, [port, f"{key}:0.5"], None],
        ):
            text = json.dumps(message).encode()
            line.sendall(struct.pack("<i", len(text)) + text)
            size = struct.unpack("<i", line.recv(4, socket.MSG_WAITALL))[0]
            assert json.loads(line.recv(size, socket.MSG_WAITALL)) == 0

        def serve():
            connection, _ = listening.accept()
            with connection:
                length = struct.unpack("<ii", connection.recv(8, socket.MSG_WAITALL))[1]
                connection.recv(length, socket.MSG_WAITALL)
                answer = f"server:{key}".encode()
                connection.sendall(struct.pack("<ii", 0xFF271, len(answer)) + answer)
                behave(connection)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield
        thread.join(timeout=20)


def test_a_server_of_another_tvm(up, target):
    def refuse(connection):
        size = struct.unpack("<Q", connection.recv(8, socket.MSG_WAITALL))[0]
        # the client says the version of its protocol first; one that has another hangs up
        assert b"0." in connection.recv(size, socket.MSG_WAITALL)

    with a_server(up, "old", refuse):
        message = in_time(rpc_ask.probe, ms.rpc(up.measure.tracker, key="old"), target, "cpu")
    assert "does not speak the language of TVM" in message
    assert "install apache-tvm==" in message


def test_a_server_that_hangs(up, target, monkeypatch):
    monkeypatch.setattr(rpc_ask, "_SERVER_TIMEOUT_S", 2.0)
    hung = threading.Event()
    with a_server(up, "hung", lambda _: hung.wait(15)):
        message = in_time(rpc_ask.probe, ms.rpc(up.measure.tracker, key="hung"), target, "cpu")
        hung.set()
    assert "has not answered within 2 s" in message


def test_a_server_that_cannot_run_the_target(up, target):
    foreign = {"kind": "llvm", "mtriple": "aarch64-linux-gnu", "num-cores": 2}
    from autotune_nb.tuning import cross

    if cross.find("aarch64-linux-gnu") is None:
        pytest.skip("no cross compiler (Debian: apt install g++-aarch64-linux-gnu)")
    message = in_time(rpc_ask.probe, up.measure, foreign, "cpu")
    assert "check that the target is the server's" in message


def test_nobody_is_free(up):
    with contextlib.ExitStack():
        taken = [tracker.request(up.measure, 5.0) for _ in up.servers]
        assert None not in taken
        assert tracker.request(up.measure, 0.3) is None


# Starting and ending them.


def test_nothing_outlives_a_killed_parent(tmp_path, until):
    code = (
        "import time; from autotune_nb.tuning.rpc_up import RpcUp\n"
        "up = RpcUp(1, port=0); print(*up.pids.values(), flush=True); time.sleep(600)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True
    ) as parent:
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        assert len(pids) == 2
        family = psutil.Process(parent.pid).children(recursive=True)
        assert {p.pid for p in family} >= set(pids)
        os.kill(parent.pid, signal.SIGKILL)
    until(lambda: not any(p.is_running() for p in family), "the servers to end", 10)


def test_an_open_address_is_refused():
    with pytest.raises(InputError, match="every address"):
        RpcUp(1, host="0.0.0.0", port=0)


def test_a_taken_port_is_told(up):
    with pytest.raises(InputError, match="cannot be listened at"):
        RpcUp(1, port=up.measure.port)
