"""Where output goes: whether this is a notebook, and progress for where it is none."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from autotune_nb.run.lock import Holder
from autotune_nb.run.state import State
from autotune_nb.view.text import render_task_table

_EVERY_S = 15.0


def in_notebook() -> bool:
    """Tell whether this process is the kernel of a notebook."""
    # asked without importing IPython, which a program that has none loaded does not need
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return shell is not None and hasattr(shell, "kernel")


def progress_printer() -> Callable[[State, Holder], None]:
    """Return a function that prints the task table now and then, and when the tuner is gone."""
    last = [-_EVERY_S]

    def show(state: State, holder: Holder) -> None:
        now = time.monotonic()
        if now - last[0] >= _EVERY_S or not holder.alive:
            last[0] = now
            sys.stdout.write(render_task_table(state, holder) + "\n\n")
            sys.stdout.flush()

    return show
