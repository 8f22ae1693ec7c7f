"""Runs on disk, made of a few tasks and the events a tuner would write; no TVM."""

import dataclasses
import itertools

import pytest

from autotune_nb.run import database
from autotune_nb.run import events as ev
from autotune_nb.run.directory import RunWriter
from autotune_nb.run.manifest import Manifest, Options
from autotune_nb.run.records import TaskInfo
from autotune_nb.run.state import initial


def infos(count=3):
    return tuple(
        TaskInfo(id=i, name=f"op{i}", weight=i + 1, flops=1e9, workload_hash=str(100 + i))
        for i in range(count)
    )


@dataclasses.dataclass
class Teller:
    """Says what a tuner would, one event a second of tuning time."""

    clock: float = 0.0
    trials: int = 0
    rounds: int = 0

    def when(self):
        self.clock += 1.0
        return {"time": 1000.0 + self.clock, "used_s": self.clock}

    def start(self):
        return ev.TunerStarted(
            pid=7, host="h", versions={"tvm": "0.27"}, workers={"build": 2}, **self.when()
        )

    def open(self, task):
        self.rounds += 1
        return ev.RoundStarted(round=self.rounds, task=task, **self.when())

    def searched(self, task, candidates=2, search_s=0.5):
        return ev.RoundSearched(
            round=self.rounds, task=task, candidates=candidates, search_s=search_s, **self.when()
        )

    def trial(self, task, latency_s=None, record="", error="boom", kind="build"):
        self.trials += 1
        good = latency_s is not None
        return ev.TrialDone(
            trial=self.trials,
            round=max(1, self.rounds),
            task=task,
            candidate=f"c{self.trials}",
            latency_s=latency_s,
            latencies_s=(latency_s,) if good else (),
            error_kind="" if good else kind,
            error="" if good else error,
            build_s=0.25,
            measure_s=0.5 if good else 0.0,
            record=record or f"r{self.trials}",
            device="cpu",
            **self.when(),
        )

    def close(self, task, trials=2):
        return ev.RoundFinished(
            round=self.rounds, task=task, trials=trials, build_s=0.5, measure_s=1.0, **self.when()
        )

    def round(self, task, latencies_s):
        """Return the events of a whole round."""
        count = len(latencies_s)
        return [
            self.open(task),
            self.searched(task, count),
            *(self.trial(task, latency) for latency in latencies_s),
            self.close(task, count),
        ]

    def stop(self, outcome="finished", reason=""):
        return ev.TunerStopped(outcome=outcome, reason=reason, **self.when())


@dataclasses.dataclass
class RunOnDisk:
    """A run directory and the teller of its events; trials are written as a tuner does."""

    path: object
    teller: Teller = dataclasses.field(default_factory=Teller)
    _traces: object = dataclasses.field(default_factory=itertools.count)

    @property
    def journal(self):
        return self.path / "journal.jsonl"

    @property
    def records(self):
        return self.path / database.RECORD_FILE

    def trial(self, writer, task, latency_s=None, **fields):
        times = [] if latency_s is None else [latency_s]
        trace = [["Annotate", 'naïve " \\ \n'], next(self._traces)]
        line = database.record_line(task, trace, times, {"kind": "llvm"}, ["TENSOR"])
        writer.append_record(line)
        event = self.teller.trial(task, latency_s, record=database.digest(line), **fields)
        writer.commit([event])
        return event

    def write(self, rounds=((0, (4e-3, 2e-3, None)), (1, (5e-4, 6e-4)))):
        """Tune a little, and return the state at the end."""
        teller = self.teller
        with RunWriter(self.path) as writer:
            writer.commit([teller.start()])
            for task, latencies_s in rounds:
                writer.commit([teller.open(task), teller.searched(task, len(latencies_s))])
                for latency_s in latencies_s:
                    self.trial(writer, task, latency_s)
                writer.commit([teller.close(task, len(latencies_s))])
            return writer.state

    def aside(self):
        """Return the names of the files that hold what was taken out."""
        return sorted(p.name for p in self.path.iterdir() if ".torn-" in p.name)


def manifest(tasks, **changes):
    fields = {
        "name": "toy",
        "network_fingerprint": "f",
        "network": {"source": {"zoo": "toy"}},
        "target": {"kind": "llvm", "num-cores": 2},
        "device": "cpu",
        "device_name": "a CPU",
        "versions": {"apache-tvm": "0.27.0.post1"},
        "options": Options(),
        "tasks": tasks,
        "created": 999.0,
    }
    return Manifest(**{**fields, **changes})


@pytest.fixture
def teller():
    return Teller()


@pytest.fixture
def tasks():
    return infos()


@pytest.fixture
def blank(tasks):
    """Return the state of a run of three tasks in which nothing has happened."""
    return initial(tasks)


@pytest.fixture
def make_manifest():
    return manifest


@pytest.fixture
def make_run(tmp_path, tasks):
    """Return a function that makes an empty run directory."""
    count = itertools.count()

    def make(**changes):
        path = tmp_path / f"run{next(count)}"
        path.mkdir()
        manifest(changes.pop("tasks", tasks), **changes).write(path)
        return RunOnDisk(path)

    return make


@pytest.fixture
def run(make_run):
    return make_run()
