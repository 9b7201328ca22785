"""Retention: ended requests are deleted, unfinished ones are not, and the file does not grow without bound."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import grpc
import pytest

from dexorder_common.clock import ManualClock
from dexorder_common.lake.coverage import Order
from dexorder_common.model.history import (
    FinalResult,
    FinalStatus,
    Outcome,
    PageResult,
    RequestStatus,
)
from dexorder_common.model.times import SECOND_NS
from dexorder_protos.dexorder.ingest.v1 import ingest_pb2 as ingest
from dexorder_protos.dexorder.relay.v1 import history_service_pb2 as rpb
from dexorder_relay import engine
from dexorder_relay.state import coverage, planner
from dexorder_relay.state.changes import Changes, RequestEnded
from dexorder_relay.state.history import HistoryState, progress
from dexorder_relay.store import database
from dexorder_relay.store.database import FORGET_DISPATCHES, FORGET_REQUESTS, Store
from tests.unit.services.relay.harness import (
    EARLIER,
    SERIES,
    Driver,
    Suite,
    at,
    history_state,
    page,
    refused,
    span,
    suite,
    until,
)

DAY_NS = 86_400 * SECOND_NS


def count(folder: Path, table: str) -> int:
    with closing(sqlite3.connect(f"file:{folder / 'relay.db'}?mode=ro", uri=True)) as connection:
        return int(connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0])


async def reported(s: Suite, topic: str, most: int) -> list[tuple[int, str]]:
    call = s.relay.history.WatchNotifications(rpb.WatchNotificationsRequest(topic=topic), timeout=60)
    assert (await call.read()).HasField("opened")
    found = [(await call.read()).notification for _ in range(most)]
    call.cancel()
    return [(each.cursor.sequence, each.ready.request_id) for each in found]


async def test_ended_requests_are_forgotten_after_their_retention_and_live_ones_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "FORGET_SECONDS", 0.01)
    monkeypatch.setattr(database, "FORGOTTEN_AT_ONCE", 2)  # so that it takes several pieces
    monkeypatch.setattr(engine, "FORGOTTEN_AT_ONCE", 2)
    clock = ManualClock()
    async with suite(tmp_path, clock, retention_days=10, request_timeout_seconds=1e9) as s:
        await s.pipeline.report(pages=[page(EARLIER, 0, 100, empty=[(0, 100)])])
        for n in range(5):
            await s.queued(f"old{n}", n, n + 10, client_id="me")
            await s.finished(f"old{n}")
        await s.queued("live", 500, 510, client_id="me")
        clock.advance(6 * DAY_NS)
        await s.queued("newer", 0, 10, client_id="me")
        await s.finished("newer")
        before = await reported(s, "RESPONSE:me", 6)
        assert [request_id for _, request_id in before] == [*(f"old{n}" for n in range(5)), "newer"]

        clock.advance(5 * DAY_NS)
        await until(lambda: count(tmp_path, "requests") == 2)
        for call in (
            s.relay.history.GetRequest(rpb.GetRequestRequest(request_id="old0")),
            s.relay.history.CancelRequest(rpb.CancelRequestRequest(request_id="old0")),
            s.relay.history.WatchProgress(rpb.WatchProgressRequest(request_id="old0")).read(),
        ):
            with refused(grpc.StatusCode.NOT_FOUND):
                await call
        assert (await s.record("live")).state == rpb.REQUEST_STATE_QUEUED
        assert await reported(s, "RESPONSE:me", 1) == before[-1:]
        assert count(tmp_path, "notifications") == 2  # both topics of "newer"

        again = await s.submit("old0", 50, 60, client_id="me")  # another body: the id is as good as new
        assert again.status == ingest.SubmitResponse.QUEUED
        assert (await s.finished("old0")).empty_periods == 10
        ((cursor, request_id),) = (await reported(s, "RESPONSE:me", 2))[1:]
        assert request_id == "old0" and cursor > before[-1][0]
        assert [each for each in await reported(s, "HISTORY_READY:old0", 1) if each[0] == before[0][0]] == []


async def test_ended_jobs_leave_nothing_behind_and_the_file_stays_as_large_as_one_retention(tmp_path: Path) -> None:
    """Ten retentions of requests, each through two dispatches; the file's pages are used again."""
    held, pages = Store(tmp_path / "relay.db"), []
    state = history_state(attempts=9)
    for generation in range(10):
        for n in range(50):
            await held.commit(_through(state, f"{generation}-{n}", generation))
        while await held.forget(FORGET_REQUESTS, generation + 1) + await held.forget(FORGET_DISPATCHES, generation + 1):
            pass
        pages.append(await held.read(lambda c: c.execute("PRAGMA page_count").fetchone()[0]))
        for table in ("requests", "notifications", "jobs", "dispatches", "attachments", "ranges"):
            assert count(tmp_path, table) == 0, table
    await held.close()
    assert pages[-1] <= pages[1] + 2, pages


def _through(state: HistoryState, request_id: str, completed_ns: int) -> Changes:
    """Return a request's whole life as changes: a dispatch lost after half of its page, then one that ends it."""
    d, whole = Driver(state, now_ns=completed_ns), span(0, 10)
    live = d.accept(request_id, 0, 10, client_id="me")
    (lost,) = d.dispatch()
    d.page(lost.dispatch_id, 0, 5)
    d.lose(lost.dispatch_id)
    (dispatch,) = d.dispatch()
    d.page(dispatch.dispatch_id, 5, 10)
    d.report([PageResult(dispatch.dispatch_id, SERIES, whole)])
    d.report(finals=[FinalResult(dispatch.dispatch_id, FinalStatus.OK)])
    outcome = Outcome(RequestStatus.OK, "", at(10), completed_ns, 10)
    d.changes.append(RequestEnded(live.request, outcome, progress(state, live)))
    planner.remove(state, live, d.changes)
    coverage.retract(state, SERIES, [whole], Order(1, 0), d.changes)
    return d.changes
