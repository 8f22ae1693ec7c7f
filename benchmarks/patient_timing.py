"""Times a candidate on a machine that others use too: a job for this project's build workers."""

from __future__ import annotations

from typing import Any

import tvm

from autotune_nb.tuning import jobs

# Many short repeats, and the least of them: other processes can only make a repeat longer, and some
# of the short ones they do not reach. A job of the tuner counts its runs by the first one, which a
# disturbance makes few; here TVM doubles them until they last.
_MIN_REPEAT_MS, _REPEATS = 5, 12
_GIVE_UP = 3.0


def measure(key: str, args_info: str, best_s: float | None) -> list[float]:
    """Return the least seconds of a run of a candidate built in this process, and forget it."""
    device = tvm.runtime.device("cpu", 0)
    module, _ = jobs._held.pop(key)
    arguments = jobs._arguments(args_info, "cpu", 0)

    def least(**settings: Any) -> float:
        times = module.time_evaluator("main", device, **settings)(*arguments).results
        return float(min(times))

    first = least(number=1, repeat=3)
    if best_s is not None and first > _GIVE_UP * best_s and first > _MIN_REPEAT_MS / 1e3 / 10:
        return [first]
    return [least(number=1, repeat=_REPEATS, min_repeat_ms=_MIN_REPEAT_MS)]
