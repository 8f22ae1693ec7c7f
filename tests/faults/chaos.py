"""Kills parts of a tuner at random moments, over and over, and resumes until its budget is gone."""

import dataclasses
import random
import signal
import time

import psutil

from tests.faults.stub_run import gone, processes_of

PARTS = ("tuner", "worker", "fork server", "device", "tracker")
ENDING = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@dataclasses.dataclass
class Chaos:
    """What was done to a run, and what was found while doing it.

    `strikes` counts by part and signal. `lost` is how many measurements may be lost with them: the
    one under way when the tuner has no time to take it in, or when a process that measures dies.
    """

    strikes: dict = dataclasses.field(default_factory=dict)
    sessions: int = 0
    lost: int = 0
    left: list = dataclasses.field(default_factory=list)
    slowest_stop_s: float = 0.0  # from a signal to the tuner's end

    def torment(self, run, strikes, seed, parts=PARTS, signals=ENDING, gap_s=(0.02, 0.5), more=500):
        """Strike `strikes` times while `run` is tuned; then let it do some `more` trials and end.

        Return the last state.
        """
        chance = random.Random(seed)
        done = 0
        run.ask("budget", trials=10_000_000)
        while True:
            process = run.start()
            self.sessions += 1
            before = run.state.trials
            while done < strikes and process.poll() is None:
                time.sleep(chance.uniform(*gap_s))
                done += self._strike(process, chance.choice(parts), chance.choice(signals))
            if process.poll() is None or done >= strikes:
                run.ask("budget", trials=run.state.trials + more)
            if process.poll() is None:
                process.wait(120)
            state = run.state
            assert state.trials >= before, "trials went back"
            if state.phase in ("finished", "failed"):
                return state
            assert process.returncode in (0, -signal.SIGKILL), (process.returncode, run.log)

    def _strike(self, process, part, number):
        family = processes_of(process.pid)
        victim = process.pid if part == "tuner" else _find(process.pid, family, part)
        if victim is None:
            return 0
        try:
            psutil.Process(victim).send_signal(number)
        except psutil.NoSuchProcess:
            return 0
        key = f"{part} {number.name}"
        self.strikes[key] = self.strikes.get(key, 0) + 1
        self.lost += part in ("worker", "fork server", "device")
        if part == "tuner":
            self.lost += number == signal.SIGKILL
            asked = time.monotonic()
            process.wait(30)
            self.slowest_stop_s = max(self.slowest_stop_s, time.monotonic() - asked)
            self.left += gone(family)
        return 1


def _find(tuner, family, part):
    """Return the process id of a random one of a part, or None where there is none."""
    found = []
    for process in family:
        try:
            line, parent = " ".join(process.cmdline()), process.ppid()
        except psutil.Error:
            continue
        server = "forkserver" in line
        if (
            (part == "tracker" and "resource_tracker" in line)
            or (part == "fork server" and server and parent == tuner)
            or (part == "worker" and server and parent != tuner)
            or (part == "device" and "spawn_main" in line)
        ):
            found.append(process.pid)
    return random.choice(found) if found else None
