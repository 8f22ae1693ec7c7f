"""The run directory: opened for reading by anybody, for writing by the one who holds its lock."""

from __future__ import annotations

from pathlib import Path

from autotune_nb.errors import RunError, TuningFailed
from autotune_nb.run import checkpoint, database, journal, requests
from autotune_nb.run import events as ev
from autotune_nb.run.lock import Holder, RunLock, claim_new
from autotune_nb.run.manifest import FILE as MANIFEST_FILE
from autotune_nb.run.manifest import Manifest
from autotune_nb.run.recovery import mend
from autotune_nb.run.state import State, fold, initial


class RunDirectory:
    """Paths and manifest of one run, and its state as of the last `poll`.

    Parameters
    ----------
    path
        The run directory.

    Raises
    ------
    RunError
        If it is no run directory.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.manifest = Manifest.read(self.path)
        self._lock = RunLock(self.path)
        blank = initial(self.manifest.tasks, self.manifest.choices)
        self._follower = journal.Follower(self.journal, blank)

    @property
    def journal(self) -> Path:
        """The append-only events."""
        return self.path / journal.FILE

    @property
    def requests(self) -> Path:
        """The append-only wishes."""
        return self.path / "requests.jsonl"

    @property
    def network(self) -> Path:
        """The folder with the Relax module and its weights."""
        return self.path / "network"

    @property
    def artifacts(self) -> Path:
        """The folder for compiled libraries, evaluations and reports; made if missing."""
        folder = self.path / "artifacts"
        folder.mkdir(exist_ok=True)
        return folder

    @property
    def tuner_log(self) -> Path:
        """What the tuner process printed: empty unless something went wrong."""
        return self.path / "tuner.log"

    def poll(self) -> State:
        """Read what is new in the journal and return the state."""
        return self._follower.poll()

    def holder(self) -> Holder:
        """Tell who is tuning the run, if anybody."""
        return self._lock.holder()


def require_free(path: str | Path) -> None:
    """Raise RunError if `path` cannot be the place of a new run; change nothing."""
    directory = Path(path)
    try:
        if (directory / MANIFEST_FILE).exists():
            raise RunError(
                f"{directory}: holds a run already; continue it with 'autotune-nb resume "
                f"{directory}' or choose another directory"
            )
        if directory.exists() and not directory.is_dir():
            raise RunError(f"{directory}: is a file; choose another path for the run")
        if directory.exists() and any(directory.iterdir()):
            raise RunError(f"{directory}: is not empty; choose another directory for the run")
    except OSError as error:
        raise _cannot_be_made(directory, error) from error


def prepare(path: str | Path) -> Path:
    """Return `path` as the place of a new run: made if missing.

    Raises
    ------
    RunError
        If something is there already, or it cannot be written to.
    """
    directory = Path(path)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        require_free(directory)
        claim_new(directory)  # of two that make a run here at once, one goes on
    except (FileExistsError, NotADirectoryError):
        raise RunError(f"{directory}: is a file; choose another path for the run") from None
    except OSError as error:
        raise _cannot_be_made(directory, error) from error
    return directory


def _cannot_be_made(directory: Path, error: OSError) -> RunError:
    return RunError(
        f"{directory}: cannot be made ({error.strerror}); choose a directory you can write to"
    )


class RunWriter:
    """A run opened for writing: holds the lock, has mended what was torn, and appends.

    Raises
    ------
    RunLockedError
        If another process writes.
    RunError
        If the run is read-only or cannot be written to.
    """

    def __init__(self, path: str | Path) -> None:
        self.directory = RunDirectory(path)
        if self.directory.manifest.read_only:
            raise RunError(
                f"{path}: was {self.directory.manifest.origin} and is read-only; tune the network "
                "in a new directory"
            )
        self._lock = RunLock(self.directory.path)
        # asked of a tuner before this one, whatever the clock says: it may have been put back
        self.earlier_requests = self._requests_so_far()
        self._lock.acquire()
        try:
            manifest = self.directory.manifest
            self.state = initial(manifest.tasks, manifest.choices)
            recovery = mend(self.directory.path, self.state)
            self.state = recovery.state
            self._checkpoint_at = 0
            self.commit(recovery.events)
        except OSError as error:
            self._lock.release()
            raise RunError(
                f"{path}: cannot be mended ({error.strerror}); free some space, or make its files "
                "writable"
            ) from error
        except BaseException:
            self._lock.release()
            raise

    def _requests_so_far(self) -> frozenset[str]:
        path = self.directory.requests
        try:
            return frozenset(request.id for request in requests.read(path)[0])
        except OSError as error:
            raise RunError(
                f"{path}: cannot be read ({error.strerror}); check its permissions"
            ) from error

    def commit(self, events: list[ev.Event], *, sync: bool = False) -> State:
        """Append events to the journal and return the state after them.

        Raises
        ------
        RunError
            If an event cannot follow what came before; then none is written.
        TuningFailed
            If the disk does not take them; then none is in the journal.
        """
        if events:
            state = fold(self.state, events)
            try:
                if sync:  # first: the journal must not speak of what a power failure takes
                    database.sync_records(self.directory.path)
                size = journal.append(self.directory.journal, events, sync=sync)
            except OSError as error:
                raise _unwritable(self.directory.journal, error) from error
            self.state = state
            if checkpoint.due(size, self._checkpoint_at):
                checkpoint.write(self.directory.journal, state)
                self._checkpoint_at = size
        return self.state

    def append_record(self, line: str) -> None:
        """Append one line to TVM's tuning records; do so before its event is committed.

        Raises
        ------
        TuningFailed
            If the disk does not take it; then nothing of it is in the file.
        """
        try:
            database.append_record(self.directory.path, line)
        except OSError as error:
            raise _unwritable(self.directory.path / database.RECORD_FILE, error) from error

    def beat(self) -> None:
        """Give a sign of life to those who look at the lock."""
        self._lock.beat()

    def close(self) -> None:
        """Let go of the run."""
        self._lock.release()

    def __enter__(self) -> RunWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _unwritable(path: Path, error: OSError) -> TuningFailed:
    return TuningFailed(
        f"{path}: cannot be written to ({error.strerror}); free some space and resume: what was "
        "measured so far is kept"
    )
