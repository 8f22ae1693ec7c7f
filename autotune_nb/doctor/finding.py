"""Finding: what one check of the environment found, and what to do about it."""

from __future__ import annotations

import dataclasses
from typing import Literal

Status = Literal["ok", "warning", "problem"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What one check found.

    Attributes
    ----------
    name
        What was looked at, in a word or two.
    status
        ``problem`` stops a tuning; ``warning`` makes it worse or takes something away.
    message
        What was found.
    fix
        What to do about it; empty when there is nothing to do.
    """

    name: str
    status: Status
    message: str
    fix: str = ""
