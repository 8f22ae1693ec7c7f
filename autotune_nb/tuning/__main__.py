"""The tuner process: ``python -m autotune_nb.tuning RUN``; started by `launch.start`."""

from __future__ import annotations

import sys

if __name__ == "__main__":  # the workers' processes import this module too
    from autotune_nb.tuning.launch import serve

    sys.exit(serve(sys.argv[1]))
