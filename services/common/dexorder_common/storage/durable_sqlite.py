"""SQLite files with durable commits: WAL with ``synchronous=FULL``, so that every commit is an fsync.

SQLite before 3.51.3 may damage a file in WAL mode when one connection starts the log again while another one commits or
checkpoints (its WAL-reset bug). There, the connection for checkpoints and the one that writes take turns, and a file
with writers in several processes has a rollback journal instead of a WAL.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TypeVar

from dexorder_common.storage.state_checks import check_pages

T = TypeVar("T")
CHECKPOINT_SECONDS = 0.25
SPACE_SECONDS = 0.5
"""Time between attempts to write to a disk that is full."""
RESET_IS_SAFE = sqlite3.sqlite_version_info >= (3, 51, 3)
"""Whether SQLite is without the WAL-reset bug."""
_LARGE_WAL_PAGES = 16_000
"""64 MB. With SQLite's default of 1,000 pages, one commit in a few large ones waits 20 ms for a checkpoint."""


def open_durable(
    path: Path,
    steps: Sequence[str],
    *,
    newer: str,
    private: bool = False,
    exclusive: bool = False,
    large_wal: bool = False,
) -> sqlite3.Connection:
    """Open or create a file and migrate its schema.

    The caller starts and commits transactions; one thread at a time may use the connection.

    Args:
        steps: SQL from each version of the schema to the next; the file's ``user_version`` counts the applied steps.
        newer: Error text for a file with an unknown version, formatted with that version and the latest known one.
        private: Only the owner may read the file and the files that SQLite creates beside it.
        exclusive: Keep other processes out; fail at once if one uses the file.
        large_wal: Let the WAL grow to 64 MB before a commit runs a checkpoint; see `background_checkpoints`.

    Raises:
        OSError: The file can't be opened.
        ValueError: A newer program has written it.
        sqlite3.Error: It is not an SQLite file, damaged, or in use (``database is locked``).
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if private:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))  # SQLite creates its other files with the same mode
    db = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=0.2 if exclusive else 30)
    try:
        if exclusive:
            db.execute("PRAGMA locking_mode = EXCLUSIVE")  # before WAL mode, which then takes the lock and keeps it
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = FULL")
        if large_wal:
            db.execute(f"PRAGMA wal_autocheckpoint = {_LARGE_WAL_PAGES}")
        check_pages(db)
        migrate(db, steps, newer=newer)
    except BaseException:
        db.close()
        raise
    return db


def migrate(db: sqlite3.Connection, steps: Sequence[str], *, newer: str) -> None:
    """Apply the steps that a file does not have yet; see `open_durable`."""
    (version,) = db.execute("PRAGMA user_version").fetchone()
    if not 0 <= version <= len(steps):
        raise ValueError(newer.format(version, len(steps)))
    for number, step in enumerate(steps[version:], start=version + 1):
        db.executescript(f"BEGIN; {step} PRAGMA user_version = {number}; COMMIT;")


def turns() -> AbstractContextManager[object]:
    """Return a lock that the connections of a file hold while they write to it or checkpoint."""
    return nullcontext() if RESET_IS_SAFE else threading.Lock()


class DiskSpace:
    """Repetition of writes to a full disk, until they succeed or until ``give_up``.

    One thread writes. A write must be one transaction, which is rolled back if it fails.

    Attributes:
        on_change: Called in that thread, with whether the disk is full.
    """

    def __init__(self, on_change: Callable[[bool], object] = lambda is_full: None) -> None:
        self.on_change = on_change
        self._given_up = threading.Event()

    def give_up(self) -> None:
        """Let writes fail instead of repeating them; for any thread."""
        self._given_up.set()

    def write(self, attempt: Callable[[], T], while_full: Callable[[], object] | None = None) -> T:
        """Return the result of a write; raise any error except the one of a full disk.

        Args:
            while_full: Called repeatedly between two attempts; it should wait some milliseconds for its work.
        """
        is_full = False
        while True:
            try:
                result = attempt()
            except sqlite3.OperationalError as error:
                code: int = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)  # none if Python itself raised it
                if code & 0xFF != sqlite3.SQLITE_FULL or self._given_up.is_set():
                    raise
            else:
                if is_full:
                    self.on_change(False)
                return result
            if not is_full:
                is_full = True
                self.on_change(True)
            until_s = time.monotonic() + SPACE_SECONDS
            while while_full is not None and time.monotonic() < until_s and not self._given_up.is_set():
                while_full()
            self._given_up.wait(max(0.0, until_s - time.monotonic()))


def shared_journal_mode() -> str:
    """Return the journal mode of a file with writers in several processes, which can't take turns.

    A journal that is truncated is synced at a commit; one that is deleted is not, so that a power cut may undo it. A
    commit of the catalog takes 5.8 ms with it and 1.2 ms with a WAL (SQLite 3.40.1, a busy disk).
    """
    return "WAL" if RESET_IS_SAFE else "TRUNCATE"


def leave_unsafe_wal(path: Path) -> None:
    """Give a file of several processes a rollback journal where a WAL is unsafe, unless one of them uses it now."""
    if path.is_file() and not RESET_IS_SAFE:
        with suppress(sqlite3.OperationalError), closing(sqlite3.connect(path, timeout=0.1)) as db:
            db.execute("PRAGMA journal_mode = DELETE")


@contextmanager
def background_checkpoints(path: Path, turn: AbstractContextManager[object] | None = None) -> Iterator[None]:
    """Run checkpoints in a thread until the block ends, so that commits seldom have to.

    Errors of the file are left for the next commit to report.

    Args:
        turn: Held during each checkpoint; the writer holds it during each transaction (see ``turns``).
    """
    stopping = threading.Event()

    def run() -> None:
        with closing(sqlite3.connect(path, isolation_level=None)) as db:
            while not stopping.wait(CHECKPOINT_SECONDS):
                with suppress(sqlite3.Error), turn or nullcontext():
                    db.execute("PRAGMA wal_checkpoint(PASSIVE)")

    thread = threading.Thread(target=run, name="checkpoints", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join()
