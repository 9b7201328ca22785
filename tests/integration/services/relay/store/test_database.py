"""Store: everything answered survives any end of the process."""

from __future__ import annotations

import asyncio
import signal
import sqlite3
from functools import partial
from pathlib import Path

import pytest

from dexorder_common.config import BadSettings
from dexorder_common.lake.coverage import Order, Retraction
from dexorder_common.model.errors import Unavailable
from dexorder_common.model.history import FinalResult, FinalStatus, PageResult
from dexorder_protos.dexorder.ingest.v1 import ingest_pb2 as ingest
from dexorder_relay.state import coverage, dispatches
from dexorder_relay.state.changes import Changes, CoverageRead
from dexorder_relay.state.history import progress
from dexorder_relay.state.realtime_job import Registry
from dexorder_relay.store.database import Store, open_store
from tests.unit.services.relay.harness import (
    SERIES,
    Driver,
    counts,
    free_port,
    history_state,
    minute,
    relay_process,
    request,
    span,
    suite,
)


async def test_everything_in_memory_is_read_back(tmp_path: Path) -> None:
    """The first store is abandoned, not closed: everything whose future is done is on disk."""
    first, d = Store(tmp_path / "relay.db"), Driver()
    state = d.state
    d.accept("a", 0, 30, client_id="me")
    d.accept("b", 20, 40)
    one, two = d.dispatch(slots=2)
    d.page(one.dispatch_id, 0, 4, [span(1, 2)])
    dispatches.produced(state, two.dispatch_id, d.changes)
    pages = [
        PageResult(two.dispatch_id, SERIES, span(10, 13), (span(10, 11),)),
        PageResult(two.dispatch_id, SERIES, span(13, 15), (), "bad"),
    ]
    d.report(pages, [FinalResult("x", FinalStatus.OK)])
    await first.commit(d.changes)

    second, again = Store(tmp_path / "relay.db"), history_state(100)
    await second.load(again, Registry(again.leases, str), now_ns=1_000)
    assert again.requests.keys() == state.requests.keys()
    for request_id, live in state.requests.items():
        copy = again.requests[request_id]
        assert (copy.request, copy.state, copy.jobs) == (live.request, live.state, live.jobs)
        assert progress(again, copy) == progress(state, live)
    for number, job in state.jobs.items():
        copied = again.jobs[number]
        for name in [
            "request_id",
            "client_id",
            "series",
            "span",
            "phase",
            "dispatch_id",
            "produced",
            "sent",
            "requests",
        ]:
            assert getattr(copied, name) == getattr(job, name), name
        for name in ("acked", "acked_empty", "refused", "handled"):
            assert list(getattr(copied, name)) == list(getattr(job, name)), name
    assert counts(again.leases) == (2, 1, 0)
    assert again.leases.expired(now_ns=1_015) == [one.dispatch_id]
    later = Driver(again, now_ns=1_015)
    lost = later.lose(one.dispatch_id)
    assert lost is not None and not lost.failures_in_a_row  # what it was before is on disk too
    later.now_ns = 1_016
    assert [minute(each.span.start_ns) for each in later.dispatch(slots=2)] == [4, 20]
    for store in (first, second):
        await store.close()


async def test_request_whose_jobs_were_all_reported_ends_at_start(tmp_path: Path) -> None:
    store, d = Store(tmp_path / "relay.db"), Driver()
    d.accept("r", 0, 10)
    (dispatch,) = d.dispatch()
    page = PageResult(dispatch.dispatch_id, SERIES, span(0, 10), (span(0, 10),))
    d.report([page], [FinalResult(dispatch.dispatch_id, FinalStatus.NOT_FOUND)])
    await store.commit(d.changes)
    await store.close()
    async with suite(tmp_path) as s:
        record = await s.finished("r")
        assert record.status == ingest.HistoryReadyNotification.NOT_FOUND
        assert (record.empty_periods, record.progress.finished_jobs) == (10, 1)
        assert (await s.notification("HISTORY_READY:r")).ready.request_id == "r"


async def test_commits_keep_their_order_and_a_failed_one_stops_the_store(tmp_path: Path) -> None:
    store = Store(tmp_path / "relay.db")
    done: list[int] = []
    futures = []
    for value in range(50):
        futures.append(store.commit([CoverageRead(value)]))
        futures[-1].add_done_callback(partial(lambda value, _: done.append(value), value))
    await asyncio.gather(*futures)
    last = await store.read(lambda connection: connection.execute("SELECT value FROM meta").fetchone())
    assert done == list(range(50)) and last == (49,)
    with pytest.raises(Unavailable):
        await store.write(lambda connection: connection.execute("INSERT INTO nowhere VALUES (1)"))
    with pytest.raises(Unavailable):
        await store.commit([CoverageRead(50)])
    with pytest.raises(sqlite3.OperationalError):
        await asyncio.shield(store.failed)
    await store.close()


async def test_what_is_taken_back_stays_so_after_a_restart(tmp_path: Path) -> None:
    """Otherwise the next start would take ranges for covered that nobody fetches again."""
    path = tmp_path / "relay.db"
    store, state, changes = Store(path), history_state(), Changes()
    for part in (span(50, 80), span(90, 95)):
        coverage.cover(state, SERIES, part, [span(52, 54)], Order(1, 0), changes)
    coverage.retract(state, SERIES, [span(51, 58)], Order(3, 1_000), changes)
    await store.commit(changes)
    again = history_state()
    await store.load(again, Registry(again.leases, str), now_ns=0)
    assert list(again.coverage[SERIES].covered) == [span(50, 51), span(58, 80), span(90, 95)]
    assert not again.coverage[SERIES].empty
    assert await store.retractions() == {Retraction(SERIES, span(51, 58), Order(3, 1_000))}
    await store.close()


def test_a_file_that_is_newer_or_no_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "relay.db"
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 99")
    connection.close()

    async def opened() -> None:
        async with open_store(path):
            pass

    with pytest.raises(BadSettings, match=r"DEXORDER_RELAY_DB: .* schema version 99"):
        asyncio.run(opened())
    path.write_bytes(b"no database" * 1_000)
    with pytest.raises(BadSettings, match=r"DEXORDER_RELAY_DB: .* not a database"):
        asyncio.run(opened())


def test_queued_request_survives_kill_9(tmp_path: Path) -> None:
    """The process dies right after it answered; the next one knows the request."""
    port = free_port()
    for expected, end, status in (
        (ingest.SubmitResponse.QUEUED, signal.SIGKILL, -signal.SIGKILL),
        (ingest.SubmitResponse.DUPLICATE, signal.SIGTERM, 0),
    ):
        with relay_process(tmp_path, port) as (process, stub):
            answer = stub.history.SubmitHistorical(request("r", 0, 10), timeout=60, wait_for_ready=True).answer
            assert answer.status == expected
            process.send_signal(end)
            assert process.wait(timeout=60) == status
