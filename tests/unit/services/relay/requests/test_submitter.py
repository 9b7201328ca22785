"""Submission: a request is durable before its client is answered."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from dexorder_protos.dexorder.ingest.v1 import ingest_pb2 as ingest
from dexorder_relay import engine
from dexorder_relay.store.database import Store
from tests.unit.services.relay.harness import suite


def stored(folder: Path) -> list[str]:
    """Return the requests that another process finds in the relay's file."""
    with closing(sqlite3.connect(folder / "relay.db")) as connection:
        return [request_id for (request_id,) in connection.execute("SELECT request_id FROM requests")]


async def test_queued_is_on_disk_before_it_is_answered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commit is held back: until it is let through there is neither an answer nor a row that others see."""
    monkeypatch.setattr(engine, "TICK_SECONDS", 3_600)  # nothing else writes
    reached, released = threading.Event(), threading.Event()
    run = Store._run

    def held_back(store: Store, group: list[Any]) -> None:
        if any(work.writes for work in group):
            reached.set()
            assert released.wait(60)
        run(store, group)

    async with suite(tmp_path) as s:
        monkeypatch.setattr(Store, "_run", held_back)
        answer = asyncio.ensure_future(s.submit("r", 0, 10))
        assert await asyncio.to_thread(reached.wait, 60)
        answered, _ = await asyncio.wait({answer}, timeout=0.3)
        assert not answered and stored(tmp_path) == []

        released.set()
        assert (await answer).status == ingest.SubmitResponse.QUEUED
        assert stored(tmp_path) == ["r"]
