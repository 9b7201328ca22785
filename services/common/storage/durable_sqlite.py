"""SQLite files whose commits are on disk: WAL with ``synchronous=FULL``, so a commit is an fsync."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path

CHECKPOINT_SECONDS = 0.25
_LARGE_WAL_PAGES = 16_000
"""64 MB. SQLite's own 1,000 are there after some large commits, and each time the next one waits 20 ms for the disk."""


def open_durable(
    path: Path,
    steps: Sequence[str],
    *,
    newer: str,
    private: bool = False,
    exclusive: bool = False,
    large_wal: bool = False,
) -> sqlite3.Connection:
    """Open or make a file, and bring its schema up to date.

    Transactions are begun and committed by the caller; any one thread at a time may use the connection.

    Args:
        steps: SQL from each version of the schema to the next; the file's ``user_version`` counts those it has had.
        newer: What to say of a file with another version; given that version and the latest one there is.
        private: Only the file's owner may read it, and those that SQLite puts beside it.
        exclusive: No other process may use it meanwhile; one that already does is not waited for.
        large_wal: Let the WAL grow to 64 MB before a commit moves it to the file; see `checkpoints_aside`.

    Raises:
        OSError: The file can't be opened.
        ValueError: It is of a newer program.
        sqlite3.Error: It is no such file, or damaged, or (``database is locked``) in use.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if private:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))  # SQLite gives its other files the same mode
    db = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=0.2 if exclusive else 30)
    try:
        if exclusive:
            db.execute("PRAGMA locking_mode = EXCLUSIVE")  # before WAL, which takes the lock then and keeps it
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = FULL")
        if large_wal:
            db.execute(f"PRAGMA wal_autocheckpoint = {_LARGE_WAL_PAGES}")
        (version,) = db.execute("PRAGMA user_version").fetchone()
        if not 0 <= version <= len(steps):
            raise ValueError(newer.format(version, len(steps)))
        for number, step in enumerate(steps[version:], start=version + 1):
            db.executescript(f"BEGIN; {step} PRAGMA user_version = {number}; COMMIT;")
    except BaseException:
        db.close()
        raise
    return db


@contextmanager
def checkpoints_aside(path: Path) -> Iterator[None]:
    """Move what is in the WAL to the file in a thread, so that commits seldom have to, until the block ends.

    A trouble with the file is left to who commits.
    """
    stopping = threading.Event()

    def run() -> None:
        with closing(sqlite3.connect(path, isolation_level=None)) as db:
            while not stopping.wait(CHECKPOINT_SECONDS):
                with suppress(sqlite3.Error):
                    db.execute("PRAGMA wal_checkpoint(PASSIVE)")

    thread = threading.Thread(target=run, name="checkpoints", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join()
