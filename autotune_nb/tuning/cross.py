"""Finds the compiler that links libraries for another processor than this machine's."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Mapping
from typing import Any

from autotune_nb.errors import EnvironmentProblem

VARIABLE = "AUTOTUNE_NB_CROSS_CXX"
_SAME = {"amd64": "x86_64", "arm64": "aarch64"}


def is_foreign(target: Mapping[str, Any]) -> bool:
    """Tell whether code for a target (TVM's configuration) does not run on this machine."""
    triple = triple_of(target)
    return bool(triple) and _processor(triple.partition("-")[0]) != _processor(platform.machine())


def triple_of(target: Mapping[str, Any]) -> str:
    """Return the triple of a target, or of its host if it is a GPU; ``""`` if it names none."""
    host = target.get("host")
    if target.get("kind") != "llvm" and isinstance(host, Mapping):
        target = host
    return str(target.get("mtriple", ""))


def names(triple: str) -> list[str]:
    """Return the usual names of the compilers for a triple, the likeliest first.

    Distributions leave the maker out: ``aarch64-linux-gnu-g++`` is also that for
    ``aarch64-unknown-linux-gnu``.
    """
    parts = triple.split("-")
    triples = [triple]
    if len(parts) == 4:
        triples.append("-".join([parts[0], *parts[2:]]))
    return [f"{prefix}-{name}" for prefix in triples for name in ("g++", "gcc", "clang++")]


def find(triple: str) -> str | None:
    """Return the path of a compiler for a triple: what the variable names, or one of `names`."""
    named = os.environ.get(VARIABLE)
    if named:
        return shutil.which(named)
    return next((path for name in names(triple) if (path := shutil.which(name))), None)


def compiler(target: Mapping[str, Any]) -> str | None:
    """Return the cross compiler for a target; None where the machine's own compiler will do.

    Raises
    ------
    EnvironmentProblem
        If one is needed and there is none.
    """
    if not is_foreign(target):
        return None
    triple = triple_of(target)
    path = find(triple)
    if path is None:
        raise EnvironmentProblem(missing(triple))
    return path


def missing(triple: str) -> str:
    """Return what is missing, and what to do about it."""
    named = os.environ.get(VARIABLE)
    what = f"{named}, which {VARIABLE} names, is no program" if named else "no compiler for it"
    return f"target {triple}: {what}; {fix(triple)}"


def fix(triple: str) -> str:
    """Return how to get a compiler for a triple."""
    first = names(triple)[-3]
    return (
        f"install {first} (Debian and Ubuntu: apt install g++-{first.removesuffix('-g++')}) or "
        f"point {VARIABLE} at one"
    )


def _processor(name: str) -> str:
    return _SAME.get(name.lower(), name.lower())
