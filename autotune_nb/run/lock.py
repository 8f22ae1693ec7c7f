"""The run's lock: one writer at a time, held by the operating system, with a heartbeat."""

from __future__ import annotations

import dataclasses
import errno
import fcntl
import json
import os
import socket
import time
from pathlib import Path

from filelock import FileLock, Timeout

from autotune_nb.errors import RunError, RunLockedError
from autotune_nb.run import lines

_FILE = "lock"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """Who holds (or last held) a run's lock.

    Attributes
    ----------
    alive
        True while the operating system says that the lock is held.
    pid, host
        The process, as it wrote itself down; None if unknown.
    heartbeat
        When it last gave a sign of life, in seconds since the Unix epoch; None if never.
    """

    alive: bool
    pid: int | None = None
    host: str | None = None
    heartbeat: float | None = None


def claim_new(directory: Path) -> None:
    """Make the lock file of a new run.

    Raises
    ------
    RunError
        If another process has just made it.
    OSError
        If it cannot be made.
    """
    try:
        (directory / _FILE).touch(exist_ok=False)
    except FileExistsError:
        raise RunError(
            f"{directory}: another process is making a run here; choose another directory"
        ) from None


class RunLock:
    """The lock of one run directory.

    The operating system releases it when its holder dies, so a stale lock cannot exist. The holder
    is written to a file of its own beside it, whose modification time is the heartbeat.
    """

    def __init__(self, directory: Path) -> None:
        self._path = directory / _FILE
        self._holder_path = directory / "lock.holder"
        # whoever closes the run may be another thread than the one that opened it
        self._lock = FileLock(self._path, thread_local=False)

    def acquire(self) -> None:
        """Take the lock.

        Raises
        ------
        RunLockedError
            If another process has it.
        RunError
            If the directory cannot be written to.
        """
        try:
            # not 0: a reader that asks who holds the lock shares it for an instant
            self._lock.acquire(timeout=0.5, poll_interval=0.02)
        except Timeout:
            holder = self.holder()
            who = f"process {holder.pid} on {holder.host}" if holder.pid else "another process"
            raise RunLockedError(
                f"{self._path.parent}: {who} is tuning this run; watch it with 'autotune-nb watch "
                f"{self._path.parent}' or end it with 'autotune-nb stop {self._path.parent}'"
            ) from None
        except OSError as error:
            raise RunError(
                f"{self._path.parent}: cannot lock the run ({error.strerror}); make the directory "
                "writable, or copy it and tune the copy"
            ) from error
        value = {"pid": os.getpid(), "host": socket.gethostname(), "started": time.time()}
        try:
            lines.replace(self._holder_path, json.dumps(value).encode(), sync=False)
        except OSError as error:
            self._lock.release()
            raise RunError(
                f"{self._holder_path}: cannot be written ({error.strerror}); free some space or "
                "make the directory writable"
            ) from error

    def beat(self) -> None:
        """Give a sign of life."""
        try:
            os.utime(self._holder_path)
        except OSError:  # a full or vanished disk must not end the tuning
            return

    def release(self) -> None:
        """Give the lock back; does nothing if it is not held."""
        self._lock.release()

    def holder(self) -> Holder:
        """Tell who holds the lock, without disturbing the holder or other readers."""
        alive = self._lock.is_locked or self._held_elsewhere()
        try:
            value = json.loads(self._holder_path.read_text())
            beat = self._holder_path.stat().st_mtime
            return Holder(alive=alive, pid=value["pid"], host=value["host"], heartbeat=beat)
        except (OSError, ValueError, KeyError, TypeError):
            return Holder(alive=alive)

    def _held_elsewhere(self) -> bool:
        # FileLock can only ask by taking the lock, and then two readers at once take each other for
        # a tuner. It uses flock, which a file opened for reading can ask for a share of.
        try:
            descriptor = os.open(self._path, os.O_RDONLY)
        except OSError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError as error:
            return error.errno in (errno.EACCES, errno.EAGAIN)
        finally:
            os.close(descriptor)  # gives the share back
        return False
