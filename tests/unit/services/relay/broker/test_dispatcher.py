"""Dispatch: a dispatch is durable before an ingestor receives it."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from dexorder_relay import engine
from dexorder_relay.store.database import Store
from tests.unit.services.relay.harness import suite


def stored(folder: Path) -> list[str]:
    """Return the dispatches that another process finds in the relay's file."""
    with closing(sqlite3.connect(folder / "relay.db")) as connection:
        return [dispatch_id for (dispatch_id,) in connection.execute("SELECT dispatch_id FROM dispatches")]


async def test_a_dispatch_is_on_disk_before_it_is_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commit is held back: until it is let through the ingestor receives nothing."""
    monkeypatch.setattr(engine, "TICK_SECONDS", 3_600)  # nothing else writes
    reached, released = threading.Event(), threading.Event()
    run = Store._run

    def held_back(store: Store, group: list[Any]) -> None:
        if any(work.writes for work in group):
            reached.set()
            assert released.wait(60)
        run(store, group)

    async with suite(tmp_path) as s:
        await s.submit("r", 0, 10)
        monkeypatch.setattr(Store, "_run", held_back)
        ingestor = s.ingestor()
        await ingestor.offer()
        assert await asyncio.to_thread(reached.wait, 60)
        dispatch = asyncio.ensure_future(ingestor.take())
        received, _ = await asyncio.wait({dispatch}, timeout=0.3)
        assert not received and stored(tmp_path) == []

        released.set()
        sent = await dispatch
        assert stored(tmp_path) == [sent.job_id]
