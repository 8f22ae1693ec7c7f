"""Ten thousand trials through the real tuner: its memory stays flat, a trial's cost constant."""

import statistics
import time

import psutil
import pytest

from autotune_nb.run import events as ev

pytestmark = [pytest.mark.faults, pytest.mark.slow, pytest.mark.timeout(280)]
TRIALS = 10_000


def test_ten_thousand_trials_cost_no_more_each_than_the_first_thousand(make):
    run = make(tasks=24, options={"batch_size": 16}, default={"padding": 300})
    process = run.start(TRIALS)
    tuner = psutil.Process(process.pid)
    memory = []  # (trials, bytes) of the tuner alone
    reader = run.directory
    while process.poll() is None:
        try:
            taken = tuner.memory_info().rss
        except psutil.Error:
            break
        memory.append((reader.poll().trials, taken))
        time.sleep(0.2)
    assert process.wait(30) == 0
    assert run.state.trials == TRIALS
    run.check()
    early = statistics.median(m for t, m in memory if 500 < t <= 2000)
    late = statistics.median(m for t, m in memory if t > 8500)
    assert late - early < 20 << 20, f"{(late - early) >> 20} MiB more after 8,500 trials"
    # processor time would leave out waiting; used_s is what a user waits. Medians over hundreds of
    # trials bear a machine that stalls now and then.
    stamps = [e.used_s for e in run.events(ev.TrialDone)]
    hundreds = [b - a for a, b in zip(stamps[::100], stamps[100::100], strict=False)]
    first, last = statistics.median(hundreds[5:30]), statistics.median(hundreds[-25:])
    assert last < 2.5 * first + 0.1, f"100 trials took {first:.3f} s at first, {last:.3f} s at last"
