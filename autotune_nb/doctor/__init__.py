"""Is this environment able to tune? Names what would stop it, and how to fix each thing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from autotune_nb.doctor import device, machine, software
from autotune_nb.doctor.finding import Finding, Status
from autotune_nb.errors import EnvironmentProblem, TargetError

__all__ = ["Finding", "Status", "check", "exit_code", "render", "require"]


def check(
    target: str | None = None,
    *,
    quick: bool = False,
    workers: int | None = None,
    directory: str | Path = ".",
    remote: bool = False,
) -> list[Finding]:
    """Look for what would stop or spoil a tuning, without changing anything.

    Parameters
    ----------
    target
        The target to tune for, as `autotune-nb tune` takes it; None checks no target.
    quick
        Only what takes well under a second: versions instead of a trial of TVM's libraries, the
        presence of modules instead of their import, a linker instead of linking; a target is not
        parsed. Neither form loads TVM or touches CUDA in this process.
    workers
        How many processes will build candidates; None means one a core.
    directory
        Where the run will be written; it need not exist yet.
    remote
        Whether candidates are measured elsewhere, on servers of a TVM tracker.

    Returns
    -------
    list of Finding
        At least one for each check, in the order in which they are best put right.
    """
    links = remote or (target is not None and device.is_gpu(target))
    findings = [software.python_version(), software.tvm_versions()]
    if not quick:
        findings.append(software.tvm_abi())
    findings += software.modules(quick=quick)
    findings.append(machine.linker(needed=links, quick=quick))
    if target is not None:
        cross = device.cross_compiler(target)
        findings += cross
        findings += device.target(target, quick=quick, here=not remote and not cross)
    return [
        *findings,
        machine.cores(workers),
        machine.memory(workers),
        machine.disk(Path(directory)),
        machine.shared_memory(),
    ]


def exit_code(findings: Sequence[Finding]) -> int:
    """Return 1 if any finding is a problem, else 0."""
    return int(any(finding.status == "problem" for finding in findings))


def require(findings: Sequence[Finding]) -> None:
    """Raise if a tuning cannot work; warnings pass.

    Raises
    ------
    TargetError
        If the first problem is the target or its device.
    EnvironmentProblem
        If it is anything else.
    """
    problems = [finding for finding in findings if finding.status == "problem"]
    if not problems:
        return
    first = problems[0]
    error = TargetError if first.name in {"target", "gpu"} else EnvironmentProblem
    more = f" ({len(problems) - 1} more: see `autotune-nb doctor`)" if len(problems) > 1 else ""
    raise error(f"{first.name}: {first.message}. To fix it: {first.fix}{more}")


def render(findings: Sequence[Finding]) -> str:
    """Return the findings as a text table, each fix below what it mends, and a verdict."""
    width = max((len(finding.name) for finding in findings), default=0)
    lines = []
    for finding in findings:
        lines.append(f"{finding.status:<7}  {finding.name:<{width}}  {finding.message}")
        if finding.fix:
            lines.append(f"{'':<7}  {'':<{width}}  -> {finding.fix}")
    problems = sum(finding.status == "problem" for finding in findings)
    warnings = sum(finding.status == "warning" for finding in findings)
    if problems:
        verdict = "This environment cannot tune"
    elif warnings:
        verdict = "This environment can tune, with limits"
    else:
        verdict = "This environment can tune"
    counts = f"{_plural(problems, 'problem')}, {_plural(warnings, 'warning')}"
    return "\n".join([*lines, "", f"{verdict}: {counts}."])


def _plural(count: int, word: str) -> str:
    return f"{count} {word}{'' if count == 1 else 's'}"
