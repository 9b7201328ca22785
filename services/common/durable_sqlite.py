"""SQLite files whose commits are on disk: WAL with ``synchronous=FULL``, so a commit is an fsync."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Sequence
from pathlib import Path


def open_durable(
    path: Path, steps: Sequence[str], *, newer: str, private: bool = False, exclusive: bool = False
) -> sqlite3.Connection:
    """Open or make a file, and bring its schema up to date.

    Transactions are begun and committed by the caller; any one thread at a time may use the connection.

    Args:
        steps: SQL from each version of the schema to the next; the file's ``user_version`` counts those it has had.
        newer: What to say of a file with another version; given that version and the latest one there is.
        private: Only the file's owner may read it, and those that SQLite puts beside it.
        exclusive: No other process may use it meanwhile; one that already does is not waited for.

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
        (version,) = db.execute("PRAGMA user_version").fetchone()
        if not 0 <= version <= len(steps):
            raise ValueError(newer.format(version, len(steps)))
        for number, step in enumerate(steps[version:], start=version + 1):
            db.executescript(f"BEGIN; {step} PRAGMA user_version = {number}; COMMIT;")
    except BaseException:
        db.close()
        raise
    return db
