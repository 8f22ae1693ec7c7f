"""Resolves what a person calls a target into one that is complete and has a device here."""

from __future__ import annotations

import functools
import json
import re
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import tvm
from tvm.target import Target, codegen

from autotune_nb.errors import TargetError, near_matches
from autotune_nb.tuning import cores
from autotune_nb.tuning.cores import available_cores

_CPU_NAMES = ("cpu", "llvm", "native")
_GPU_KINDS = ("cuda", "rocm", "vulkan", "metal", "opencl")
_PROBE_TIMEOUT_S = 60
_BOARD_CORES = 4
# Asked in a process of its own: a process that has initialised CUDA can fork no builders.
_PROBE = """
import json, sys
import tvm
device = tvm.device(sys.argv[1], int(sys.argv[2]))
found = {"exists": bool(device.exist)}
if found["exists"]:
    found["name"] = str(device.device_name or "")
    found["target"] = {k: v for k, v in tvm.target.Target.from_device(device).export().items()}
    limits = {
        "max_threads_per_block": device.max_threads_per_block,
        "max_shared_memory_per_block": device.max_shared_memory_per_block,
        "thread_warp_size": device.warp_size,
    }
    found["target"].update({k: int(v) for k, v in limits.items() if v})
    if sys.argv[1] == "cuda":
        found["target"]["arch"] = "sm_" + str(device.compute_version).replace(".", "")
print("PROBE " + json.dumps(found, default=list))
"""


def resolve(target: str | Mapping[str, Any], *, measured_here: bool = True) -> Target:
    """Return the complete target that `target` stands for.

    Parameters
    ----------
    target
        ``llvm`` (or ``cpu``), ``cuda`` or ``cuda:1``, one of TVM's tags such as
        ``nvidia/nvidia-h100``, or a configuration as a mapping or as JSON text.
    measured_here
        Whether the device must be on this machine; False for targets measured over RPC.

    Returns
    -------
    tvm.target.Target
        With ``mcpu``, ``num-cores`` and ``mtriple`` for CPUs, and ``arch`` and the limits of the
        device for GPUs. What `target` gives itself is kept.

    Raises
    ------
    TargetError
        If there is no such target, or no device for it.
    """
    config, index = _parse(target)
    kind = config["kind"]
    if kind == "llvm":
        return _complete_cpu(config, measured_here)
    if kind in _GPU_KINDS:
        return _complete_gpu(config, index, measured_here)
    raise TargetError(
        f"target {kind}: this toolkit does not tune for it; use llvm (a CPU) or one of "
        f"{', '.join(_GPU_KINDS)}"
    )


def device(target: str | Mapping[str, Any] | Target) -> str:
    """Return the device of a target as ``cpu`` or ``kind:index``, for example ``cuda:0``."""
    if isinstance(target, Target):
        config, index = {"kind": str(target.kind)}, 0
    else:
        config, index = _parse(target)
    return "cpu" if config["kind"] == "llvm" else f"{config['kind']}:{index}"


def configuration(target: str | Mapping[str, Any]) -> dict[str, Any]:
    """Return what `target` says itself as TVM's configuration, without completing it."""
    return _parse(target)[0]


def device_name(target: Target, index: int = 0) -> str:
    """Return the maker's name of the device that `target` runs on; ``""`` where it is unknown."""
    kind = str(target.kind)
    if kind == "llvm":
        return cpu_name()
    return str(_probe(kind, index).get("name", ""))


def cpu_name() -> str:
    """Return the maker's name of this machine's processor."""
    return cores.cpu_name(_cpuinfo())


# -- reading what was asked for ------------------------------------------------------------------


def _parse(target: str | Mapping[str, Any]) -> tuple[dict[str, Any], int]:
    """Return the configuration and the index of the device."""
    if not isinstance(target, str):
        return _with_kind(dict(target)), 0
    text = target.strip()
    if text.startswith("{"):
        try:
            return _with_kind(json.loads(text)), 0
        except json.JSONDecodeError as error:
            raise TargetError(
                f"target {text}: is no valid JSON ({error}); "
                'write it like {"kind": "llvm", "mcpu": "znver3"}'
            ) from None
    if " " in text:
        raise TargetError(
            f"target {text}: options after the name are no longer understood; "
            'write it as JSON, like {"kind": "llvm", "mcpu": "znver3"}'
        )
    name, _, index = text.partition(":")
    if name.lower() in _CPU_NAMES and not index:
        return {"kind": "llvm"}, 0
    name = {"gpu": "cuda"}.get(name.lower(), name)
    if index and (name not in _GPU_KINDS or not index.isdecimal()):
        raise TargetError(f"target {text}: is no device; write it like cuda:0")
    if name in _GPU_KINDS:
        return {"kind": name}, int(index or 0)
    return _named(text), 0


def _with_kind(config: Any) -> dict[str, Any]:
    if not isinstance(config, dict) or not isinstance(config.get("kind"), str):
        raise TargetError(
            f"target {json.dumps(config, default=str)}: has no kind; "
            'write it like {"kind": "llvm", "mcpu": "znver3"}'
        )
    kind = config["kind"]
    if kind not in _kinds():
        raise TargetError(_unknown(kind))
    return config


def _named(text: str) -> dict[str, Any]:
    tags = {str(tag) for tag in tvm.target.list_tags()}
    if text in tags:
        return _exported(Target(text))
    if text in _kinds():
        return {"kind": text}
    raise TargetError(_unknown(text, tags))


def _unknown(text: str, tags: set[str] | None = None) -> str:
    known = {*_CPU_NAMES, *_GPU_KINDS, *(tags or ())}
    return (
        f"target {text}: does not exist{near_matches(text, known)}; "
        "use llvm for this machine's CPU or cuda for its GPU"
    )


@functools.cache
def _kinds() -> frozenset[str]:
    return frozenset(str(kind) for kind in Target.list_kinds())


# -- completing it -------------------------------------------------------------------------------


def _complete_cpu(config: dict[str, Any], measured_here: bool) -> Target:
    system = str(codegen.llvm_get_system_cpu())
    triple = str(codegen.llvm_get_system_triple())
    config.setdefault("mtriple", triple)
    foreign = config["mtriple"].split("-")[0] != triple.split("-", maxsplit=1)[0]
    if foreign and measured_here:
        raise TargetError(
            f"target llvm: {config['mtriple']} does not run on this machine ({triple}); leave "
            "mtriple out, or measure on such a device over RPC"
        )
    if config.get("mcpu") in (None, "native") and not foreign:
        config["mcpu"] = system
        masked = _masked_features(system)
        if masked and "mattr" not in config:
            config["mattr"] = [f"-{feature}" for feature in masked]
    # how many a board has is not known here; four is what most have
    config.setdefault("num-cores", _BOARD_CORES if foreign else available_cores())
    if not isinstance(config["num-cores"], int) or config["num-cores"] < 1:
        raise TargetError(
            f"target llvm: num-cores is {config['num-cores']!r}; give a number of cores from 1"
        )
    mcpu = config.get("mcpu")
    if mcpu is not None:
        _check_mcpu(str(mcpu), config["mtriple"])
        if measured_here and mcpu != system:
            lacking = _lacking_features(str(mcpu), config.get("mattr", []))
            if lacking:
                raise TargetError(
                    f"target llvm: mcpu {mcpu} has {', '.join(lacking)}, which this machine's CPU "
                    f"({system}) lacks; leave mcpu out"
                )
    return _make(config)


def _check_mcpu(mcpu: str, triple: str) -> None:
    base = Target({"kind": "llvm", "mtriple": triple})
    known = [str(cpu) for cpu in codegen.llvm_get_cpu_archlist(base)]
    if known and mcpu not in known:
        raise TargetError(
            f"target llvm: mcpu {mcpu} does not exist{near_matches(mcpu, known)}; "
            "leave it out to use this machine's"
        )


def _vector_features(mcpu: str) -> list[str]:
    """Return the vector extensions that LLVM will use for `mcpu`."""
    features = codegen.llvm_get_cpu_features(Target({"kind": "llvm", "mcpu": mcpu}))
    return sorted(f for f in map(str, features) if f.startswith(("avx", "amx", "fma", "f16c")))


def _masked_features(mcpu: str) -> list[str]:
    """Return the extensions that `mcpu` has and this machine does not (virtual machines hide some).

    LLVM recognises a processor by its model number; code for an extension that is hidden would
    be killed as an illegal instruction.
    """
    match = re.search(r"^flags\s*:\s*(.+)$", _cpuinfo(), re.MULTILINE)
    if match is None:
        return []
    # Linux spells avx512_vnni what LLVM spells avx512vnni.
    present = {flag.replace("_", "") for flag in match[1].split()}
    return [f for f in _vector_features(mcpu) if f.replace("-", "") not in present]


def _lacking_features(mcpu: str, attributes: Any) -> list[str]:
    removed = {str(a)[1:] for a in attributes if str(a).startswith("-")}
    return [feature for feature in _masked_features(mcpu) if feature not in removed]


@functools.cache
def _cpuinfo() -> str:
    return cores.cpuinfo()


def _complete_gpu(config: dict[str, Any], index: int, measured_here: bool) -> Target:
    kind = config["kind"]
    found: dict[str, Any] = {}
    if measured_here:
        found = _probe(kind, index)
        if not found.get("exists"):
            raise TargetError(
                f"target {kind}: no such device on this machine ({kind}:{index}); check the driver "
                f"({'nvidia-smi' if kind == 'cuda' else 'and that TVM supports it'}), or use llvm"
            )
    given = found.get("target", {})
    complete = {k: v for k, v in given.items() if k not in ("tag", "host")}
    complete.update(config)
    return _make(complete)


@functools.cache
def _probe(kind: str, index: int) -> dict[str, Any]:
    """Ask a child process for a device: whether it exists, its name and its target."""
    command = [sys.executable, "-c", _PROBE, kind, str(index)]
    try:
        answer = subprocess.run(
            command, capture_output=True, text=True, timeout=_PROBE_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise TargetError(
            f"target {kind}: the device {kind}:{index} did not answer within {_PROBE_TIMEOUT_S} s; "
            "check whether it hangs (nvidia-smi), or use llvm"
        ) from None
    for line in answer.stdout.splitlines():
        if line.startswith("PROBE "):
            found: dict[str, Any] = json.loads(line.removeprefix("PROBE "))
            return found
    last = (answer.stderr.strip().splitlines() or ["it was killed"])[-1]
    raise TargetError(
        f"target {kind}: asking for the device {kind}:{index} failed ({last}); "
        "check the driver, or use llvm"
    )


def _make(config: dict[str, Any]) -> Target:
    try:
        return Target(config)
    except Exception as error:  # TVM raises several kinds; the message is what helps
        text = str(error)
        option = re.search(r"Unknown config option '([^']+)'. Known options: (.+)", text, re.DOTALL)
        if option is not None:
            known = re.findall(r"'([^']+)'", option[2])
            raise TargetError(
                f"target {config['kind']}: has no option {option[1]}"
                f"{near_matches(option[1], known)}; correct it or leave it out"
            ) from None
        reason = text.strip().splitlines()[0] if text.strip() else type(error).__name__
        raise TargetError(
            f"target {config['kind']}: TVM refuses it ({reason}); correct the option it names"
        ) from None


def _exported(target: Target) -> dict[str, Any]:
    """Return the configuration of a target as plain JSON values."""
    config: dict[str, Any] = json.loads(str(target))
    config.pop("tag", None)
    return config
