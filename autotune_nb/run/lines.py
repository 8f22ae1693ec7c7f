"""Append-only files of JSON lines: written whole lines at a time, read while they grow, mended."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path


def append(path: Path, lines: Sequence[str], *, sync: bool = False) -> None:
    """Append whole lines to a file in one write.

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
        except OSError:
            os.ftruncate(descriptor, size)
            raise
    finally:
        os.close(descriptor)


def read(path: Path, offset: int = 0) -> tuple[list[bytes], int]:
    """Return the whole lines from `offset` on, and the offset after them.

    A line whose newline is not there yet is left for the next call. A missing file is empty.
    """
    try:
        with path.open("rb") as file:
            file.seek(offset)
            data = file.read()
    except FileNotFoundError:
        return [], offset
    end = data.rfind(b"\n") + 1
    return data[:end].splitlines(), offset + end


def move_torn_tail(path: Path) -> Path | None:
    """Move a last line without a newline to a file beside `path`; return that file, or None.

    Call it only while no other process appends.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    end = data.rfind(b"\n") + 1
    if end == len(data):
        return None
    aside = set_aside(path, data[end:])
    with path.open("rb+") as file:
        file.truncate(end)
    return aside


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


def replace(path: Path, data: bytes) -> None:
    """Write a file so that a reader sees the old content or the new, never a part."""
    draft = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        with draft.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
