"""The last evaluation of a run, kept among its artifacts for the reports that are made later."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from autotune_nb.run import lines
from autotune_nb.run.directory import RunDirectory

_FILE = "evaluation.json"


def store(directory: RunDirectory, evaluation: Mapping[str, Any]) -> None:
    """Keep what ``Evaluation.to_json`` gave."""
    text = json.dumps(dict(evaluation), indent=1)
    lines.replace(directory.artifacts / _FILE, text.encode())


def read(directory: RunDirectory) -> Mapping[str, Any] | None:
    """Return the evaluation that was stored last; None if there is none that can be read."""
    try:
        value = json.loads((directory.path / "artifacts" / _FILE).read_bytes())
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) and "correct" in value else None
