"""A file of state that was emptied, cut or replaced says so, and so does one with a damaged page."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from dexorder_common.storage.durable_sqlite import open_durable
from dexorder_common.storage.state_checks import Generation, check_pages, describe_loss

STEPS = ("CREATE TABLE t (n INTEGER PRIMARY KEY, text TEXT);",)


def opened(path: Path) -> sqlite3.Connection:
    return open_durable(path, STEPS, newer="{} {}")


def number_of(db: sqlite3.Connection) -> int:
    return int(db.execute("SELECT coalesce(max(n), 0) FROM t").fetchone()[0])


def filled(path: Path, numbers: range) -> None:
    """Commit rows one by one, and end without a checkpoint, as a kill does."""
    db, generation = opened(path), Generation(path)
    db.execute("PRAGMA wal_autocheckpoint = 0")
    for number in numbers:
        db.execute("INSERT INTO t VALUES (?, ?)", (number, "x" * 500))
        generation.note(number)
    for each in (path, Path(f"{path}-wal")):
        shutil.copy(each, each.with_name(f"{each.name}.killed"))
    db.close()
    generation.close()
    for each in (path, Path(f"{path}-wal")):
        each.with_name(f"{each.name}.killed").replace(each)


def emptied(path: Path) -> None:
    path.write_bytes(b"")
    Path(f"{path}-wal").unlink()


def gone(path: Path) -> None:
    path.unlink()
    Path(f"{path}-wal").unlink()


def cut(path: Path) -> None:
    wal = Path(f"{path}-wal")
    wal.write_bytes(wal.read_bytes()[: wal.stat().st_size // 2])


def changed_bit(path: Path) -> None:
    wal = Path(f"{path}-wal")
    data = bytearray(wal.read_bytes())
    data[len(data) // 2] ^= 1
    wal.write_bytes(data)


def without_log(path: Path) -> None:
    Path(f"{path}-wal").unlink()


@pytest.mark.parametrize("damage", [emptied, gone, cut, changed_bit, without_log])
def test_what_was_committed_and_is_gone_is_told(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    path = tmp_path / "state.db"
    filled(path, range(1, 41))
    assert loss_of(path, tmp_path / "sound") == ""
    damage(path)
    assert loss_of(path, tmp_path / "damaged").startswith(f"{tmp_path}/damaged/state.db is behind its newest commit")


def test_an_older_copy_is_told_and_a_kill_before_the_note_is_not(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    filled(path, range(1, 11))
    shutil.copytree(tmp_path, tmp_path.with_name("older"))
    filled(path, range(11, 21))
    (tmp_path / "state.db.generation").write_bytes(b"%020d" % 19)
    assert loss_of(path, tmp_path / "killed") == "", "the file is ahead"
    for name in ("state.db", "state.db-wal"):
        shutil.copy(tmp_path.with_name("older") / name, tmp_path / name)
    assert "(10 of 19)" in loss_of(path, tmp_path / "rolled-back")


def loss_of(path: Path, folder: Path) -> str:
    """Return what a start on a copy of the files says."""
    folder.mkdir()
    for each in path.parent.glob("state.db*"):
        shutil.copy(each, folder)
    copy = folder / path.name
    db, generation = opened(copy), Generation(copy)
    try:
        return describe_loss(copy, number_of(db), generation.known())
    finally:
        db.close()
        generation.close()


@pytest.mark.parametrize("text", [b"", b"12", b"x" * 20, b"%020d more" % 7])
def test_a_number_outside_that_is_no_number_counts_as_none(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "state.db.generation").write_bytes(text)
    generation = Generation(tmp_path / "state.db")
    assert generation.known() == (7 if b"more" in text else 0)
    generation.close()


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    """Return a file with a damaged page behind many sound ones."""
    path = tmp_path / "state.db"
    db = opened(path)
    db.execute("BEGIN")
    db.executemany("INSERT INTO t VALUES (?, ?)", [(n, "x" * 40) for n in range(30_000)])
    db.execute("COMMIT")
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    db.close()
    data = bytearray(path.read_bytes())
    page = len(data) // 4096 - 5
    data[page * 4096 : (page + 1) * 4096] = b"\xff" * 4096
    path.write_bytes(data)
    return path


def test_a_damaged_page_is_found_at_the_start(damaged: Path) -> None:
    with pytest.raises(sqlite3.DatabaseError, match=r"it is damaged|malformed"):
        opened(damaged)


def test_a_large_file_is_served_without_the_check(damaged: Path) -> None:
    db = sqlite3.connect(damaged)
    check_pages(db, most_bytes=2**20)
    assert db.execute("SELECT text FROM t WHERE n = 5").fetchone() == ("x" * 40,)
    db.close()
