"""A client that reconnects receives exactly the missed notifications, in order, also across a restart of the relay."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from dexorder_protos.dexorder.relay.v1 import common_pb2
from dexorder_protos.dexorder.relay.v1 import history_service_pb2 as rpb
from tests.unit.services.relay.harness import EARLIER, Suite, page, suite, until

EACH = 500
TOPIC = "RESPONSE:me"


async def end_many(s: Suite, first: int, count: int = EACH) -> None:
    """Submit and end a number of requests of the client, with requests of others in between."""
    every = range(first, first + count)
    await asyncio.gather(
        *(s.queued(f"r{n}", n % 90, n % 90 + 10, client_id="me") for n in every),
        *(s.queued(f"other{n}", 0, 10, client_id="you") for n in every[::10]),
    )
    with closing(sqlite3.connect(f"file:{s.folder / 'relay.db'}?mode=ro", uri=True)) as connection:
        sql = "SELECT count(*) FROM requests WHERE status IS NULL"
        await until(lambda: connection.execute(sql).fetchone() == (0,))


async def read(s: Suite, after: common_pb2.Cursor | None, most: int) -> list[rpb.Notification]:
    """Read a number of notifications after a cursor, which is valid, and check that no more arrive for now."""
    call = s.relay.history.WatchNotifications(rpb.WatchNotificationsRequest(topic=TOPIC, after=after), timeout=60)
    opened = (await call.read()).opened
    assert opened.cursor == after if after else (opened.cursor.epoch and not opened.cursor.sequence)
    found = [(await call.read()).notification for _ in range(most)]
    more = asyncio.ensure_future(call.read())
    done, _ = await asyncio.wait({more}, timeout=0.2)
    call.cancel()
    assert not done
    await asyncio.wait({more})
    return found


@pytest.mark.smoke
async def test_client_that_was_away_resumes_and_one_that_never_says_where_gets_all_again(tmp_path: Path) -> None:
    async with suite(tmp_path) as s:
        await s.pipeline.report(pages=[page(EARLIER, 0, 100, empty=[(0, 100)])])
        await s.queued("seen", 0, 10, client_id="me")
        await s.finished("seen")
        (seen,) = await read(s, None, 1)
        await end_many(s, 0)
    async with suite(tmp_path) as s:
        await end_many(s, EACH)
        missed = await read(s, seen.cursor, 2 * EACH)
        assert {each.ready.request_id for each in missed} == {f"r{n}" for n in range(2 * EACH)}
        assert {each.cursor.epoch for each in missed} == {seen.cursor.epoch}, "a restart keeps the epoch"
        sequences = [each.cursor.sequence for each in missed]
        assert sequences == sorted(set(sequences)) and sequences[0] > seen.cursor.sequence
        assert await read(s, None, 2 * EACH + 1) == [seen, *missed]
        half = missed[EACH // 2]
        assert await read(s, half.cursor, 2 * EACH - EACH // 2 - 1) == missed[EACH // 2 + 1 :]


async def test_stream_that_is_open_misses_nothing_while_requests_end(tmp_path: Path) -> None:
    async with suite(tmp_path) as s:
        await s.pipeline.report(pages=[page(EARLIER, 0, 100, empty=[(0, 100)])])
        call = s.relay.history.WatchNotifications(rpb.WatchNotificationsRequest(topic=TOPIC), timeout=60)
        found: list[Any] = []

        async def listen() -> None:
            async for each in call:
                found.append(each.notification if each.HasField("notification") else each)

        listening = asyncio.create_task(listen())
        await end_many(s, 0, 50)
        await until(lambda: len(found) == 51)
        call.cancel()
        await asyncio.wait({listening})
        assert found.pop(0).HasField("opened")
        assert found == await read(s, None, 50)
