"""The tuner process with stub jobs: the real loop, workers, journal and signals, but no TVM."""

import os
import sys
import time


def _jump_back() -> None:
    """From a second after its start this process believes that it is an hour earlier."""
    real = time.time
    at = real() + float(os.environ["STUB_CLOCK_JUMPS_AFTER_S"])
    time.time = lambda: real() - 3600 if real() > at else real()


if __name__ == "__main__":
    from autotune_nb.tuning import launch
    from autotune_nb.tuning.plan import Modules

    if os.environ.get("STUB_MEMORY_BYTES"):
        launch.cores.total_memory = lambda: int(os.environ["STUB_MEMORY_BYTES"])
    if os.environ.get("STUB_CLOCK_JUMPS_AFTER_S"):
        _jump_back()
    stub = "tests.faults.stub_jobs"
    sys.exit(launch.serve(sys.argv[1], Modules(search=stub, candidates=stub, preload=stub)))
