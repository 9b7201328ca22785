"""Connections of one file that take turns, where SQLite's WAL-reset bug could damage it."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import pytest

from dexorder_common.lake.catalog import CatalogSettings
from dexorder_common.lake.sql_catalog import LakeCatalog
from dexorder_common.storage import durable_sqlite
from dexorder_common.storage.durable_sqlite import background_checkpoints, open_durable, shared_journal_mode, turns
from dexorder_gateway.events.delivery.changes import DeliveryChanges, QueuedRow
from dexorder_gateway.events.store import outbox as outboxes
from tests.unit.services.gateway.events.samples import event


def test_old_versions_take_turns_and_others_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (sqlite3.sqlite_version_info >= (3, 51, 3)) == durable_sqlite.RESET_IS_SAFE
    monkeypatch.setattr(durable_sqlite, "RESET_IS_SAFE", False)
    with (turn := turns()):
        assert not turn.acquire(blocking=False)  # type: ignore[attr-defined]
    monkeypatch.setattr(durable_sqlite, "RESET_IS_SAFE", True)
    with (turn := turns()), turn:
        pass


def test_no_checkpoint_runs_during_a_transaction_of_the_outbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(durable_sqlite, "RESET_IS_SAFE", False)
    monkeypatch.setattr(durable_sqlite, "CHECKPOINT_SECONDS", 0.001)
    during = list[bool]()

    class Watched:
        """A turn that says whether the writer's transaction is open when a checkpoint gets it."""

        def __init__(self, turn: Any) -> None:
            self._turn = turn

        def __enter__(self) -> None:
            self._turn.__enter__()
            during.append(outbox._db.in_transaction)

        def __exit__(self, *_: object) -> None:
            self._turn.__exit__(None, None, None)

    outbox = outboxes.open_outbox(tmp_path / "events.db")
    outbox._db.set_trace_callback(lambda sql: time.sleep(0.002 * (sql == "COMMIT")))  # longer than between checkpoints
    with background_checkpoints(tmp_path / "events.db", Watched(outbox.turn)):
        for number in range(50):
            changes = DeliveryChanges()
            changes.accepted.append(QueuedRow(event(f"e{number}"), 1, 2))
            outbox.write(changes, meanwhile=lambda written: None)
        while not during:
            pass
    outbox.close()
    assert during and not any(during)


def test_checkpoints_go_on_without_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(durable_sqlite, "CHECKPOINT_SECONDS", 0.001)
    db = open_durable(tmp_path / "state.db", ("CREATE TABLE t (n);",), newer="{} {}", large_wal=True)
    with background_checkpoints(tmp_path / "state.db"):
        db.execute("INSERT INTO t VALUES (1)")
        with sqlite3.connect(tmp_path / "state.db") as other:
            while other.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()[1:] not in {(n, n) for n in range(100)}:
                pass
        other.close()
    db.close()


@pytest.mark.parametrize(("is_safe", "mode"), [(False, "delete"), (True, "wal")])
def test_a_catalog_of_several_processes_has_no_wal_where_that_is_unsafe(
    is_safe: bool, mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def journal_mode() -> str:
        with closing(sqlite3.connect(tmp_path / "catalog.db")) as db:
            return str(db.execute("PRAGMA journal_mode").fetchone()[0])

    with closing(sqlite3.connect(tmp_path / "catalog.db")) as db:
        assert db.execute("PRAGMA journal_mode = WAL").fetchone() == ("wal",)  # as an earlier version has left it
        db.execute("BEGIN")
        db.execute("SELECT * FROM sqlite_master").fetchall()
        monkeypatch.setattr(durable_sqlite, "RESET_IS_SAFE", is_safe)
        first = CatalogSettings.local(tmp_path).load()
        first.create_namespace("a")
        first.close()
        assert journal_mode() == "wal", "it is in use"
    second = CatalogSettings.local(tmp_path).load()
    second.create_namespace("b")
    with cast(LakeCatalog, second).engine.connect() as connection:
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == 3
    assert journal_mode() == mode and shared_journal_mode() == ("WAL" if is_safe else "TRUNCATE")
