"""The live views of this process: a re-run cell ends the view it made before."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any, Protocol

_MAX_PER_RUN = 4  # a view whose cell was deleted is never told so


class Closable(Protocol):
    """A view as the registry sees it."""

    def close(self) -> None:
        """End it."""


_lock = threading.Lock()
_views: dict[tuple[str, str], Closable] = {}


def cell() -> str:
    """Return the ID of the notebook cell that runs, or '' where there is none or it is unknown."""
    try:
        from IPython import get_ipython

        metadata = get_ipython().kernel.get_parent().get("metadata") or {}
        return str(metadata.get("cellId") or "")
    except (ImportError, AttributeError):
        return ""


def register(path: Path, view: Closable, where: str | None = None) -> None:
    """Remember a view, and close the one it takes the place of.

    Parameters
    ----------
    path
        The run directory.
    view
        The new view.
    where
        The notebook cell that makes it; the running one if None. One run has one live view in a
        cell, and one outside of notebooks.
    """
    run = os.path.realpath(path)
    key = (run, cell() if where is None else where)
    with _lock:
        old = [_views.pop(key)] if key in _views else []
        others = [k for k in _views if k[0] == run]
        old += [_views.pop(k) for k in others[: max(0, len(others) + 1 - _MAX_PER_RUN)]]
        _views[key] = view
    for other in old:
        other.close()


def forget(view: Closable) -> None:
    """Remove a view that was closed."""
    with _lock:
        for key in [k for k, v in _views.items() if v is view]:
            del _views[key]


def live() -> list[Closable]:
    """Return the views that were not closed."""
    with _lock:
        return list(_views.values())


def forget_route(widget: Any) -> None:
    """Let the browser's next message to a widget go to the kernel's main shell.

    ipykernel answers a comm on the subshell its last message came from; after a reload of the page
    that subshell is gone and messages are lost. The attribute is private, so it may be missing.
    """
    route = getattr(getattr(widget, "comm", None), "__dict__", {})
    route.pop("_reply_subshell_id", None)
