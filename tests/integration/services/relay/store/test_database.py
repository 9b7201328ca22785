"""Store: everything answered survives any end of the process."""

from __future__ import annotations

import asyncio
import itertools
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from functools import partial
from pathlib import Path

import grpc
import pytest

from dexorder_common.config import BadSettings
from dexorder_common.lake.coverage import Order, Retraction
from dexorder_common.model.errors import Unavailable
from dexorder_common.model.history import FinalResult, FinalStatus, HistoryRequest, PageResult
from dexorder_common.model.instrument import Series
from dexorder_common.model.time_range import TimeRange
from dexorder_protos.dexorder.ingest.v1 import ingest_pb2 as ingest
from dexorder_protos.dexorder.relay.v1 import relay_service_pb2_grpc as rrpc
from dexorder_relay.state import coverage, dispatches, planner
from dexorder_relay.state.history import HistoryState, progress
from dexorder_relay.state.job import RetryPolicy
from dexorder_relay.state.leases import Leases, Slot, SlotKind
from dexorder_relay.state.realtime_registry import Registry
from dexorder_relay.store import schema
from dexorder_relay.store.database import Store, open_store
from dexorder_relay.store.schema import Batch
from tests.fakes.pages import dispatch_id
from tests.paths import ROOT
from tests.unit.services.relay.harness import (
    TICKER,
    at,
    counts,
    dispatch_all,
    environment,
    free_port,
    minute,
    request,
    suite,
)

SERIES = Series(TICKER, 60)


def span(start: int, end: int) -> TimeRange:
    return TimeRange(at(start), at(end))


def new_state(first: int = 1) -> HistoryState:
    numbers = itertools.count(first)
    leases = Leases(lease_ns=15, new_id=lambda: dispatch_id(next(numbers)))
    return HistoryState(leases, RetryPolicy(3, 0), job_periods=10, page_periods=10)


def history_request(request_id: str, start: int, end: int, client_id: str = "") -> HistoryRequest:
    return HistoryRequest(request_id, TICKER, at(start), at(end), 60, None, client_id)


async def test_everything_in_memory_is_read_back(tmp_path: Path) -> None:
    """The first store is abandoned, not closed: everything whose future is done is on disk."""
    first, state = Store(tmp_path / "relay.db"), new_state()
    batch = Batch()
    planner.accept(state, history_request("a", 0, 30, "me"), batch, wall_ns=5, now_ns=0)
    planner.accept(state, history_request("b", 20, 40), batch, wall_ns=6, now_ns=0)
    state.leases.offer(Slot(b"i", "SIM", SlotKind.ANY))
    state.leases.offer(Slot(b"i", "SIM", SlotKind.ANY))
    (one, _), (two, _) = dispatch_all(state, batch, wall_ns=0, now_ns=0)
    dispatches.page(state, one.dispatch_id, span(0, 4), [span(1, 2)], batch, now_ns=0)
    dispatches.produced(state, two.dispatch_id, batch)
    pages = [
        PageResult(two.dispatch_id, SERIES, span(10, 13), (span(10, 11),)),
        PageResult(two.dispatch_id, SERIES, span(13, 15), (), "bad"),
    ]
    dispatches.report(state, pages, [FinalResult("x", FinalStatus.OK)], batch, wall_ns=0, now_ns=0)
    await first.commit(batch)

    second, again = Store(tmp_path / "relay.db"), new_state(100)
    await second.load(again, Registry(again.leases), now_ns=1_000)
    assert again.requests.keys() == state.requests.keys()
    for request_id, live in state.requests.items():
        copy = again.requests[request_id]
        assert (copy.request, copy.state, copy.jobs) == (live.request, live.state, live.jobs)
        assert progress(again, copy) == progress(state, live)
    for number, job in state.jobs.items():
        copied = again.jobs[number]
        for name in (
            "request_id",
            "client_id",
            "series",
            "span",
            "phase",
            "dispatch_id",
            "produced",
            "sent",
            "requests",
        ):
            assert getattr(copied, name) == getattr(job, name), name
        for name in ("acked", "acked_empty", "refused", "handled"):
            assert list(getattr(copied, name)) == list(getattr(job, name)), name
    assert counts(again.leases) == (2, 1, 0)
    assert again.leases.expired(now_ns=1_015) == [one.dispatch_id]
    batch = Batch()
    lost = dispatches.lose(again, one.dispatch_id, "its lease expired", batch, now_ns=1_015)
    assert lost is not None and not lost.failures_in_a_row  # what it was before is on disk too
    again.leases.offer(Slot(b"i", "SIM", SlotKind.ANY))
    again.leases.offer(Slot(b"i", "SIM", SlotKind.ANY))
    made = dispatch_all(again, batch, wall_ns=0, now_ns=1_016)
    assert [minute(d.span.start_ns) for _, d in made] == [4, 20]
    for store in (first, second):
        await store.close()


async def test_request_whose_jobs_were_all_reported_ends_at_start(tmp_path: Path) -> None:
    store, state, batch = Store(tmp_path / "relay.db"), new_state(), Batch()
    planner.accept(state, history_request("r", 0, 10), batch, wall_ns=0, now_ns=0)
    state.leases.offer(Slot(b"i", "SIM", SlotKind.ANY))
    ((assign, _),) = dispatch_all(state, batch, wall_ns=0, now_ns=0)
    page = PageResult(assign.dispatch_id, SERIES, span(0, 10), (span(0, 10),))
    dispatches.report(
        state, [page], [FinalResult(assign.dispatch_id, FinalStatus.NOT_FOUND)], batch, wall_ns=0, now_ns=0
    )
    await store.commit(batch)
    await store.close()
    async with suite(tmp_path) as s:
        record = await s.finished("r")
        assert record.status == ingest.HistoryReadyNotification.NOT_FOUND
        assert (record.empty_periods, record.progress.finished_jobs) == (10, 1)
        assert (await s.notification("HISTORY_READY:r")).notification.request_id == "r"


async def test_commits_keep_their_order_and_a_failed_one_stops_the_store(tmp_path: Path) -> None:
    store = Store(tmp_path / "relay.db")
    done: list[int] = []
    futures = []
    for value in range(50):
        batch = Batch()
        batch.statements.append(("INSERT OR REPLACE INTO meta (name, value) VALUES ('last', ?)", (value,)))
        futures.append(store.commit(batch))
        futures[-1].add_done_callback(partial(lambda value, _: done.append(value), value))
    await asyncio.gather(*futures)
    last = await store.read(lambda connection: connection.execute("SELECT value FROM meta").fetchone())
    assert done == list(range(50)) and last == (49,)
    broken = Batch()
    broken.statements.append(("INSERT INTO nowhere VALUES (1)", ()))
    with pytest.raises(Unavailable):
        await store.commit(broken)
    with pytest.raises(Unavailable):
        await store.commit(batch)
    with pytest.raises(sqlite3.OperationalError):
        await asyncio.shield(store.failed)
    await store.close()


def first_version(path: Path) -> None:
    """A file as the first version left it: an ended request, a live one with a dispatch, coverage with overlaps."""
    with closing(sqlite3.connect(path)) as old:
        old.executescript(f"{schema.STEPS[0]} PRAGMA user_version = 1;")
        request = (
            "INSERT INTO requests (request_id, ticker, start_ns, end_ns, period_seconds, most, client_id, submitted_ns,"
            " planned_end_ns, state) VALUES (?, ?, ?, ?, 60, NULL, ?, 1, ?, ?)"
        )
        old.execute(request, ("live", TICKER, at(0), at(10), None, at(10), 2))
        old.execute(request, ("ended", TICKER, at(20), at(30), "me", at(30), 3))
        old.execute(
            "UPDATE requests SET progress = '[10, 10, 10, 1, 1, 1, 1, 0]', status = 0, error = '', answered_end_ns = ?,"
            " completed_ns = 9, row_count = 10, empty_periods = 0, missing = '[]', snapshot_id = 7"
            " WHERE request_id = 'ended'",
            (at(30),),
        )
        old.execute("INSERT INTO notifications (topic, request_id) VALUES ('RESPONSE:me', 'ended')")
        job = (1, "live", None, TICKER, 60, at(0), at(10), 1, "", 0, "id0", 0, at(0), at(10))
        old.execute(f"INSERT INTO jobs VALUES ({', '.join('?' * len(job))})", job)
        old.execute("INSERT INTO dispatches (job_id, job) VALUES ('id0', 1)")
        old.execute("INSERT INTO ranges VALUES ('job:1', 'acked', ?, ?)", (at(0), at(5)))
        old.execute("INSERT INTO attachments (request_id, job) VALUES ('live', 1)")
        for start, end in ((50, 60), (52, 54), (55, 70), (70, 80), (90, 95)):
            old.execute("INSERT INTO ranges VALUES (?, 'covered', ?, ?)", (f"market:60:{TICKER}", at(start), at(end)))
        old.execute("INSERT INTO ranges VALUES (?, 'empty', ?, ?)", (f"market:60:{TICKER}", at(52), at(54)))
        old.execute("INSERT INTO meta (name, value) VALUES ('snapshot_id', 7)")
        old.commit()


async def test_a_file_of_the_first_version_opens_and_keeps_its_data(tmp_path: Path) -> None:
    path = tmp_path / "relay.db"
    first_version(path)
    for _ in range(2):
        store, again = Store(path), new_state()
        await store.load(again, Registry(again.leases), now_ns=0)
        assert again.requests.keys() == {"live"}
        assert list(again.coverage[SERIES].covered) == [span(50, 80), span(90, 95)]
        job = again.jobs[1]
        assert not job.dispatch_ids and again.leases.is_queued(1), "a dispatch without a number no longer counts"
        assert job.to_fetch(again.covered(SERIES)) == [span(0, 10)], "nor what Kafka has of it"
        record = await store.record("ended")
        assert record is not None and record.outcome is not None and record.outcome.row_count == 10
        assert [n.request.request_id for n in await store.notifications("RESPONSE:me", 0, 9)] == ["ended"]
        assert await store.instruments("SIM") is None
        await store.close()
    with closing(sqlite3.connect(path)) as new, closing(sqlite3.connect(":memory:")) as fresh:
        fresh.executescript("".join(schema.STEPS))
        tables = "SELECT type, name, sql FROM sqlite_master WHERE sql NOT NULL ORDER BY name"
        assert new.execute(tables).fetchall() == fresh.execute(tables).fetchall()
        assert new.execute("PRAGMA user_version").fetchone() == (len(schema.STEPS),)


async def test_what_is_taken_back_stays_so_in_a_file_that_had_overlapping_ranges(tmp_path: Path) -> None:
    """Otherwise ranges inside a longer one would reappear after the next restart."""
    path = tmp_path / "relay.db"
    first_version(path)
    store, state, batch = Store(path), new_state(), Batch()
    await store.load(state, Registry(state.leases), now_ns=0)
    coverage.retract(state, SERIES, [span(51, 58)], Order(3, 1_000), batch)
    await store.commit(batch)
    again = new_state()
    await store.load(again, Registry(again.leases), now_ns=0)
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
    env = environment(tmp_path, port)
    for attempt in range(2):
        process = subprocess.Popen([sys.executable, "-m", "dexorder_relay"], cwd=ROOT, env=env)
        try:
            with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
                stub = rrpc.RelayServiceStub(channel)
                answer = stub.SubmitHistorical(request("r", 0, 10), timeout=60, wait_for_ready=True)
                expected = ingest.SubmitResponse.DUPLICATE if attempt else ingest.SubmitResponse.QUEUED
                assert answer.status == expected
                process.send_signal(signal.SIGTERM if attempt else signal.SIGKILL)
                assert process.wait(timeout=60) == (0 if attempt else -signal.SIGKILL)
        finally:
            process.kill()
            process.wait()
