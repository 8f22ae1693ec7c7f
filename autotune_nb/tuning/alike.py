"""Checks that several devices of this machine are alike, so that their times can be compared."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autotune_nb.errors import TargetError
from autotune_nb.run.measure import Measure, cores_of
from autotune_nb.tuning import cores
from autotune_nb.tuning import target as targets


def check(measure: Measure, device: str) -> None:
    """Check that the devices of this machine that a run measures on exist and are alike.

    Parameters
    ----------
    measure
        What was asked for.
    device
        The device of the target; the devices must be of its kind.

    Raises
    ------
    TargetError
        If a device does not exist, is of another kind or make, or, for sets of cores, if they
        differ in size or leave no core to search and build on.
    """
    if not measure.devices:
        return
    kind = device.partition(":")[0]
    for name in measure.devices:
        if name.partition(":")[0] != kind:
            raise TargetError(
                f"device {name}: does not run code for this target, whose device is {device}; name "
                f"devices like {kind}:0"
            )
    if kind == "cpu":
        _check_cores(measure.devices)
    else:
        _check_devices(kind, measure.devices)


def narrowed(target: str | Mapping[str, Any], measure: Measure) -> str | Mapping[str, Any]:
    """Return the target for sets of cores: it has as many cores as one of them, unless told."""
    if not measure.devices or not measure.devices[0].startswith("cpu"):
        return target
    config = targets.configuration(target)
    config.setdefault("num-cores", len(cores_of(measure.devices[0])))
    return config


def _check_devices(kind: str, devices: tuple[str, ...]) -> None:
    makes = {}
    for name in devices:
        index = int(name.partition(":")[2])
        # also raises if there is no such device
        target = targets.resolve(name)
        makes[name] = f"{targets.device_name(target, index)} ({target.attrs.get('arch', kind)})"
    first = devices[0]
    for name in devices[1:]:
        if makes[name] != makes[first]:
            raise TargetError(
                f"device {name}: is {makes[name]}, {first} is {makes[first]}: their times cannot "
                "be compared; name devices of one make"
            )


def _check_cores(devices: tuple[str, ...]) -> None:
    sets = {name: cores_of(name) for name in devices}
    ours = cores.core_numbers()
    for name, numbers in sets.items():
        lacking = sorted(set(numbers) - ours)
        if lacking:
            raise TargetError(
                f"device {name}: core {lacking[0]} is not this process's; it may use "
                f"{', '.join(map(str, sorted(ours)))}"
            )
    first = devices[0]
    for name in devices[1:]:
        if len(sets[name]) != len(sets[first]):
            raise TargetError(
                f"device {name}: has {len(sets[name])} cores, {first} has {len(sets[first])}: "
                "their times cannot be compared; name sets of one size"
            )
    if not ours.difference(*sets.values()):
        raise TargetError(
            f"devices {', '.join(devices)}: leave no core to search and build on; leave one out"
        )
