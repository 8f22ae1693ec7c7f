"""Who measures: trials, speed and failures of each device, and what waits to be measured."""

from __future__ import annotations

from html import escape
from typing import Any

from autotune_nb.run.devices import DeviceState
from autotune_nb.run.state import State
from autotune_nb.view.sanitise import clean
from autotune_nb.view.units import significant

_MOST_LINES = 8


def worth_telling(state: State) -> bool:
    """Tell whether it matters who measures: there are several devices, or any can be lost."""
    return len(state.devices) > 1 or any(d.lost or not d.present for d in state.devices)


def to_json(state: State) -> dict[str, Any]:
    """Return what ``status --json`` prints about devices."""
    return {
        "queue": state.queue,
        "devices": [
            {
                "name": device.name,
                "trials": device.trials,
                "failures": device.failures,
                "lost": device.lost,
                "trials_per_s": device.trials_per_s,
                "present": device.present,
            }
            for device in state.devices
        ],
    }


def text_lines(state: State) -> list[str]:
    """Return a line for each device and one for the queue; none where there is one device."""
    if not worth_telling(state):
        return []
    shown = sorted(state.devices, key=lambda d: -d.trials)[:_MOST_LINES]
    lines = [f"Device {clean(d.name)}: {', '.join(_facts(d))}" for d in shown]
    hidden = len(state.devices) - len(shown)
    if hidden:
        lines.append(f"and {hidden} more devices")
    return [*lines, f"Queue: {state.queue} candidates wait to be built or measured"]


def table(state: State) -> str:
    """Return the devices as an HTML table; empty where there is one device."""
    if not worth_telling(state):
        return ""
    rows = "".join(
        f"<tr><td>{escape(clean(d.name))}</td><td>{d.trials}</td><td>{_speed(d)}</td>"
        f"<td>{d.failures}</td><td>{d.lost}</td><td>{'here' if d.present else 'gone'}</td></tr>"
        for d in state.devices
    )
    return (
        "<div class='atnb'><table><thead><tr><th>Device</th><th>Trials</th><th>Trials/s</th>"
        f"<th>Failed</th><th>Lost</th><th></th></tr></thead><tbody>{rows}</tbody></table>"
        f"{state.queue} candidates wait to be built or measured</div>"
    )


def _facts(device: DeviceState) -> list[str]:
    facts = [f"{device.trials} trials"]
    if device.trials_per_s is not None:
        facts.append(f"{_speed(device)} trials/s")
    if device.failures:
        facts.append(f"{device.failures} failed")
    if device.lost:
        facts.append(f"{device.lost} lost and tried again")
    if not device.present:
        facts.append("gone")
    return facts


def _speed(device: DeviceState) -> str:
    return "-" if device.trials_per_s is None else significant(device.trials_per_s, 3)
