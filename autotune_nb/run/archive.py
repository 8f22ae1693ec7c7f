"""A run as one file to pass on, and back; or as a plain database of TVM.

The file is a gzipped tar archive of plain files in one folder. An archive may come from anybody:
every member is checked before a byte of it is written, and nothing is written outside of the new
run's directory.
"""

from __future__ import annotations

import gzip
import io
import os
import shutil
import tarfile
import zlib
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from autotune_nb.errors import RunError
from autotune_nb.run import checkpoint, database, derived, journal
from autotune_nb.run.database import RECORD_FILE, WORKLOAD_FILE
from autotune_nb.run.directory import RunDirectory
from autotune_nb.run.manifest import FILE as MANIFEST_FILE

SUFFIXES = (".tar.gz", ".tgz")
# Of the process that has the run, or a cache that is trusted because only a tuner writes it.
_NOT_PASSED_ON = frozenset({"lock", "lock.holder", checkpoint.FILE})
_MAX_MEMBERS = 10_000
_MAX_BYTES = 32 << 30
_MAX_DEPTH = 8
_READ_BYTES = 1 << 20  # at a time; no header of an honest archive is as long
_HEADERS_BYTES = 64 << 20  # of all members together, and the end of the archive


def export_run(source: str | Path, output: str | Path) -> Path:
    """Write a whole run to one archive (``….tar.gz``), or to a new directory.

    The run may be tuned meanwhile; what it holds at this moment is written. The same run gives the
    same archive, to the byte.

    Raises
    ------
    RunError
        If `source` is no run, holds links, or `output` exists already or cannot be written.
    """
    run = RunDirectory(source)
    found = {p.relative_to(run.path).as_posix(): p for p in derived.files(run.path)}
    # The journal names records, so it is read before them; without a manifest there is no run.
    order = {journal.FILE: 0, MANIFEST_FILE: 2}
    names = sorted(filter(_belongs, found), key=lambda name: (order.get(name, 1), name))
    return _write(Path(output), run, {name: found[name] for name in names})


def export_database(source: str | Path, output: str | Path) -> Path:
    """Write a run's tuning records as a plain database of TVM, to an archive or a new directory.

    ``tvm.s_tir.meta_schedule.database.JSONDatabase`` opens the two files.

    Raises
    ------
    RunError
        If `source` is no run or has no such database, or `output` exists already or cannot be
        written.
    """
    run = RunDirectory(source)
    workloads = database.read_workloads(run.path)
    if not workloads:
        raise RunError(f"{run.path}: has no {WORKLOAD_FILE}, so there is no database to export")
    # TVM opens no database with a damaged line, or with a record of a workload that is not there
    records = [r for r in database.read_records(run.path)[0] if 0 <= r.task < len(workloads)]
    texts = {WORKLOAD_FILE: workloads, RECORD_FILE: [record.line for record in records]}
    contents: dict[str, Path | bytes] = {
        name: "".join(line + "\n" for line in text).encode() for name, text in texts.items()
    }
    return _write(Path(output), run, contents)


def is_archive(path: Path) -> bool:
    """Tell whether a file is a gzipped tar archive, by its first bytes."""
    try:
        with path.open("rb") as raw, gzip.GzipFile(fileobj=raw) as file:
            return file.read(512)[257:262] == b"ustar"
    except (OSError, EOFError, zlib.error):
        return False


def import_archive(
    source: str | Path, destination: str | Path, *, max_bytes: int = _MAX_BYTES
) -> RunDirectory:
    """Unpack an archive that `export_run` wrote as a new run, whole or not at all.

    Parameters
    ----------
    source
        The archive.
    destination
        The run directory to make.
    max_bytes
        How large the run may be.

    Raises
    ------
    RunError
        If the archive is damaged, is no run, or has a member that does not belong there: a link, a
        device, a path that leads elsewhere, a name with control characters, or too much of any.
    """
    source = Path(source)
    try:
        opened = source.open("rb")
    except OSError as error:
        raise RunError(
            f"{source}: cannot be read ({error.strerror}); pass an archive that 'autotune-nb "
            "export' wrote"
        ) from error
    with opened as raw, derived.new_directory(destination) as directory:
        room = min(max_bytes, shutil.disk_usage(directory).free)
        try:
            with gzip.GzipFile(fileobj=raw) as packed:
                reader = _Bounded(packed, room + _HEADERS_BYTES)
                with tarfile.open(fileobj=reader, mode="r:") as archive:
                    _unpack(source, archive, directory, room)
                while reader.read(_READ_BYTES):  # to its end, where its checksum is
                    pass
        except (tarfile.TarError, zlib.error, EOFError, gzip.BadGzipFile, ValueError) as error:
            raise RunError(f"{source}: is a damaged archive ({error}); get it anew") from error
        if not (directory / MANIFEST_FILE).is_file():
            raise RunError(
                f"{source}: holds no {MANIFEST_FILE}, so it is no run; pass an archive that "
                "'autotune-nb export' wrote"
            )
        try:
            run = RunDirectory(directory)
            run.poll()
        except RunError as error:
            raise RunError(f"{source}: the run in it cannot be opened: {error}") from error
        return run


def _belongs(name: str) -> bool:
    """Tell whether a file of a run is passed on; the name is relative to the run."""
    parts = name.split("/")
    return name not in _NOT_PASSED_ON and not any(part.startswith(".") for part in parts)


def _write(output: Path, run: RunDirectory, contents: Mapping[str, Path | bytes]) -> Path:
    if not output.name.endswith(SUFFIXES):
        with derived.new_directory(output) as directory:
            for name, content in contents.items():
                target = directory / name
                target.parent.mkdir(parents=True, exist_ok=True)
                with target.open("xb") as file:
                    _copy(content, file)
            if MANIFEST_FILE not in contents:  # a database, which needs no lock
                (directory / "lock").unlink(missing_ok=True)
        return output
    if output.exists():
        raise RunError(f"{output}: exists already; remove it or choose another name")
    draft = output.with_name(f".{output.name}.{os.getpid()}.new")
    folder = run.path.resolve().name
    try:
        # no names, times and owners of this machine: the same run gives the same bytes
        with (
            draft.open("xb") as raw,
            gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=0) as packed,
            tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
        ):
            for name, content in contents.items():
                _add(archive, f"{folder}/{name}", content)
        draft.replace(output)
    except OSError as error:
        raise RunError(
            f"{output}: cannot be written ({error.strerror or error}); free some space or choose "
            "another place"
        ) from error
    finally:
        draft.unlink(missing_ok=True)
    return output


def _add(archive: tarfile.TarFile, name: str, content: Path | bytes) -> None:
    member = tarfile.TarInfo(name)
    member.mode = 0o644
    if isinstance(content, bytes):
        member.size = len(content)
        archive.addfile(member, io.BytesIO(content))
        return
    with content.open("rb") as file:
        member.size = os.fstat(file.fileno()).st_size  # what is appended later is left out
        archive.addfile(member, file)


def _copy(content: Path | bytes, file: BinaryIO) -> None:
    if isinstance(content, bytes):
        file.write(content)
        return
    with content.open("rb") as origin:
        shutil.copyfileobj(origin, file)


class _Bounded(io.RawIOBase):
    """What `tarfile` reads from: refuses to read much at once, or too much in all.

    A header may claim to be gigabytes long, and `tarfile` would take them into memory.
    """

    def __init__(self, file: gzip.GzipFile, limit: int) -> None:
        self._file = file
        self._limit = limit

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= _READ_BYTES:
            raise ValueError("a header in it is too long")
        if self._file.tell() > self._limit:
            raise ValueError("it is longer than its members")
        return self._file.read(size)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        if whence != os.SEEK_SET or not self.tell() <= offset <= self._limit:
            raise ValueError("its members do not follow each other")
        return self._file.seek(offset)

    def tell(self) -> int:
        return self._file.tell()

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True


def _unpack(source: Path, archive: tarfile.TarFile, directory: Path, room: int) -> None:
    folder: str | None = None
    for count, member in enumerate(archive, 1):
        if count > _MAX_MEMBERS:
            raise RunError(f"{source}: has more than {_MAX_MEMBERS} members; that is no run")
        parts = _checked(source, member)
        if folder not in (None, parts[0]):
            raise RunError(f"{source}: has more than one folder; that is no run of ours")
        folder = parts[0]
        archive.members.clear()  # type: ignore[attr-defined]
        if member.isdir():
            continue
        room -= member.size
        if room < 0:
            raise RunError(f"{source}: unpacks to more than may be written here; free some space")
        name = "/".join(parts[1:])
        if not name or not _belongs(name):
            raise RunError(f"{source}: its member {member.name!r} belongs to no run that is passed "
                           "on; get the archive anew")  # fmt: skip
        target = directory.joinpath(*parts[1:])
        content = archive.extractfile(member)
        assert content is not None
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with content, target.open("xb") as file:
                shutil.copyfileobj(content, file, 1 << 16)
        except (FileExistsError, NotADirectoryError, IsADirectoryError):
            raise RunError(f"{source}: has two members {member.name!r}; get it anew") from None
        if target.stat().st_size != member.size:
            raise RunError(f"{source}: ends in the middle of {member.name!r}; get it anew")


def _checked(source: Path, member: tarfile.TarInfo) -> tuple[str, ...]:
    """Return the parts of a member's path, or raise RunError if it may not be written."""
    name = member.name
    if not (member.isreg() or member.isdir()) or member.issparse():
        raise RunError(
            f"{source}: its member {name!r} is a link or no plain file; nothing of it is unpacked"
        )
    parts = PurePosixPath(name).parts
    safe = (
        0 < len(parts) <= _MAX_DEPTH
        and name == "/".join(parts)
        and name.isprintable()
        and not {"..", ".", "/"} & set(parts)
        and not any(c in name for c in "\\:")
        and all(len(part.encode("utf-8", "replace")) <= 255 for part in parts)
    )
    if not safe:
        raise RunError(
            f"{source}: its member {name!r} has a name that may lead out of the run; nothing of "
            "it is unpacked"
        )
    return parts
