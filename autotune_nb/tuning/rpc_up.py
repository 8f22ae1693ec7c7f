"""Starts a TVM tracker and servers on this machine, for trying out measuring over RPC."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

from autotune_nb.errors import EnvironmentProblem, InputError, TrackerError
from autotune_nb.run.measure import DEFAULT_PORT, Measure, rpc
from autotune_nb.tuning import cores, tracker

LOOPBACK = "127.0.0.1"
_ROOT = Path(__file__).parents[2]
_START_TIMEOUT_S = 60.0
_END_TIMEOUT_S = 10.0


class RpcUp:
    """A tracker and servers that run until `close`, or until this process ends, however it ends.

    Who can reach them can run any program here: TVM's servers ask nobody who they are.

    Parameters
    ----------
    servers
        How many servers; each has its own share of the cores as far as there are enough.
    key
        The key of the servers.
    host
        Address of this machine that they listen at.
    port
        Port of the tracker; 0 takes a free one. The servers take free ones.
    restart_s
        A server that ends is started again after so many seconds.

    Raises
    ------
    InputError
        If the port is taken, or the address is none of this machine's.
    EnvironmentProblem
        If they do not come up.
    """

    def __init__(
        self,
        servers: int = 2,
        *,
        key: str = "local",
        host: str = LOOPBACK,
        port: int = DEFAULT_PORT,
        restart_s: float = 1.0,
    ) -> None:
        if servers < 1:
            raise InputError(f"{servers} servers measure nothing; pass a number from 1")
        if host in ("0.0.0.0", "::", ""):  # noqa: S104  to refuse it
            raise InputError(
                f"host {host!r}: is every address of this machine; name the one that the other "
                "machines of a closed network reach it at"
            )
        ports = _ports(host, port, servers)
        self.measure: Measure = rpc(f"{host}:{ports[0]}", key=key)
        self.pids: dict[str, int] = {}
        options = {
            "host": host,
            "key": key,
            "port": ports[0],
            "server_ports": ports[1:],
            "cores": _shares(sorted(cores.core_numbers()), servers),
            "restart_s": restart_s,
            "parent": os.getpid(),
        }
        search_path = [str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "autotune_nb.tuning.rpc_serve", json.dumps(options)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(search_path)},
        )
        threading.Thread(target=self._listen, daemon=True).start()
        try:
            self._wait(servers)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> RpcUp:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def servers(self) -> tuple[str, ...]:
        """The addresses of the servers, without the tracker's."""
        return tuple(name for name in self.pids if name != self.measure.tracker)

    def close(self) -> None:
        """End all of them; nothing is left when this returns."""
        if self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()
        try:
            self._process.wait(timeout=_END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def wait(self) -> int:
        """Wait until they end; return the exit code."""
        return self._process.wait()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            said = json.loads(line)
            self.pids[said["name"]] = said["pid"]

    def _wait(self, servers: int) -> None:
        deadline = time.monotonic() + _START_TIMEOUT_S
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise EnvironmentProblem(
                    f"TVM's tracker and servers ended with exit code {self._process.returncode}; "
                    "run 'autotune-nb doctor'"
                )
            try:
                if len(tracker.summary(self.measure, 1.0).servers) >= servers:
                    return
            except TrackerError:
                pass
            time.sleep(0.1)
        raise EnvironmentProblem(
            f"TVM's tracker and servers did not come up within {_START_TIMEOUT_S:.0f} s; "
            "run 'autotune-nb doctor'"
        )


def _ports(host: str, port: int, servers: int) -> list[int]:
    """Return a free port for the tracker and for each server; all are held until all are known."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with contextlib.ExitStack() as stack:
        found = []
        for wanted in [port] + [0] * servers:
            held = stack.enter_context(socket.socket(family, socket.SOCK_STREAM))
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                held.bind((host, wanted))
            except OSError as error:
                raise InputError(
                    f"{host}:{wanted}: cannot be listened at ({error.strerror}); pass another "
                    "port, 0 for any, and an address of this machine"
                ) from None
            found.append(int(held.getsockname()[1]))
        return found


def _shares(numbers: list[int], servers: int) -> list[list[int]]:
    """Deal cores out to servers, each as many; they share cores if there are too few."""
    size = max(1, len(numbers) // servers)
    return [
        [numbers[(server * size + i) % len(numbers)] for i in range(size)]
        for server in range(servers)
    ]
