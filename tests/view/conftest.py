"""A run made of events, for tests of what is shown: no TVM, no files unless asked for."""

import dataclasses
import json

import comm
import pytest

from autotune_nb.run import events as ev
from autotune_nb.run import journal
from autotune_nb.run.manifest import Manifest, Options
from autotune_nb.run.records import TaskInfo
from autotune_nb.run.state import fold, initial

CONV = TaskInfo(
    id=0,
    name="fused_conv2d_add_relu",
    weight=2,
    flops=2e9,
    workload_hash="11",
    operators=("conv2d", "add", "relu"),
    shapes=("float32[1, 56, 56, 64]", "float32[1, 56, 56, 64]"),
)
POOL = TaskInfo(id=1, name="max_pool2d", weight=1, flops=1e6, workload_hash="12")
COPY = TaskInfo(id=2, name="reshape", weight=1, flops=0.0, workload_hash="13", trivial=True)


@dataclasses.dataclass
class Story:
    """Events of a run, appended one by one with a clock that the test moves."""

    tasks: tuple[TaskInfo, ...] = (CONV, POOL, COPY)
    events: list[ev.Event] = dataclasses.field(default_factory=list)
    time: float = 1000.0
    used_s: float = 0.0
    trials: int = 0
    rounds: int = 0

    def add(self, cls, **fields):
        self.events.append(cls(time=self.time, used_s=self.used_s, **fields))
        return self

    def start(self, trials=None, seconds=None):
        self.add(ev.TunerStarted, pid=1, host="h", versions={}, workers={})
        self.add(ev.BudgetSet, trials=trials, seconds=seconds)
        return self.add(ev.PhaseChanged, phase="tuning")

    def wait(self, seconds):
        self.time += seconds
        self.used_s += seconds
        return self

    def trial(self, task, latency_s, error="", kind="build", **fields):
        self.wait(1.0)
        self.trials += 1
        return self.add(
            ev.TrialDone,
            trial=self.trials,
            round=max(1, self.rounds),
            task=task,
            candidate=f"c{self.trials}",
            latency_s=latency_s,
            latencies_s=() if latency_s is None else (latency_s,),
            error_kind=kind if latency_s is None else "",
            error=error,
            build_s=0.25,
            measure_s=0.5,
            record=f"r{self.trials}",
            **fields,
        )

    def round(self, task, latencies_s):
        self.rounds += 1
        self.add(ev.RoundStarted, round=self.rounds, task=task)
        self.wait(2.0)
        self.add(
            ev.RoundSearched,
            round=self.rounds,
            task=task,
            candidates=len(latencies_s),
            search_s=2.0,
        )
        for latency in latencies_s:
            self.trial(task, latency, error="" if latency else "no room")
        return self.add(
            ev.RoundFinished,
            round=self.rounds,
            task=task,
            trials=len(latencies_s),
            build_s=0.25 * len(latencies_s),
            measure_s=0.5 * len(latencies_s),
            learn_s=0.1,
        )

    def stop(self, outcome="finished", reason=""):
        return self.add(ev.TunerStopped, outcome=outcome, reason=reason)

    @property
    def state(self):
        return fold(initial(self.tasks), self.events)

    def manifest(self, **changes):
        fields = {
            "name": "toy",
            "network_fingerprint": "f",
            "network": {},
            "target": {"kind": "llvm", "mcpu": "znver3", "num-cores": 2},
            "device": "cpu",
            "device_name": "a CPU",
            "versions": {"tvm": "0.27.0"},
            "options": Options(),
            "tasks": self.tasks,
            "created": 999.0,
        }
        return Manifest(**{**fields, **changes})


@pytest.fixture
def story():
    """Return an empty story."""
    return Story()


@pytest.fixture
def told():
    """Return a run in the middle of a budget of 20 trials, with one failure and a task to go."""
    story = Story()
    story.start(trials=20)
    story.round(0, [4e-3, 2e-3, None])
    story.round(1, [5e-4, 6e-4])
    story.add(ev.RoundStarted, round=3, task=0)
    return story


@dataclasses.dataclass
class Recorder:
    """Stands for the browser: keeps what widgets send, in order."""

    messages: list[tuple[str, dict, list]] = dataclasses.field(default_factory=list)

    def create(self, **kwargs):
        return FakeComm(self, **kwargs)

    def bytes_since(self, mark):
        total = 0
        for _, data, buffers in self.messages[mark:]:
            total += len(json.dumps(data, default=str)) + sum(len(bytes(b)) for b in buffers)
        return total


class FakeComm(comm.DummyComm):
    def __init__(self, recorder, **kwargs):
        self.recorder = recorder
        super().__init__(**kwargs)

    def publish_msg(self, msg_type, data=None, metadata=None, buffers=None, **keys):
        self.recorder.messages.append((msg_type, data or {}, list(buffers or [])))


@pytest.fixture
def browser(monkeypatch):
    """Record all that widgets send, and close the views that a test leaves open."""
    from autotune_nb.view import registry

    recorder = Recorder()
    monkeypatch.setattr(comm, "create_comm", recorder.create)
    yield recorder
    for view in registry.live():
        view.close()


@pytest.fixture
def run_of(tmp_path):
    """Write stories as run directories."""

    def write(story, name="toy", **manifest):
        path = tmp_path / name
        if not path.exists():
            path.mkdir()
            story.manifest(**manifest).write(path)
        done = path / "written"
        count = int(done.read_text()) if done.exists() else 0
        journal.append(path / journal.FILE, story.events[count:])
        done.write_text(str(len(story.events)))
        return path

    return write
