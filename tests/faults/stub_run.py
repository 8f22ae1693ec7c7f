"""Runs of stub jobs, tuners that tune them, and the account of what became of each trial."""

import collections
import dataclasses
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import psutil

from autotune_nb.run import database, journal
from autotune_nb.run import events as ev
from autotune_nb.run import requests as rq
from autotune_nb.run.directory import RunDirectory
from autotune_nb.run.manifest import Manifest, Options
from autotune_nb.run.records import TaskInfo
from autotune_nb.tuning import cores, launch
from tests.faults import stub_jobs

ROOT = Path(__file__).parents[2]
COMMAND = ("-m", "tests.faults.stub_tuner")
FAST = {"batch_size": 8, "min_repeat_ms": 1, "build_timeout_s": 20.0, "workers": 2}


def make(path, tasks=3, device="cpu", versions=None, options=None, **stub):
    """Make a run whose jobs behave as `stub` says; see `stub_jobs`."""
    path.mkdir(parents=True, exist_ok=True)
    infos = tuple(
        TaskInfo(id=i, name=f"op{i}", weight=1 + i, flops=1e9, workload_hash=str(i))
        for i in range(tasks)
    )
    (path / "stub.json").write_text(json.dumps(stub))
    database.append_workloads(path, [[str(i), "bW9kdWxl"] for i in range(tasks)])
    Manifest(
        name="stub",
        network_fingerprint="f",
        network={"source": {}},
        target={"kind": "llvm", "num-cores": 2},
        device=device,
        device_name=cores.cpu_name(cores.cpuinfo()),
        versions=launch.versions() | (versions or {}),
        options=Options(**FAST | (options or {})),
        tasks=infos,
        created=time.time(),
    ).write(path)
    return StubRun(path)


@dataclasses.dataclass
class StubRun:
    """One run directory, and the tuners that were started on it."""

    path: Path
    environment: dict = dataclasses.field(default_factory=dict)
    processes: list = dataclasses.field(default_factory=list)
    command: tuple = COMMAND

    def tell(self, **stub):
        (self.path / "stub.json").write_text(json.dumps(stub))

    def ask(self, wish, **details):
        return rq.append(self.path / "requests.jsonl", wish, **details)

    def start(self, trials=None, **budget):
        """Start a tuner and return once it holds the run, or has ended."""
        if trials is not None or budget:
            self.ask("budget", trials=trials, **budget)
        log = (self.path / "tuner.log").open("ab")
        process = subprocess.Popen(
            [sys.executable, *self.command, str(self.path)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            cwd=self.path,
            env=os.environ | {"PYTHONPATH": str(ROOT)} | self.environment,
        )
        log.close()
        self.processes.append(process)
        run = RunDirectory(self.path)
        wait_for(
            lambda: process.poll() is not None or run.holder().pid == process.pid,
            "the tuner to hold the run",
        )
        return process

    def tune(self, trials=None, timeout_s=60.0, **budget):
        """Tune to the end and return the last state."""
        process = self.start(trials, **budget)
        try:
            process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"no end after {timeout_s} s: {self.state}") from None
        return self.state

    def close(self):
        """End whatever still runs; return the processes that outlived their tuner."""
        left = []
        for process in self.processes:
            if process.poll() is None:
                family = processes_of(process.pid)
                process.kill()
                process.wait()
                left += family
        psutil.wait_procs(left, timeout=10)
        return [p for p in left if p.is_running()]

    @property
    def directory(self):
        return RunDirectory(self.path)

    @property
    def state(self):
        return self.directory.poll()

    @property
    def log(self):
        path = self.path / "tuner.log"
        return path.read_text() if path.exists() else ""

    def events(self, kind=ev.Event):
        return [e for e in journal.read(self.path / journal.FILE)[0] if isinstance(e, kind)]

    def check(self, lost=0, ahead=0):
        """Hold journal, records and ledger against each other.

        At most `lost` measurements may have ended without being told to the tuner; return how many
        did. At most `ahead` records may be there whose trials are not in the journal yet.
        """
        trials = self.events(ev.TrialDone)
        assert [t.trial for t in trials] == list(range(1, len(trials) + 1))
        records, bad = database.read_records(self.path)
        assert not bad
        assert len(records) - len(trials) <= ahead
        records = records[: len(trials)]
        assert [r.digest for r in records] == [t.record for t in trials]
        keys = [stub_jobs.key_of(r.task, json.loads(r.line)[1][0][1]) for r in records]
        twice = [key for key, count in collections.Counter(keys).items() if count > 1]
        assert not twice, f"counted twice: {twice}"
        for key, trial in zip(keys, trials, strict=True):
            assert trial.candidate in ("", key)  # one restored from its record has no name
            if trial.latency_s is not None:
                assert abs(trial.latency_s / stub_jobs.latency_of(key) - 1) < 1e-4
        ledger = self.path / stub_jobs.LEDGER
        measured = ledger.read_text().split() if ledger.exists() else []
        counted = {k for k, t in zip(keys, trials, strict=True) if t.latency_s is not None}
        assert counted <= set(measured), "counted, but never measured"
        missing = len(measured) - len(counted)  # measured again is measured in vain as well
        assert missing <= lost, f"{missing} measurements are lost"
        return missing


def processes_of(pid):
    """Return the processes a tuner has started, and theirs."""
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.Error:
        return []


def gone(processes, timeout_s=10.0):
    """Return those that still run after `timeout_s`."""
    _, alive = psutil.wait_procs(processes, timeout=timeout_s)
    return [p for p in alive if p.status() != psutil.STATUS_ZOMBIE]


def wait_for(condition, what, timeout_s=30.0):
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"waited {timeout_s} s in vain for {what}"
        time.sleep(0.01)
