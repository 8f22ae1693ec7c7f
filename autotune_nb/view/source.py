"""What can be shown: a session, a run directory, its path, or a state."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, TypeAlias, runtime_checkable

from autotune_nb.errors import InputError, RunError
from autotune_nb.run import events as ev
from autotune_nb.run import journal, lines
from autotune_nb.run.directory import RunDirectory
from autotune_nb.run.lock import Holder
from autotune_nb.run.manifest import Manifest
from autotune_nb.run.salvage import salvage
from autotune_nb.run.state import State, initial


class Run(Protocol):
    """What a view needs of a run; `RunDirectory` has it, and so has a replay."""

    @property
    def path(self) -> Path:
        """Where it is."""

    @property
    def manifest(self) -> Manifest:
        """What it tunes."""

    @property
    def journal(self) -> Path:
        """Its events."""

    @property
    def requests(self) -> Path:
        """Where wishes are written."""

    def poll(self) -> State:
        """Return the newest state."""

    def holder(self) -> Holder | None:
        """Tell who tunes it; None if that makes no sense."""


@runtime_checkable
class HasDirectory(Protocol):
    """Something that stands for a run, such as a `TuningSession`."""

    @property
    def directory(self) -> RunDirectory:
        """The run's directory."""
        ...


Source: TypeAlias = State | RunDirectory | HasDirectory | str | Path


def directory_of(source: Source) -> RunDirectory | None:
    """Return the run directory behind `source`; None for a bare state.

    Raises
    ------
    RunError
        If `source` is a path and there is no run.
    InputError
        If `source` is something else.
    """
    if isinstance(source, State):
        return None
    if isinstance(source, RunDirectory):
        return source
    if isinstance(source, str | Path):
        return RunDirectory(source)
    if isinstance(source, HasDirectory):
        return source.directory
    raise InputError(
        f"{type(source).__name__} cannot be plotted; pass a session, a run directory, its path or "
        "a state"
    )


def state_of(source: Source) -> State:
    """Return the newest state of `source`."""
    if isinstance(source, State):
        return source
    directory = directory_of(source)
    assert directory is not None
    return directory.poll()


def events_of(source: Source) -> list[ev.Event]:
    """Return the whole journal of `source`.

    Raises
    ------
    InputError
        For a bare state, which holds no single trials.
    """
    directory = directory_of(source)
    if directory is None:
        raise InputError("a state holds no single trials; pass the session or its run directory")
    try:
        return journal.read(directory.journal)[0]
    except RunError:  # damaged lines are passed over, as in the state
        raw, _ = lines.read(directory.journal)
        manifest = directory.manifest
        kept = salvage(initial(manifest.tasks, manifest.choices), raw).kept
        return [ev.decode(line) for line in kept]


def names_of(sources: Sequence[Source]) -> list[str]:
    """Return a different name for each source: the run's folder, numbered where two are alike."""
    names: list[str] = []
    for number, source in enumerate(sources, 1):
        directory = directory_of(source)
        name = directory.path.resolve().name if directory else f"run {number}"
        names.append(name if name not in names else f"{name} ({number})")
    return names
