"""Subscriptions and their jobs through a real relay, with workers on raw frames."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import grpc
import pytest

from dexorder_common.model.times import MAX_TIME_NS, SECOND_NS
from dexorder_protos.dexorder.ingest.v1 import ingest_pb2 as ingest
from dexorder_protos.dexorder.relay.v1 import ingestor_service_pb2 as ipb
from dexorder_protos.dexorder.relay.v1 import pipeline_service_pb2 as ppb
from dexorder_protos.dexorder.relay.v1 import realtime_service_pb2 as pb
from dexorder_relay.realtime import jobs
from tests.series_messages import series
from tests.unit.services.relay.harness import TICKER, refused, suite
from tests.unit.services.relay.realtime.worker import (
    RawWorker,
    at_work,
    described,
    job_in,
    listed,
    report,
    resume,
    start,
    stop,
    the_job,
    worker,
)

MINUTE_NS = 60 * SECOND_NS
WAITING, RUNNING, STOPPING = pb.REALTIME_STATE_WAITING, pb.REALTIME_STATE_RUNNING, pb.REALTIME_STATE_STOPPING


async def test_a_worker_of_the_given_protocol_gets_the_job_is_fenced_after_silence_and_told_to_stop(
    tmp_path: Path,
) -> None:
    async with suite(tmp_path, lease_seconds=1) as s:
        first, second = worker(s), worker(s)
        await first.ready()
        assert not await start(s, "a", 60, client_id="me")
        sent = await first.job()
        assert (sent.type, sent.ticker, sent.client_id) == (ingest.DataRequest.REALTIME_TICKS, TICKER, "me")
        assert not sent.HasField("historical")
        assert (sent.realtime.include_ticks, sent.realtime.include_ohlc) == (True, True)
        assert list(sent.realtime.ohlc_period_seconds) == [60]
        (issued,) = await described(s, [sent.job_id])
        assert (issued.WhichOneof("work"), issued.realtime_ticker) == ("realtime_ticker", TICKER)
        assert (issued.start_ns, issued.end_ns) == (0, MAX_TIME_NS)

        await second.ready(ingest.ANY)  # the first one says nothing any more
        again = await second.job()
        assert again.job_id != sent.job_id and again.realtime == sent.realtime
        job = await the_job(s)
        assert (job.state, job.restarts, job.last_error) == (RUNNING, 1, "its lease expired")
        assert await report(s, sent.job_id, (0, 1, 2)) == [sent.job_id]
        assert not (await resume(s, sent.job_id)).current and (await resume(s, again.job_id)).current
        await first.heartbeat(sent.job_id)
        assert await first.stopped() == sent.job_id

        await stop(s, "a")
        assert await second.stopped() == again.job_id
        await second.complete(again.job_id)
        async with asyncio.timeout(20):
            while await report(s, again.job_id, (0, 1, 2)) != [again.job_id]:  # noqa: ASYNC110 - it happens in the relay
                await asyncio.sleep(0.02)
        assert not (await listed(s)).jobs


async def test_heartbeats_alone_keep_a_job(tmp_path: Path) -> None:
    async with suite(tmp_path, lease_seconds=1) as s:
        one, sent = await at_work(s)
        for _ in range(8):
            await asyncio.sleep(0.25)
            await one.heartbeat(sent.job_id)
        job = await the_job(s)
        assert (job.state, job.restarts) == (RUNNING, 0)


async def test_one_job_serves_all_subscriptions_and_is_dispatched_anew_when_more_is_wanted(tmp_path: Path) -> None:
    async with suite(tmp_path) as s:
        one = worker(s)
        for _ in range(2):
            await one.ready()
        await start(s, "a", 60)
        sent = await one.job()
        await start(s, "b", 60)  # asks for nothing more
        await start(s, "c", 300, ticks=False)
        assert await one.stopped() == sent.job_id
        assert (await the_job(s)).state == STOPPING
        await one.complete(sent.job_id)
        wider = await one.job()
        assert list(wider.realtime.ohlc_period_seconds) == [60, 300] and wider.realtime.include_ticks
        assert {each.subscription.subscription_id for each in (await listed(s)).subscriptions} == {"a", "b", "c"}
        job = await job_in(s, RUNNING)
        assert (job.restarts, job.last_error) == (1, "")
        for each in ("a", "b"):
            await stop(s, each)
        assert await one.stopped() == wider.job_id
        await one.ready()
        await one.complete(wider.job_id)
        narrower = await one.job()
        assert list(narrower.realtime.ohlc_period_seconds) == [300] and not narrower.realtime.include_ticks


async def test_a_worker_that_ignores_work_stop_is_fenced_in_spite_of_its_heartbeats(tmp_path: Path) -> None:
    async with suite(tmp_path, lease_seconds=1) as s:
        one, sent = await at_work(s)
        await stop(s, "a")
        while (await listed(s)).jobs or await report(s, sent.job_id, (0, 1, 2)) == []:
            await one.heartbeat(sent.job_id)
            await asyncio.sleep(0.1)


async def test_only_slots_of_the_kind_are_used(tmp_path: Path) -> None:
    async with suite(tmp_path) as s:
        history, live = worker(s), worker(s)
        await start(s, "a")
        await history.ready(ingest.HISTORICAL)
        await s.queued("r", 0, 10)
        assert (await history.job()).type == ingest.DataRequest.HISTORICAL_OHLC
        await s.queued("r2", 20, 30)
        await live.ready(ingest.REALTIME)
        assert (await live.job()).type == ingest.DataRequest.REALTIME_TICKS
        await live.ready(ingest.REALTIME)
        await live.ready(ingest.ANY)
        assert (await live.job()).request_id == "r2"


async def test_a_rejected_job_goes_to_another_ingestor_and_waits_longer_each_time(tmp_path: Path) -> None:
    async with suite(tmp_path) as s:  # retry_backoff_seconds is 0
        one, two = worker(s), worker(s)
        await one.ready()
        await start(s, "a")
        sent = await one.job()
        await one.ready()
        await one.heartbeat(sent.job_id)
        await two.ready()
        await asyncio.sleep(0.2)  # both offers are there
        await one.reject(sent.job_id, "no such market")
        taken = await two.job()
        job = await job_in(s, RUNNING)
        assert job.last_error == "the ingestor rejected it: no such market"
        await two.complete(taken.job_id, success=False)
        assert (await one.job()).job_id not in (sent.job_id, taken.job_id)


async def test_a_job_is_never_given_up_and_says_why_it_waits(tmp_path: Path) -> None:
    async with suite(tmp_path, max_attempts=1, retry_backoff_seconds=0.01) as s:
        one = worker(s)
        await start(s, "a")
        for number in range(6):
            await one.ready()
            sent = await one.job()
            await one.reject(sent.job_id, f"reason {number}")
        job = await job_in(s, WAITING)
        assert job.last_error == "the ingestor rejected it: reason 5" and job.restarts == 5 and job.next_attempt_ns


async def test_positions_follow_reports_and_survive_a_restart(tmp_path: Path) -> None:
    async with suite(tmp_path) as s:
        one = worker(s)
        await one.ready()
        before_ns = time.time_ns()
        await start(s, "a", 60)
        sent = await one.job()
        begin = await resume(s, sent.job_id)
        assert begin.current and before_ns <= begin.start_ns <= time.time_ns()
        assert not begin.HasField("last_trade_id")
        ((period, open_ns),) = [(each.period_seconds, each.start_ns) for each in begin.candles]
        assert period == 60 and 0 <= open_ns - begin.start_ns < MINUTE_NS and open_ns % MINUTE_NS == 0
        now_ns = begin.start_ns
        assert begin.compared_until_ns == begin.start_ns, "nothing is recorded, so there is nothing to compare"
        told = {"count": 3, "last_trade_id": "77", "lag_ns": 9, "compared_until_ns": now_ns + 2}
        assert not await report(s, sent.job_id, (0, now_ns, now_ns + 5), **told)
        assert not await report(s, sent.job_id, (60, open_ns, open_ns + MINUTE_NS), count=1)
        job = await the_job(s)
        assert job.ingestor == "i1"
        trades, candles = job.series
        assert [each.series for each in job.series] == [series(job.ticker), series(job.ticker, 60)]
        assert (trades.settled_until_ns, trades.count, trades.lag_ns) == (now_ns + 5, 3, 9)
        assert (candles.settled_until_ns, candles.count) == (open_ns + MINUTE_NS, 1)
        await asyncio.sleep(2.5)  # positions are written every two seconds
    async with suite(tmp_path, lease_seconds=1) as s:
        one = worker(s)
        assert not await start(s, "b", 60) and await start(s, "a", 60)
        job = await the_job(s)
        assert job.state == RUNNING and not await report(s, sent.job_id, (0, now_ns + 5, now_ns + 6))
        await one.ready()
        again = await one.job()  # its lease has expired
        begin = await resume(s, again.job_id)
        assert (begin.start_ns, begin.last_trade_id, begin.compared_until_ns) == (now_ns + 6, "77", now_ns + 2)
        assert [each.start_ns for each in begin.candles] == [open_ns + MINUTE_NS]


async def test_positions_of_candles_are_on_disk_before_the_report_is_answered(tmp_path: Path) -> None:
    """Else a relay that is killed would take the next candle for one behind a hole."""
    async with suite(tmp_path) as s:
        _, sent = await at_work(s, 60)
        open_ns = (await resume(s, sent.job_id)).candles[0].start_ns
        await report(s, sent.job_id, (60, open_ns, open_ns + MINUTE_NS))
        with closing(sqlite3.connect(tmp_path / "relay.db")) as connection:
            stored = connection.execute("SELECT next_ns FROM realtime_positions WHERE period_seconds = 60").fetchall()
        assert stored == [(open_ns + MINUTE_NS,)]


async def test_pages_in_the_table_are_a_position_too(tmp_path: Path) -> None:
    """A worker of the given protocol reports nothing; the next dispatch begins behind what Spark has committed."""
    async with suite(tmp_path) as s:
        one, sent = await at_work(s, 60)
        begin = await resume(s, sent.job_id)
        open_ns = begin.candles[0].start_ns
        page = {"job_id": sent.job_id}
        await s.pipeline.report(
            pages=[
                ppb.PageResult(**page, series=series(TICKER), start_ns=begin.start_ns, end_ns=begin.start_ns + 7),
                ppb.PageResult(**page, series=series(TICKER, 60), start_ns=open_ns, end_ns=open_ns + MINUTE_NS),
            ]
        )
        await one.ready()
        await one.complete(sent.job_id, success=False)
        after = await resume(s, (await one.job()).job_id)
        assert (after.start_ns, after.candles[0].start_ns) == (begin.start_ns + 7, open_ns + MINUTE_NS)


async def test_candles_that_spark_refuses_are_fetched_as_history(tmp_path: Path) -> None:
    async with suite(tmp_path) as s:
        one, sent = await at_work(s, 60)
        open_ns = (await resume(s, sent.job_id)).candles[0].start_ns
        await report(s, sent.job_id, (60, open_ns, open_ns + MINUTE_NS))
        values: dict[str, Any] = {"start_ns": open_ns, "end_ns": open_ns + MINUTE_NS}
        refused = ppb.PageResult(job_id=sent.job_id, series=series(TICKER, 60), refused="price -1", **values)
        await s.pipeline.report(pages=[refused])
    async with suite(tmp_path, clock=_Later(10 * MINUTE_NS)) as s:
        one = worker(s)
        await one.ready(ingest.HISTORICAL)
        again = (await one.job()).historical
        assert (again.start_time, again.end_time) == (open_ns, open_ns + MINUTE_NS)


async def test_since_begins_trades_there_and_has_candles_before_fetched_as_history(tmp_path: Path) -> None:
    async with suite(tmp_path) as s:
        one = worker(s)
        await one.ready()
        await one.ready(ingest.HISTORICAL)
        since_ns = time.time_ns() - 10 * MINUTE_NS
        await start(s, "a", 60, since_ns=since_ns, client_id="me")
        sent, history = sorted([await one.job(), await one.job()], key=lambda each: -each.type)
        begin = await resume(s, sent.job_id)
        assert begin.start_ns == since_ns
        open_ns = begin.candles[0].start_ns
        assert history.client_id == "me" and history.historical.period_seconds == 60
        first_ns = -(-since_ns // MINUTE_NS) * MINUTE_NS
        assert history.historical.start_time == first_ns
        assert history.historical.end_time == open_ns - MINUTE_NS  # the candle that is open now comes once it is closed
        ((request_id,),) = [each.history_request_ids for each in (await listed(s)).subscriptions]
        assert request_id == history.request_id and (await s.record(request_id)).request.client_id == "me"


@pytest.mark.parametrize("restarts", [False, True])
async def test_recent_candles_that_an_ended_request_lacks_are_requested_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, restarts: bool
) -> None:
    """The newest candle of a quiet market is settled minutes after its end; the relay may restart before."""
    async with suite(tmp_path, max_attempts=1, lease_seconds=1) as s:
        one = worker(s)
        await one.ready()
        await one.ready(ingest.HISTORICAL)
        await start(s, "a", 60, since_ns=time.time_ns() - 10 * MINUTE_NS)
        _, first = sorted([await one.job(), await one.job()], key=lambda each: -each.type)
        if restarts:
            monkeypatch.setattr(jobs.RealtimeJobs, "_repeat_history", _nothing)
        monkeypatch.setattr(jobs, "REPEAT_NS", 0)
        await one.complete(first.job_id, success=False)
        if not restarts:
            await _requested_again(one, first)
        await s.finished(first.request_id)
    if restarts:
        monkeypatch.undo()
        monkeypatch.setattr(jobs, "REPEAT_NS", 0)
        async with suite(tmp_path, max_attempts=1) as s:
            await _requested_again(worker(s), first)


async def _nothing(_: object) -> None:
    pass


async def _requested_again(one: RawWorker, first: ingest.DataRequest) -> None:
    await one.ready(ingest.HISTORICAL)
    again = await one.job()
    assert again.type == ingest.DataRequest.HISTORICAL_OHLC and again.job_id != first.job_id
    assert (again.historical.start_time, again.historical.end_time) == (
        first.historical.start_time,
        first.historical.end_time,
    )
    assert again.request_id != first.request_id


async def test_candles_that_realtime_skips_are_fetched_as_history(tmp_path: Path) -> None:
    async with suite(tmp_path) as s:
        one, sent = await at_work(s, 60)
        open_ns = (await resume(s, sent.job_id)).candles[0].start_ns
        await report(s, sent.job_id, (60, open_ns, open_ns + MINUTE_NS))
        await report(s, sent.job_id, (60, open_ns + 4 * MINUTE_NS, open_ns + 5 * MINUTE_NS))
        assert (await the_job(s)).series[1].settled_until_ns == open_ns + 5 * MINUTE_NS
    async with suite(tmp_path, clock=_Later(10 * MINUTE_NS)) as s:  # the hole is on disk
        one = worker(s)
        await one.ready(ingest.HISTORICAL)
        hole = (await one.job()).historical
        assert (hole.start_time, hole.end_time) == (open_ns + MINUTE_NS, open_ns + 4 * MINUTE_NS)


class _Later:
    def __init__(self, by_ns: int) -> None:
        self._by_ns = by_ns

    def wall_ns(self) -> int:
        return time.time_ns() + self._by_ns

    def monotonic_ns(self) -> int:
        return time.monotonic_ns()


async def test_a_job_begins_again_where_a_later_subscription_asks_for_more(tmp_path: Path) -> None:
    async with suite(tmp_path) as s:
        one, sent = await at_work(s)
        begin = await resume(s, sent.job_id)
        since_ns = begin.start_ns - MINUTE_NS
        await start(s, "b", since_ns=since_ns)
        assert await one.stopped() == sent.job_id
        assert not await report(s, sent.job_id, (0, begin.start_ns, begin.start_ns + 5), last_trade_id="9")
        await one.complete(sent.job_id)
        await one.ready()
        again = await resume(s, (await one.job()).job_id)
        assert again.start_ns == since_ns and not again.last_trade_id


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"subscription_id": ""}, "subscription.subscription_id is missing"),
        ({"ticker": "BTC/USDT.NOWHERE"}, "exchange 'NOWHERE' is not known"),
        ({"ticks": False}, "params ask for nothing"),
        ({"periods": [61]}, "period_seconds 61 is not one of"),
        ({"since_ns": 2**62}, "since_ns 4611686018427387904 is not between 1 and now"),
        ({"since_ns": 1, "periods": [1]}, "end_time"),
    ],
)
async def test_invalid_subscriptions_are_refused(tmp_path: Path, fields: dict[str, Any], text: str) -> None:
    async with suite(tmp_path) as s:
        values = {"subscription_id": "a", **fields}
        periods = values.pop("periods", ())
        with refused(grpc.StatusCode.INVALID_ARGUMENT, text):
            await start(s, values.pop("subscription_id"), *periods, **values)
        assert not (await listed(s)).subscriptions


async def test_a_repeated_start_with_a_later_since_is_the_same_one_and_an_earlier_one_is_not(tmp_path: Path) -> None:
    since_ns = time.time_ns() - 600 * SECOND_NS
    async with suite(tmp_path) as s:

        async def again(since_ns: int | None, *, trades: bool = True) -> bool:
            params = ingest.RealtimeParams(include_ticks=trades, include_ohlc=True, ohlc_period_seconds=[60])
            wanted = pb.RealtimeSubscription(subscription_id="a", ticker=TICKER, params=params, since_ns=since_ns)
            return bool((await s.relay.realtime.StartRealtime(pb.StartRealtimeRequest(subscription=wanted))).duplicate)

        assert not await again(since_ns)
        assert await again(since_ns) and await again(since_ns + 90 * SECOND_NS)
        (listed,) = (await s.relay.realtime.ListRealtime(pb.ListRealtimeRequest())).subscriptions
        assert listed.subscription.since_ns == since_ns, "the first one stays"
        for earlier in (since_ns - 1, None):
            with refused(grpc.StatusCode.INVALID_ARGUMENT, "another subscription"):
                await again(earlier)
        with refused(grpc.StatusCode.INVALID_ARGUMENT, "another subscription"):
            await again(since_ns + 90 * SECOND_NS, trades=False)
        await stop(s, "a")
        with refused(grpc.StatusCode.INVALID_ARGUMENT, "was stopped"):
            await again(since_ns + 90 * SECOND_NS)


async def test_an_id_belongs_to_one_subscription_for_good(tmp_path: Path) -> None:
    async with suite(tmp_path) as s:
        assert not await start(s, "a", 60) and await start(s, "a", 60)
        refusals = []
        for periods in ((60, 300), (60,)):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await start(s, "a", *periods)
            refusals.append(caught.value.details())
            await stop(s, "a")
            await stop(s, "a")
        assert refusals == [
            "subscription_id 'a' was used for another subscription",
            "subscription_id 'a' was stopped; choose a new one",
        ]
        with refused(grpc.StatusCode.NOT_FOUND):
            await stop(s, "never")


async def test_lists_have_pages_and_filters(tmp_path: Path) -> None:
    async with suite(tmp_path) as s:
        for number in range(5):
            await start(s, f"s{number}", client_id=f"c{number % 2}", ticker=f"T{number // 2}/USDT.SIM")
        pages, token = [], ""
        while True:
            page = await listed(s, page_size=2, page_token=token)
            pages.append([each.subscription.subscription_id for each in page.subscriptions])
            token = page.next_page_token
            if not token:
                break
        assert pages == [["s0", "s1"], ["s2", "s3"], ["s4"]]
        own = await listed(s, client_id="c1", ticker="T1/USDT.SIM")
        assert [each.subscription.subscription_id for each in own.subscriptions] == ["s3"]
        assert [job.ticker for job in own.jobs] == ["T1/USDT.SIM"]


async def test_reports_must_be_whole(tmp_path: Path) -> None:
    async with suite(tmp_path) as s:
        fields: dict[str, Any]
        for fields in (
            {"job_id": "", "series": series(TICKER)},
            {"job_id": "1-a"},
            {"job_id": "1-a", "series": series(TICKER), "start_ns": 2, "end_ns": 1},
            {"job_id": "x", "series": series(TICKER, 7)},
            {"job_id": "x", "series": series(TICKER, 0, "funding")},
        ):
            with refused(grpc.StatusCode.INVALID_ARGUMENT):
                await s.ingestors.ReportRealtime(ipb.ReportRealtimeRequest(reports=[ipb.RealtimeReport(**fields)]))
