"""Where candidates are measured: on devices of this machine, or on servers of a TVM tracker."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from autotune_nb.errors import InputError

DEFAULT_PORT = 9190


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """How a run measures; kept in its manifest, so that a resumed run does the same.

    Attributes
    ----------
    kind
        ``local`` or ``rpc``.
    devices
        For ``local``: the devices that measure side by side, such as ``cuda:0``; empty for the
        target's own.
    host, port, key
        For ``rpc``: where the tracker listens, and the key under which its servers registered.
    """

    kind: str = "local"
    devices: tuple[str, ...] = ()
    host: str = ""
    port: int = 0
    key: str = ""

    @property
    def remote(self) -> bool:
        """True if servers of a tracker measure."""
        return self.kind == "rpc"

    @property
    def tracker(self) -> str:
        """The tracker's address as ``host:port``."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    def __str__(self) -> str:
        if self.remote:
            return f"servers {self.key} of the tracker {self.tracker}"
        return ", ".join(self.devices) or "this machine"

    def to_json(self) -> dict[str, Any]:
        """Return what the manifest keeps; nothing for measuring on the target's own device."""
        if self.remote:
            return {"kind": "rpc", "tracker": self.tracker, "key": self.key}
        return {"kind": "local", "devices": list(self.devices)} if self.devices else {}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Measure:
        """Return what `to_json` gave.

        Raises
        ------
        InputError
            If it is nothing that this version knows.
        """
        if not value:
            return cls()
        if value.get("kind") == "rpc":
            return rpc(str(value.get("tracker", "")), key=str(value.get("key", "")))
        if value.get("kind") == "local":
            return local([str(device) for device in value.get("devices", ())])
        raise InputError(
            f"measure: {value.get('kind')!r} is no way to measure that this version knows; "
            "upgrade autotune-nb, or make a new run"
        )


def rpc(tracker: str, key: str) -> Measure:
    """Measure on every server that is registered with a TVM tracker under a key.

    Parameters
    ----------
    tracker
        ``host:port`` of the tracker; the port is 9190 if left out.
    key
        The servers' key, as in ``python -m tvm.exec.rpc_server --key rpi4``.

    Raises
    ------
    InputError
        If either is missing or is no address.
    """
    host, port = address(tracker)
    if not key or not key.isprintable() or any(c.isspace() or c == ":" for c in key):
        raise InputError(
            f"key {key!r}: names no servers; pass the key they were started with, one word "
            "without a colon"
        )
    return Measure(kind="rpc", host=host, port=port, key=key)


def local(devices: Sequence[str] | str) -> Measure:
    """Measure on several devices of this machine side by side.

    Parameters
    ----------
    devices
        Such as ``["cuda:0", "cuda:1"]`` or ``"cuda:0,cuda:1"``; all of one kind and alike.

    Raises
    ------
    InputError
        If they are not devices of one kind, or one is named twice.
    """
    names = devices.split(",") if isinstance(devices, str) else list(devices)
    names = [name.strip() for name in names if name.strip()]
    if not names:
        raise InputError("devices: none given; write them like cuda:0,cuda:1")
    for name in names:
        kind, _, index = name.partition(":")
        if kind == "cpu":
            _cores(name, index)
        elif not kind or not index.isdecimal():
            raise InputError(
                f"devices: {name} is no device; write them like cuda:0,cuda:1 or, for sets of "
                "cores, cpu:0-3,cpu:4-7"
            )
    kinds = sorted({name.partition(":")[0] for name in names})
    if len(kinds) > 1:
        raise InputError(
            f"devices: {' and '.join(kinds)} cannot measure for one run; name devices of one kind"
        )
    seen: set[int] = set()
    for name in names:
        kind, _, index = name.partition(":")
        taken = set(_cores(name, index)) if kind == "cpu" else {int(index)}
        if seen & taken:
            raise InputError(
                f"devices: {name} shares what another one has; name each device and core once"
            )
        seen |= taken
    return Measure(kind="local", devices=tuple(names))


def cores_of(device: str) -> tuple[int, ...]:
    """Return the cores of a set such as ``cpu:0-3``."""
    return _cores(device, device.partition(":")[2])


def address(text: str) -> tuple[str, int]:
    """Return the host and port of ``host:port``, ``host`` or ``[v6]:port``.

    Raises
    ------
    InputError
        If it is none.
    """
    text = text.strip()
    if text.startswith("["):
        host, _, rest = text[1:].partition("]")
        port = rest.removeprefix(":")
    else:
        host, _, port = text.partition(":")
    number = int(port) if port.isdecimal() else (DEFAULT_PORT if not port else 0)
    if not host or not 0 < number < 65536 or any(c.isspace() for c in host):
        raise InputError(f"tracker {text!r}: is no address; write it like 192.168.1.10:9190")
    return host, number


def _cores(name: str, text: str) -> tuple[int, ...]:
    first, _, last = text.partition("-")
    if not first.isdecimal() or (last and not last.isdecimal()) or int(last or first) < int(first):
        raise InputError(f"devices: {name} is no set of cores; write it like cpu:0-3")
    return tuple(range(int(first), int(last or first) + 1))
