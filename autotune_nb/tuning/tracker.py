"""A client of TVM's RPC tracker that needs no TVM and never waits longer than it is told.

TVM's own client retries a refused connection for a minute and then waits for ever. The tuner and
the command line, which load no TVM, ask the tracker through this one. A message is a length of four
bytes and JSON; what a connection begins with is a number of four bytes, sent both ways.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import socket
import struct
import time
from collections.abc import Iterator
from typing import Any

from autotune_nb.errors import TrackerError
from autotune_nb.run.measure import Measure

_MAGIC = 0x2F271
_SUCCESS, _REQUEST, _SUMMARY = 0, 4, 6
_MOST_BYTES = 1 << 24  # of an answer: a tracker with a hundred thousand servers sends less
_TIMEOUT_S = 5.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What a tracker knows of the servers with one key.

    Attributes
    ----------
    servers
        Their addresses, ``host:port``, in order.
    free, pending
        Servers that wait for work, and clients that wait for a server.
    others
        The other keys that have servers.
    """

    servers: tuple[str, ...] = ()
    free: int = 0
    pending: int = 0
    others: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """A server that the tracker gave to us: whoever knows its match key may connect, once."""

    host: str
    port: int
    match_key: str

    @property
    def device(self) -> str:
        """Its name in the journal."""
        return f"{self.host}:{self.port}"


def summary(measure: Measure, timeout_s: float = _TIMEOUT_S) -> Summary:
    """Ask a tracker for its servers.

    Raises
    ------
    TrackerError
        If nothing answers at its address, or what answers is no tracker.
    """
    with _connection(measure, timeout_s) as line:
        answer = line.ask([_SUMMARY])
    try:
        if answer[0] != _SUCCESS:
            raise ValueError(f"code {answer[0]}")
        found: dict[str, list[str]] = {}
        for server in answer[1]["server_info"]:
            host, port = server["addr"]
            found.setdefault(str(server["key"]).partition(":")[2], []).append(f"{host}:{port}")
        queue = answer[1]["queue_info"].get(measure.key, {})
        return Summary(
            servers=tuple(sorted(found.pop(measure.key, []))),
            free=int(queue.get("free", 0)),
            pending=int(queue.get("pending", 0)),
            others=tuple(sorted(found)),
        )
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise _no_tracker(measure, f"its answer makes no sense ({error})") from None


def request(measure: Measure, timeout_s: float) -> Grant | None:
    """Wait for a free server and take it; None if there was none within `timeout_s`.

    Raises
    ------
    TrackerError
        If nothing answers at the tracker's address, or what answers is no tracker.
    """
    with _connection(measure, timeout_s) as line:
        answer = line.ask([_REQUEST, measure.key, "", 1], patient=True)
    if answer is None:
        return None
    try:
        if answer[0] != _SUCCESS:
            raise ValueError(f"code {answer[0]}")
        host, port, match_key = answer[1]
        return Grant(host=str(host), port=int(port), match_key=str(match_key))
    except (TypeError, ValueError, IndexError, KeyError) as error:
        raise _no_tracker(measure, f"its answer makes no sense ({error})") from None


class _Line:
    """One connection with a deadline for all that is done with it."""

    def __init__(self, connection: socket.socket, deadline: float, measure: Measure) -> None:
        self._connection = connection
        self._deadline = deadline
        self._measure = measure

    def greet(self) -> None:
        self._connection.sendall(struct.pack("<i", _MAGIC))
        if struct.unpack("<i", self._receive(4))[0] != _MAGIC:
            raise _no_tracker(self._measure, "it greets differently")

    def ask(self, message: list[Any], *, patient: bool = False) -> Any:
        """Return the answer to a message; None for a `patient` one that ran out of time."""
        text = json.dumps(message).encode()
        self._connection.sendall(struct.pack("<i", len(text)) + text)
        try:
            size = struct.unpack("<i", self._receive(4))[0]
        except TimeoutError:
            if patient:
                return None
            raise
        if not 0 < size <= _MOST_BYTES:
            raise _no_tracker(self._measure, f"it announces an answer of {size} bytes")
        try:
            return json.loads(self._receive(size))
        except ValueError:
            raise _no_tracker(self._measure, "its answer is no JSON") from None

    def _receive(self, count: int) -> bytes:
        parts = bytearray()
        while len(parts) < count:
            left = self._deadline - time.monotonic()
            if left <= 0:
                raise TimeoutError
            self._connection.settimeout(left)
            part = self._connection.recv(count - len(parts))
            if not part:
                raise _no_tracker(self._measure, "it hangs up")
            parts += part
        return bytes(parts)


@contextlib.contextmanager
def _connection(measure: Measure, timeout_s: float) -> Iterator[_Line]:
    deadline = time.monotonic() + timeout_s
    try:
        with socket.create_connection((measure.host, measure.port), timeout=timeout_s) as opened:
            line = _Line(opened, deadline, measure)
            line.greet()
            yield line
    except ConnectionRefusedError:
        raise TrackerError(
            f"tracker {measure.tracker}: nothing listens there; start it with 'python -m "
            f"tvm.exec.rpc_tracker --host HOST --port {measure.port}' (or 'autotune-nb rpc-up' to "
            "try it out), or correct the host and port"
        ) from None
    except socket.gaierror:
        raise TrackerError(
            f"tracker {measure.tracker}: there is no host of that name; correct it, or write its "
            "address in numbers"
        ) from None
    except TimeoutError:
        raise TrackerError(
            f"tracker {measure.tracker}: does not answer within {timeout_s:g} s; check the host "
            "and port, and whether a firewall is between"
        ) from None
    except ConnectionError:
        raise _no_tracker(measure, "it hangs up") from None
    except OSError as error:
        raise TrackerError(
            f"tracker {measure.tracker}: cannot be reached ({error.strerror or error}); check the "
            "host and port"
        ) from None


def _no_tracker(measure: Measure, why: str) -> TrackerError:
    return TrackerError(
        f"tracker {measure.tracker}: what listens there is no TVM tracker ({why}); correct the "
        "port (a server of TVM has another one than the tracker)"
    )
