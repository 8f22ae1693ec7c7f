"""Runs made of other runs: what they share when they read their sources and write themselves."""

from __future__ import annotations

import contextlib
import dataclasses
import gzip
import shutil
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from autotune_nb.errors import RunError
from autotune_nb.run import database, journal, lines
from autotune_nb.run import events as ev
from autotune_nb.run.database import RECORD_FILE, WORKLOAD_FILE, StoredRecord
from autotune_nb.run.directory import RunDirectory, prepare
from autotune_nb.run.manifest import Manifest
from autotune_nb.run.salvage import restored, salvage
from autotune_nb.run.state import initial

_MAX_LOG_BYTES = 2 << 30  # about a million records
_GONE = "measured, but its record is gone"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """All that a run has measured.

    Attributes
    ----------
    events
        Its events; each trial with a result has its record.
    records
        Its records by digest, in the order of the file.
    """

    events: list[ev.Event]
    records: dict[str, StoredRecord]

    @property
    def trials(self) -> list[ev.TrialDone]:
        """The trials, in their order."""
        return [event for event in self.events if isinstance(event, ev.TrialDone)]


def unpacked(path: Path) -> bytes:
    """Return the content of a file made elsewhere, decompressed if it is gzipped.

    Raises
    ------
    RunError
        If it cannot be read, or is larger than any log.
    """
    try:
        with path.open("rb") as raw:
            packed = raw.read(2) == b"\x1f\x8b"
            raw.seek(0)
            # a few MB can decompress to terabytes
            data = (gzip.GzipFile(fileobj=raw) if packed else raw).read(_MAX_LOG_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise RunError(f"{path}: cannot be read ({error}); restore it from a copy") from error
    if len(data) > _MAX_LOG_BYTES:
        raise RunError(
            f"{path}: holds more than {_MAX_LOG_BYTES >> 30} GiB; split it and import each part"
        )
    return data


def account(run: RunDirectory) -> Account:
    """Read a run; nothing is changed in it, and it may be tuned meanwhile.

    What is damaged is passed over as when the run is mended: a trial whose record is gone counts
    as failed, a record without its trial gets one.
    """
    tasks = run.manifest.tasks
    try:
        events = journal.read(run.journal)[0]
    except RunError:
        kept = salvage(initial(tasks, run.manifest.choices), lines.read(run.journal)[0]).kept
        events = [ev.decode(line) for line in kept]
    # second: a record is written before its event
    found = database.read_records(run.path)[0]
    records = {record.digest: record for record in found if 0 <= record.task < len(tasks)}
    events = [_checked(event, records) for event in events]
    trials = [event for event in events if isinstance(event, ev.TrialDone)]
    known = {trial.record for trial in trials}
    spare = [record for name, record in records.items() if name not in known]
    if spare:
        last = max((event.used_s for event in events), default=0.0)
        near = ev.TrialDone(
            time=events[-1].time if events else run.manifest.created,
            used_s=last,
            trial=0,
            round=max([1, *(e.round for e in events if isinstance(e, ev.RoundStarted))]),
            task=0,
            candidate="",
        )
        events += [restored(r, number, near) for number, r in enumerate(spare, len(trials) + 1)]
    return Account(events=events, records=records)


def _checked(event: ev.Event, records: dict[str, StoredRecord]) -> ev.Event:
    if not isinstance(event, ev.TrialDone) or event.latency_s is None or event.record in records:
        return event
    # an imported log of another tuner has results without records
    if not event.record:
        return event
    return dataclasses.replace(
        event, latency_s=None, latencies_s=(), error_kind="lost", error=_GONE, record=""
    )


def write(
    destination: str | Path,
    manifest: Manifest,
    source: RunDirectory,
    records: Sequence[StoredRecord],
    events: Sequence[ev.Event],
) -> RunDirectory:
    """Write a new run, whole or not at all.

    Parameters
    ----------
    destination
        The run directory to make.
    manifest
        What it is about.
    source
        The run whose network and workloads it has.
    records, events
        What it holds.

    Raises
    ------
    RunError
        If `destination` is in use or cannot be written.
    """
    with new_directory(destination) as directory:
        copy_files(source.path, directory, under="network")
        if (source.path / WORKLOAD_FILE).exists():
            lines.append(directory / WORKLOAD_FILE, database.read_workloads(source.path))
        if records:
            lines.append(directory / RECORD_FILE, [record.line for record in records])
        journal.append(directory / journal.FILE, events, sync=True)
        manifest.write(directory)  # last: a directory without a manifest is no run
        return RunDirectory(directory)


@contextlib.contextmanager
def new_directory(destination: str | Path) -> Iterator[Path]:
    """Make the directory of a new run; if what follows fails, take away what was written.

    Raises
    ------
    RunError
        If it is in use, or the disk does not take what is written to it.
    """
    existed = Path(destination).exists()
    directory = prepare(destination)
    try:
        yield directory
    except BaseException as error:
        with contextlib.suppress(OSError):
            for entry in directory.iterdir():
                if entry.is_dir() and not entry.is_symlink():
                    shutil.rmtree(entry)
                else:
                    entry.unlink()
            if not existed:
                directory.rmdir()
        if isinstance(error, OSError):
            raise RunError(
                f"{directory}: cannot be written ({error.strerror or error}); free some space or "
                "choose another directory"
            ) from error
        raise


def files(directory: Path, under: str = "") -> list[Path]:
    """Return the regular files of a run or of a folder in it, sorted.

    Raises
    ------
    RunError
        If there is a link, or anything else that is no plain file: what it leads to may be no
        part of the run.
    """
    found = []
    for path in sorted((directory / under).rglob("*")):
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            raise RunError(
                f"{path}: is a link or no plain file; put a copy of what it stands for in its place"
            )
        if path.is_file():
            found.append(path)
    return found


def copy_files(source: Path, destination: Path, under: str = "") -> None:
    """Copy the regular files of a run or of a folder in it to the same place in another."""
    for path in files(source, under):
        target = destination / path.relative_to(source)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
