"""Checks of a file of state at its start: damaged pages, and lost records.

A file that was emptied, replaced by an older copy, or left without a part of its write-ahead log is a valid file, which
SQLite serves without an error. So a number grows with each commit, in the file and in ``<file>.generation`` beside it.
The number outside is written after the commit, without a sync: it is never ahead of the file, even after a kill, and a
file that is behind it has lost acknowledged records.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import suppress
from pathlib import Path

CHECKED_BYTES = 512 * 2**20
"""Largest file that is checked at a start, which takes some seconds."""
LAST_BACKUP = "last-backup"
"""File of a suite's folder with the path of the newest archive that `dexorder backup` made of it."""
_WIDTH = 20


class Generation:
    """The number outside of a file. One thread uses it."""

    def __init__(self, path: Path) -> None:
        """Open the number of a file, which is created with the first ``note``."""
        self._path = path.with_name(f"{path.name}.generation")
        self._file = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)

    def close(self) -> None:
        """Close it; a second call does nothing, because the descriptor may be another file's by then."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def known(self) -> int:
        """Return the number; 0 without one."""
        text = os.pread(self._file, _WIDTH, 0)
        return int(text) if len(text) == _WIDTH and text.isdigit() else 0

    def note(self, number: int) -> None:
        """Keep the number of a commit that is on disk; without space for it, the one before stays."""
        with suppress(OSError):
            os.pwrite(self._file, b"%0*d" % (_WIDTH, number), 0)


def check_pages(db: sqlite3.Connection, most_bytes: int = CHECKED_BYTES) -> None:
    """Raise sqlite3.DatabaseError if a page is damaged; a file is not checked if that would delay a start."""
    (pages,), (page_bytes,) = (db.execute(f"PRAGMA {name}").fetchone() for name in ("page_count", "page_size"))
    if pages * page_bytes <= most_bytes:
        (found,) = db.execute("PRAGMA quick_check(1)").fetchone()
        if found != "ok":
            raise sqlite3.DatabaseError(f"it is damaged: {' '.join(found.split())}")


def describe_loss(path: Path, found: int, known: int) -> str:
    """Return in one line that a file lacks commits, and what to do; empty if the file is complete."""
    if found >= known:
        return ""
    return (
        f"{path} is behind its newest commit ({found:,} of {known:,}): it was emptied, cut or replaced by an older "
        f"copy, and records acknowledged since are lost; {restore_hint(path)}"
    )


def restore_hint(path: Path) -> str:
    """Return how to get the newest backup of the folder of a file back."""
    folder = path.absolute().parent
    try:
        archive = (folder / LAST_BACKUP).read_text().strip()
    except OSError:
        return "no backup of its folder is known (docs/operations.md, Backup and restore)"
    return f"stop the suite, move {folder} away and run: dexorder restore {archive} --dir {folder}"
