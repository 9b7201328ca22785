"""Many callers, one request; many requests, one job."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import grpc
import pytest

from dexorder_common.clock import ManualClock
from dexorder_common.model.times import SECOND_NS
from dexorder_common.rpc.relay_stubs import RelayStubs
from dexorder_protos.dexorder.ingest.v1 import ingest_pb2 as ingest
from dexorder_protos.dexorder.relay.v1 import history_service_pb2 as rpb
from dexorder_relay import engine
from dexorder_relay.store.database import Store
from dexorder_relay.store.writer import WriterThread
from tests.unit.services.relay.harness import ERROR, OK, TIMEOUT, minute, ranges, request, suite, until

CLIENTS, SUBMISSIONS = 8, 250
TIMEOUT_NS = 900 * SECOND_NS


async def test_one_id_from_many_clients_is_planned_once_and_costs_no_write_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: Counter[str] = Counter()
    commit = Store.commit
    monkeypatch.setattr(Store, "commit", lambda *a: given.update(["commit"]) or commit(*a))

    async def client(address: str) -> Counter[Any]:
        async with grpc.aio.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
            stub: Any = RelayStubs(channel)
            calls = (stub.history.SubmitHistorical(request("same", 0, 30)) for _ in range(SUBMISSIONS))
            return Counter(
                [(each.answer.status, each.answer.notification_topic) for each in await asyncio.gather(*calls)]
            )

    async with suite(tmp_path, job_periods=10) as s:
        given.clear()
        answers = sum(await asyncio.gather(*(client(s.running.address) for _ in range(CLIENTS))), Counter[Any]())
        topic = "HISTORY_READY:same"
        assert answers == {
            (ingest.SubmitResponse.QUEUED, topic): 1,
            (ingest.SubmitResponse.DUPLICATE, topic): CLIENTS * SUBMISSIONS - 1,
        }
        assert given["commit"] == 1
        assert (await s.record("same")).progress.jobs == 3


async def test_a_duplicate_is_answered_no_sooner_than_the_first_is_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "TICK_SECONDS", 3_600)  # nothing else writes
    held: list[tuple[Any, ...]] = []
    resolve = WriterThread._call_loop
    monkeypatch.setattr(WriterThread, "_call_loop", lambda *a: resolve(*a) if a[0].quick else held.append(a))
    monkeypatch.setattr(WriterThread, "quick", True, raising=False)
    async with suite(tmp_path) as s:
        monkeypatch.setattr(WriterThread, "quick", False)
        first = asyncio.ensure_future(s.submit("r", 0, 10))
        await until(lambda: bool(held))  # its question for the id
        resolve(*held.pop())
        await until(lambda: bool(held))  # its write
        second = asyncio.ensure_future(s.submit("r", 0, 10))
        done, _ = await asyncio.wait({first, second}, timeout=0.3)
        assert not done
        monkeypatch.setattr(WriterThread, "quick", True)
        for each in held:
            resolve(*each)
        assert (await first).status == ingest.SubmitResponse.QUEUED
        assert (await second).status == ingest.SubmitResponse.DUPLICATE


async def test_job_outlives_the_request_that_made_it_also_across_a_restart(tmp_path: Path) -> None:
    async with suite(tmp_path) as s:
        ingestor = s.ingestor()
        await s.queued("maker", 0, 10)
        await s.queued("twin", 0, 10, client_id="other")
        await s.queued("part", 4, 8)
        await ingestor.offer()
        dispatch = await ingestor.take()
        assert dispatch.request_id == "maker"
        await s.relay.history.CancelRequest(rpb.CancelRequestRequest(request_id="maker"))
        assert await ingestor.page(dispatch.job_id, 0, 5)
    async with suite(tmp_path) as s:
        ingestor = s.ingestor()
        await s.relay.history.CancelRequest(rpb.CancelRequestRequest(request_id="part"))
        assert await ingestor.page(dispatch.job_id, 5, 10)
        await s.pipeline.land(dispatch)
        assert (await s.finished("twin")).row_count == 10
        ends = {r: (await s.record(r)) for r in ("maker", "part")}
        assert {r: (end.status, list(end.missing)) for r, end in ends.items()} == {
            "maker": (ERROR, ranges([(0, 10)])),
            "part": (ERROR, ranges([(4, 8)])),
        }
        assert await ingestor.page(dispatch.job_id, 0, 1) is False  # nobody waits for it any more


async def test_timed_out_request_leaves_the_job_to_the_one_that_still_waits(tmp_path: Path) -> None:
    clock = ManualClock()
    async with suite(tmp_path, clock) as s:
        ingestor = s.ingestor()
        await s.queued("first", 0, 10)
        await ingestor.offer()
        dispatch = await ingestor.take()
        clock.advance(TIMEOUT_NS * 2 // 3)
        await s.queued("second", 0, 10)
        clock.advance(TIMEOUT_NS * 2 // 3)
        assert (await s.finished("first")).status == TIMEOUT
        assert await ingestor.page(dispatch.job_id, 0, 10)
        await s.pipeline.land(dispatch)
        assert ((await s.finished("second")).status, (await s.record("first")).status) == (OK, TIMEOUT)


async def test_time_behind_other_jobs_does_not_count_and_time_without_any_slot_does(tmp_path: Path) -> None:
    clock = ManualClock()
    async with suite(tmp_path, clock) as s:
        ingestor = s.ingestor()
        await s.queued("running", 0, 10)
        await ingestor.offer()
        dispatch = await ingestor.take()
        await s.queued("behind", 50, 60)
        clock.advance(2 * TIMEOUT_NS)
        assert (await s.finished("running")).status == TIMEOUT
        assert (await s.record("behind")).state == rpb.REQUEST_STATE_QUEUED
        assert await ingestor.page(dispatch.job_id, 0, 10) is False
        clock.advance(2 * TIMEOUT_NS)
        behind = await s.finished("behind")
        assert (behind.status, list(behind.missing), minute(behind.answered_end_ns)) == (
            TIMEOUT,
            ranges([(50, 60)]),
            60,
        )
