"""The manifest: what a run tunes, written once when the run is made."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from autotune_nb.errors import InputError, RunError, near_matches
from autotune_nb.run import lines
from autotune_nb.run.records import Choice, TaskInfo

FORMAT = 1
FILE = "manifest.json"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How a run tunes; fixed when it is made, so that its trials can be compared.

    Attributes
    ----------
    batch_size
        Candidates searched, built and measured in one round; 0 chooses by device when the run is
        made: 16 on CPUs, 64 on GPUs.
    population, generations
        Size of the evolutionary search of a round; 0 lets the tuner choose.
    repeats, min_repeat_ms
        A candidate is timed `repeats` times, each over at least `min_repeat_ms` milliseconds (0
        chooses by device: 60 on CPUs, 30 on GPUs).
    build_timeout_s, measure_timeout_s
        A build or measurement that takes longer is killed and counts as failed.
    workers
        Build processes; 0 means as many as there are cores.
    seed
        Seed of the search: the same seed and versions give the same first candidates.
    cool_down_ms
        Pause before each measurement, in milliseconds.
    """

    batch_size: int = 0
    population: int = 0
    generations: int = 0
    repeats: int = 1
    min_repeat_ms: int = 0
    build_timeout_s: float = 20.0
    measure_timeout_s: float = 10.0
    workers: int = 0
    seed: int = 0
    cool_down_ms: int = 0

    def resolved(self, device: str) -> Options:
        """Return the options with what is left to the device chosen."""
        on_cpu = device.startswith("cpu")
        return dataclasses.replace(
            self,
            batch_size=self.batch_size or (16 if on_cpu else 64),
            min_repeat_ms=self.min_repeat_ms or (60 if on_cpu else 30),
        )

    @classmethod
    def checked(cls, **options: Any) -> Options:
        """Make options from what a person passed.

        Raises
        ------
        InputError
            If one does not exist, has another type, or is out of range.
        """
        fields = {field.name: field for field in dataclasses.fields(cls)}
        for name, value in options.items():
            if name not in fields:
                raise InputError(
                    f"option {name} does not exist{near_matches(name, fields)}; "
                    f"there are {', '.join(fields)}"
                )
            default = fields[name].default
            number = isinstance(value, int | float) and not isinstance(value, bool)
            if not number or (isinstance(default, int) and value != int(value)):
                kind = "a whole number" if isinstance(default, int) else "a number"
                raise InputError(f"option {name} is {value!r}; pass {kind}")
            if not _LEAST.get(name, 0) <= value < float("inf"):
                raise InputError(
                    f"option {name} is {value}; pass a number from {_LEAST.get(name, 0)}"
                )
        return cls(**options)


# the smallest value that makes sense; 0 where none is given
_LEAST = {
    "repeats": 1,
    "build_timeout_s": 1,
    "measure_timeout_s": 1,
}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What a run is about.

    Attributes
    ----------
    name
        The network's name.
    network_fingerprint
        `Network.fingerprint` of the network that was extracted.
    network
        Its source, layout, inputs, outputs and parameter count, as JSON values.
    target
        TVM's target configuration, complete (with ``mcpu``, ``num-cores``, …).
    device
        The device that measures, for example ``cpu`` or ``cuda:0``, and its name.
    versions
        Versions of Python, TVM and this package that made the run.
    options
        How it tunes.
    tasks
        The extracted tasks, in order of their ids.
    choices
        Parts of the network with several formulations, of which the fastest is compiled.
    measure
        Where candidates are measured, as `Measure.to_json` gives it; empty for `device` itself.
    created
        When, in seconds since the Unix epoch.
    read_only
        True for a run imported from elsewhere, distilled, or merged from such: it can be looked
        at, not tuned.
    """

    name: str
    network_fingerprint: str
    network: dict[str, Any]
    target: dict[str, Any]
    device: str
    device_name: str
    versions: dict[str, str]
    options: Options
    tasks: tuple[TaskInfo, ...]
    created: float
    choices: tuple[Choice, ...] = ()
    measure: dict[str, Any] = dataclasses.field(default_factory=dict)
    read_only: bool = False
    format: int = FORMAT

    @property
    def origin(self) -> str:
        """How a read-only run came about, to follow "the run was"."""
        return str(self.network.get("derived") or "imported")

    def write(self, directory: Path) -> None:
        """Write the manifest into a run directory, whole or not at all."""
        text = json.dumps(dataclasses.asdict(self), indent=1)
        lines.replace(directory / FILE, text.encode())

    @classmethod
    def read(cls, directory: Path) -> Manifest:
        """Read a run directory's manifest.

        Raises
        ------
        RunError
            If the directory is no run, or its manifest is broken or of a later format.
        """
        path = directory / FILE
        try:
            value = json.loads(path.read_bytes())
        except FileNotFoundError:
            if not directory.exists():
                raise RunError(f"{directory}: no such run; check the path") from None
            raise RunError(
                f"{directory}: not a run directory (it has no {FILE}); pass a directory made by "
                "'autotune-nb tune'"
            ) from None
        except NotADirectoryError:
            raise RunError(f"{directory}: is a file; pass a run directory") from None
        except (OSError, ValueError, RecursionError) as error:
            raise RunError(
                f"{path}: cannot be read ({error}); restore it from a copy, or tune anew in "
                "another directory"
            ) from error
        return cls._from_json(value, path)

    @classmethod
    def _from_json(cls, value: Any, path: Path) -> Manifest:
        try:
            if value["format"] > FORMAT:
                raise RunError(
                    f"{path}: has format {value['format']}, this version reads up to {FORMAT}; "
                    "upgrade autotune-nb"
                )
            known = {f.name for f in dataclasses.fields(Options)}
            value["options"] = Options(**{k: v for k, v in value["options"].items() if k in known})
            value["tasks"] = tuple(TaskInfo.from_json(task) for task in value["tasks"])
            if [task.id for task in value["tasks"]] != list(range(len(value["tasks"]))):
                raise TypeError("its tasks are not numbered from 0")
            count = len(value["tasks"])
            value["choices"] = tuple(Choice.from_json(c, count) for c in value.get("choices", ()))
            names = {f.name for f in dataclasses.fields(cls)}
            return cls(**{k: v for k, v in value.items() if k in names})
        except (KeyError, TypeError, AttributeError) as error:
            raise RunError(
                f"{path}: is damaged ({type(error).__name__}: {error}); restore it from a copy, "
                "or tune anew in another directory"
            ) from error
