"""SQLite files: schema migration, durability, exclusive and private access."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dexorder_common.storage.durable_sqlite import open_durable

STEPS = (
    "CREATE TABLE t (a);",
    "ALTER TABLE t ADD COLUMN b; INSERT INTO t VALUES (1, 2);",
    "INSERT INTO t VALUES (3, 4);",
)
NEWER = "version {}, known up to {}"


def test_each_step_runs_once_and_commits_are_flushed(tmp_path: Path) -> None:
    path = tmp_path / "new" / "x.db"
    for known, rows in ((2, [(1, 2)]), (3, [(1, 2), (3, 4)]), (3, [(1, 2), (3, 4)])):
        db = open_durable(path, STEPS[:known], newer=NEWER)
        assert db.execute("SELECT * FROM t").fetchall() == rows
        assert db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert db.execute("PRAGMA synchronous").fetchone() == (2,)
        db.close()
    with pytest.raises(ValueError, match=r"^version 3, known up to 2$"):
        open_durable(path, STEPS[:2], newer=NEWER)


def test_failed_step_leaves_the_file_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "x.db"
    with pytest.raises(sqlite3.OperationalError, match="nonsense"):
        open_durable(path, [*STEPS[:2], "INSERT INTO t VALUES (5, 6); nonsense;"], newer=NEWER)
    db = open_durable(path, STEPS[:2], newer=NEWER)
    assert db.execute("SELECT * FROM t").fetchall() == [(1, 2)]
    db.close()


@pytest.mark.parametrize("fresh", [True, False])
def test_exclusive_file_is_refused_without_waiting(
    tmp_path: Path, fresh: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    timeouts_s: list[float] = []
    connect = sqlite3.connect

    def recorded(path: Path, *, timeout: float, **options: Any) -> sqlite3.Connection:
        timeouts_s.append(timeout)
        made: sqlite3.Connection = connect(path, timeout=timeout, **options)
        return made

    monkeypatch.setattr(sqlite3, "connect", recorded)
    path = tmp_path / "x.db"
    if not fresh:
        open_durable(path, STEPS, newer=NEWER, exclusive=True).close()
    holder = open_durable(path, STEPS, newer=NEWER, exclusive=True)
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        open_durable(path, STEPS, newer=NEWER, exclusive=True)
    assert max(timeouts_s) < 1, "SQLite's busy timeout"
    reader = f"import sqlite3; sqlite3.connect({str(path)!r}, timeout=0).execute('SELECT * FROM t')"
    other = subprocess.run([sys.executable, "-c", reader], capture_output=True, text=True, check=False)
    assert "database is locked" in other.stderr
    holder.close()
    open_durable(path, STEPS, newer=NEWER, exclusive=True).close()


def test_private_file_is_readable_by_its_owner_only(tmp_path: Path) -> None:
    db = open_durable(tmp_path / "x.db", STEPS, newer=NEWER, private=True)
    db.execute("INSERT INTO t VALUES (7, 8)")
    assert {each.stat().st_mode & 0o777 for each in tmp_path.iterdir()} == {0o600}
    db.close()
