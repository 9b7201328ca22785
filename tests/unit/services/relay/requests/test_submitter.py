"""What the relay tells others is durable before: a request to its client, a dispatch to an ingestor."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from dexorder_protos.dexorder.ingest.v1 import ingest_pb2 as ingest
from dexorder_relay import engine
from dexorder_relay.store.writer import WriterThread
from tests.unit.services.relay.harness import suite


def stored(folder: Path, table: str) -> list[str]:
    """Return the ids that another process finds in a table of the relay's file."""
    column = {"requests": "request_id", "dispatches": "dispatch_id"}[table]
    with closing(sqlite3.connect(folder / "relay.db")) as connection:
        return [found for (found,) in connection.execute(f"SELECT {column} FROM {table}")]


@pytest.fixture
def hold_back(monkeypatch: pytest.MonkeyPatch) -> Callable[[], tuple[threading.Event, threading.Event]]:
    """Return a function that holds back every commit; its events: one has been reached, all are let through."""
    monkeypatch.setattr(engine, "TICK_SECONDS", 3_600)  # nothing else writes
    reached, released, run = threading.Event(), threading.Event(), WriterThread._run

    def held_back(writer: WriterThread, group: list[Any]) -> None:
        if any(work.writes for work in group):
            reached.set()
            assert released.wait(60)
        run(writer, group)

    def hold() -> tuple[threading.Event, threading.Event]:
        monkeypatch.setattr(WriterThread, "_run", held_back)
        return reached, released

    return hold


async def test_queued_is_on_disk_before_it_is_answered(tmp_path: Path, hold_back: Any) -> None:
    async with suite(tmp_path) as s:
        await s.submit("before", 0, 10)  # what the relay writes at its start is on disk then, and is not what is held
        reached, released = hold_back()
        answer = asyncio.ensure_future(s.submit("r", 0, 10))
        assert await asyncio.to_thread(reached.wait, 60)
        answered, _ = await asyncio.wait({answer}, timeout=0.3)
        on_disk = stored(tmp_path, "requests")
        released.set()
        assert not answered and on_disk == ["before"]
        assert (await answer).status == ingest.SubmitResponse.QUEUED
        assert stored(tmp_path, "requests") == ["before", "r"]


async def test_a_dispatch_is_on_disk_before_it_is_sent(tmp_path: Path, hold_back: Any) -> None:
    async with suite(tmp_path) as s:
        await s.submit("r", 0, 10)
        reached, released = hold_back()
        ingestor = await s.offering()
        assert await asyncio.to_thread(reached.wait, 60)
        dispatch = asyncio.ensure_future(ingestor.take())
        received, _ = await asyncio.wait({dispatch}, timeout=0.3)
        on_disk = stored(tmp_path, "dispatches")
        released.set()
        assert not received and on_disk == []
        sent = await dispatch
        assert stored(tmp_path, "dispatches") == [sent.job_id]
