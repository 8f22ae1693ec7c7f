"""Append-only files of JSON lines: written whole lines at a time, read while they grow, mended."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

_CHUNK_BYTES = 4 << 20


def append(path: Path, lines: Sequence[str], *, sync: bool = False) -> int:
    """Append whole lines to a file in one write and return its new size.

    Only for a file with one writer: taking back what could not be written whole would take along
    what another has appended meanwhile.

    Parameters
    ----------
    path
        The file; made if missing.
    lines
        Lines without their newline.
    sync
        Also wait until the disk has them.

    Raises
    ------
    OSError
        If they cannot be written whole. What was written of them is taken back, so that the file
        ends with a whole line again.
    """
    data = "".join(line + "\n" for line in lines).encode()
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    try:
        size = os.fstat(descriptor).st_size
        written = 0
        try:
            while written < len(data):
                written += os.write(descriptor, data[written:])
            if sync:
                os.fsync(descriptor)
        except BaseException:  # Ctrl-C between two writes leaves half a line as well
            os.ftruncate(descriptor, size)
            raise
    finally:
        os.close(descriptor)
    return size + written


def read(path: Path, offset: int = 0) -> tuple[list[bytes], int]:
    """Return the whole lines from `offset` on, and the offset after them.

    A line whose newline is not there yet is left for the next call. A missing file is empty.
    """
    try:
        with path.open("rb") as file:
            file.seek(offset)
            parts = list(chunks(file))
    except FileNotFoundError:
        return [], offset
    found = [line for part, _ in parts for line in part]
    return found, parts[-1][1] if parts else offset


def chunks(file: BinaryIO) -> Iterator[tuple[list[bytes], int]]:
    """Yield whole lines from where `file` stands, a few MB at a time, and the offset after them.

    A last line without its newline is left out.
    """
    end = file.tell()
    rest = b""
    while data := file.read(_CHUNK_BYTES):
        cut = data.rfind(b"\n")
        if cut < 0:
            rest += data
            continue
        whole, rest = rest + data[:cut], data[cut + 1 :]
        end += len(whole) + 1
        yield whole.split(b"\n"), end


def mend_tail(path: Path, whole: Callable[[bytes], bool]) -> str:
    """Mend a last line without a newline, and tell what was done to it; '' if nothing had to be.

    A line that is `whole` gets its newline, any other is moved to a file beside `path`. Call it
    only while no other process appends.
    """
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            tail = b""
            while b"\n" not in tail and len(tail) < size:
                step = min(_CHUNK_BYTES, size - len(tail))
                file.seek(size - len(tail) - step)
                tail = file.read(step) + tail
    except FileNotFoundError:
        return ""
    tail = tail[tail.rfind(b"\n") + 1 :]
    if not tail:
        return ""
    if whole(tail):
        append(path, [""])
        return f"{path.name}: its last line lacked its end; completed"
    aside = set_aside(path, tail)
    os.truncate(path, size - len(tail))
    return f"{path.name}: its last line was cut off; moved to {aside.name}"


def set_aside(path: Path, data: bytes) -> Path:
    """Write bytes taken out of `path` to a new file beside it and return that file."""
    stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
    for number in range(1000):
        aside = path.with_name(f"{path.name}.torn-{stamp}-{number}")
        try:
            with aside.open("xb") as file:
                file.write(data)
        except FileExistsError:
            continue
        return aside
    raise OSError(f"{path}: too many torn files beside it; move them away")


def replace(path: Path, data: bytes, *, sync: bool = True) -> None:
    """Write a file so that a reader sees the old content or the new, never a part.

    Without `sync` that does not hold for a machine that loses power.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        with draft.open("wb") as file:
            file.write(data)
            if sync:
                file.flush()
                os.fsync(file.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
