"""The last profile of a run's compiled network, kept among its artifacts for later reports."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from autotune_nb.run import lines
from autotune_nb.run.directory import RunDirectory

_FILE = "profile.json"


def store(directory: RunDirectory, profile: Mapping[str, Any]) -> None:
    """Keep what ``Profile.to_json`` gave."""
    text = json.dumps(dict(profile), indent=1)
    lines.replace(directory.artifacts / _FILE, text.encode())


def read(directory: RunDirectory) -> Mapping[str, Any] | None:
    """Return the profile that was stored last; None if there is none that can be read."""
    try:
        value = json.loads((directory.path / "artifacts" / _FILE).read_bytes())
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) and _is_profile(value) else None


def _is_profile(value: Mapping[str, Any]) -> bool:
    functions = value.get("functions")
    return isinstance(functions, list) and all(
        isinstance(row, dict)
        and isinstance(row.get("name"), str)
        and isinstance(row.get("duration_s"), int | float)
        and row["duration_s"] >= 0
        for row in functions
    )
