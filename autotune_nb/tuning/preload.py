"""Imported by the fork server before it forks workers: loads TVM once for all of them.

It must touch no device: a process that has initialised CUDA cannot be forked.
"""

from __future__ import annotations

import json
import os

from autotune_nb.tuning import tvm_setup
from autotune_nb.tuning.messages import TARGET_VARIABLE

if os.environ.get(TARGET_VARIABLE):
    tvm_setup.prepare(json.loads(os.environ[TARGET_VARIABLE]))
    from autotune_nb.tuning import jobs, search  # noqa: F401  so that no worker has to
