"""What a realtime job knows beside its records, through a real relay: shown, kept over its death, given to the next."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import grpc
import pytest

from dexorder_common.model.periods import ceil_to_grid
from dexorder_common.model.realtime import (
    Knowledge,
    ProvisionalReason,
    ProvisionalSpan,
    RealtimeParams,
    StartedSubscription,
    Subscription,
    UncheckedCandles,
)
from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.times import SECOND_NS
from dexorder_protos.dexorder.market.v1 import ohlcv_pb2
from dexorder_protos.dexorder.relay.v1 import ingestor_service_pb2 as ipb
from dexorder_protos.dexorder.relay.v1 import pipeline_service_pb2 as ppb
from dexorder_protos.dexorder.relay.v1 import realtime_service_pb2 as pb
from dexorder_relay.state.realtime_job import RealtimeJob, SeriesPosition
from tests.series_messages import series
from tests.unit.services.relay.harness import TICKER, Suite, refused, suite
from tests.unit.services.relay.realtime.worker import at_work, resume, the_job, worker

MINUTE_NS = 60 * SECOND_NS
SPAN = pb.ProvisionalSpan(
    start_ns=5, end_ns=9, reason=pb.PROVISIONAL_REASON_MISSING_IDS, first_id="7", last_id="8", since_ns=11, queries=1
)


def _candles(opens: int = 0, **values: Any) -> ipb.UncheckedCandles:
    ohlcv = ohlcv_pb2.OHLCV(open_time_ns=opens, open=1, high=4, low=1, close=3, volume=2.5, trade_count=3)
    span: dict[str, Any] = {"start_ns": opens, "end_ns": opens + MINUTE_NS}
    return ipb.UncheckedCandles(**{"period_seconds": 60, "ohlcv": ohlcv, **span, **values})


async def _tell(s: Suite, job_id: str, **fields: Any) -> None:
    status = ipb.RealtimeStatus(job_id=job_id, **fields)
    await s.ingestors.ReportRealtime(ipb.ReportRealtimeRequest(statuses=[status]))


async def _land(s: Suite, job_id: str, *, end_ns: int) -> None:
    """Report that the table has a record of trades."""
    page = ppb.PageResult(job_id=job_id, series=series(ticker=TICKER), start_ns=0, end_ns=end_ns, rows=0)
    await s.pipeline.report(pages=[page])


async def test_the_next_dispatch_goes_on_with_what_the_one_before_knew(tmp_path: Path) -> None:
    async with suite(tmp_path, lease_seconds=1) as s:
        _, sent = await at_work(s, 60)
        confirmed = _candles(MINUTE_NS, comparisons=1)
        empty = ipb.UncheckedCandles(period_seconds=60, start_ns=2 * MINUTE_NS, end_ns=3 * MINUTE_NS)
        await _tell(s, sent.job_id, provisional=[SPAN], unchecked=[_candles(), confirmed, empty], late_trades=4)
        job = await the_job(s)
        assert list(job.provisional) == [SPAN] and (job.unconfirmed_candles, job.late_trades) == (2, 4)
    async with suite(tmp_path, lease_seconds=1) as s:
        second = worker(s)
        await second.ready()
        again = await second.job()
        begun = await resume(s, again.job_id)
        assert list(begun.provisional) == [SPAN]
        assert list(begun.unchecked) == [_candles(), confirmed, empty]
        assert (await the_job(s)).late_trades == 0, "it counts those of the current dispatch"
        await _tell(s, sent.job_id)
        assert list((await the_job(s)).provisional) == [SPAN], "the word of a fenced dispatch counts for nothing"
        await _tell(s, again.job_id)
        assert list((await the_job(s)).provisional) == [SPAN], "the table does not have the trades that ended it"
        await _land(s, again.job_id, end_ns=time.time_ns())
        assert not (await the_job(s)).provisional


async def test_the_reason_of_a_job_that_settles_nothing_is_its_error(tmp_path: Path) -> None:
    async with suite(tmp_path) as s:
        _, sent = await at_work(s)
        await _tell(s, sent.job_id, waiting="REST is behind")
        assert (await the_job(s)).last_error == "REST is behind"
        await _tell(s, sent.job_id, waiting="\x1b[2J" + "x" * 1_000)
        assert (await the_job(s)).last_error == "[2J" + "x" * 496 + "…", "an exchange writes part of it"
        await _tell(s, sent.job_id)
        assert (await the_job(s)).last_error == ""


@pytest.mark.parametrize(
    "fields",
    [
        {"provisional": [pb.ProvisionalSpan(start_ns=9, end_ns=5)]},
        {"provisional": [SPAN] * 1_001},
        {"unchecked": [_candles(1)]},
        {"unchecked": [_candles(period_seconds=61)]},
        {"waiting": "x" * 1_025},
    ],
    ids=["reversed", "too many", "off the grid", "no period", "too long"],
)
async def test_a_status_that_makes_no_sense_is_refused_and_changes_nothing(tmp_path: Path, fields: Any) -> None:
    async with suite(tmp_path) as s:
        _, sent = await at_work(s)
        await _tell(s, sent.job_id, provisional=[SPAN])
        with refused(grpc.StatusCode.INVALID_ARGUMENT):
            await _tell(s, sent.job_id, **fields)
        assert list((await the_job(s)).provisional) == [SPAN]


def test_a_provisional_span_is_whole_candles_of_a_period() -> None:
    doubt = ProvisionalSpan(TimeRange(MINUTE_NS + 5, MINUTE_NS + 9), ProvisionalReason.MISSING_IDS)
    job = RealtimeJob(1, TICKER, knowledge=Knowledge((doubt,)))
    assert job.provisional_in(0, TimeRange(0, 9 * MINUTE_NS)) == [doubt.span]
    assert job.provisional_in(60, TimeRange(0, 9 * MINUTE_NS)) == [TimeRange(MINUTE_NS, 2 * MINUTE_NS)]
    assert job.provisional_in(60, TimeRange(0, MINUTE_NS)) == []


GAP = ProvisionalSpan(TimeRange(40, 60), ProvisionalReason.MISSING_IDS, "7", "9", since_ns=100)
ALONE = ProvisionalSpan(TimeRange(70, 80), ProvisionalReason.ONE_SOURCE, since_ns=100)


def _job(*known: ProvisionalSpan, trades: bool = True) -> RealtimeJob:
    positions = {0 if trades else 60: SeriesPosition(0, 90)}
    subscriptions = {"s": StartedSubscription(Subscription("s", TICKER, RealtimeParams(True)), 0, 0)}
    return RealtimeJob(1, TICKER, subscriptions, positions=positions, knowledge=Knowledge(known))


def test_a_span_that_the_dispatch_has_ended_is_provisional_until_the_table_has_later_trades() -> None:
    job = _job(GAP, ALONE)
    grown, asked = ALONE._replace(span=TimeRange(70, 85)), GAP._replace(queries=1)
    assert job.learn(Knowledge((asked, grown))) == (True, True) and not job.closing, "none has ended"
    job.learn(Knowledge((asked,)))
    assert job.learn(Knowledge()) == (False, False)
    assert job.provisional_in(0, TimeRange(0, 99)) == [GAP.span, grown.span]
    assert not job.landed(TimeRange(80, 90)), "Kafka had this record before the trades that ended the span"
    assert job.landed(TimeRange(90, 91)) and not job.provisional_in(0, TimeRange(0, 99))
    assert not job.landed(TimeRange(91, 92))


def test_a_span_of_which_some_ids_came_is_provisional_as_a_whole_until_then() -> None:
    job, left = _job(GAP), GAP._replace(first_id="9")
    job.learn(Knowledge((left,)))
    assert set(job.knowledge.provisional) == {GAP._replace(queries=0), left}
    job.positions[0].next_ns = 200
    job.learn(Knowledge((left,)))
    assert job.landed(TimeRange(90, 91)), "repeated knowledge does not wait for more"
    assert job.knowledge.provisional == (left,)


def test_a_dispatch_that_is_lost_before_its_late_trades_are_in_kafka_leaves_the_gap_to_the_next() -> None:
    job = _job(GAP)
    job.learn(Knowledge())
    job.lose("killed")
    job.assign("again", b"i", wall_ns=1)
    assert job.resumption().provisional == (GAP,)
    assert not job.landed(TimeRange(90, 200)), "records of the next one end nothing by themselves"
    assert job.provisional_in(0, TimeRange(0, 99)) == [GAP.span]


def test_a_status_that_a_newer_one_has_overtaken_ends_nothing() -> None:
    job = _job()
    assert job.learn(Knowledge((GAP,)), 12) == (True, True)
    assert job.learn(Knowledge(), 11) == (False, False), "its call was repeated while the relay was away"
    assert not job.landed(TimeRange(90, 91)) and job.provisional_in(0, TimeRange(0, 99)) == [GAP.span]
    assert job.learn(Knowledge((GAP,)), 12) == (False, False), "a repeated call changes nothing"
    job.learn(Knowledge(), 13)
    assert job.landed(TimeRange(90, 91)) and not job.provisional_in(0, TimeRange(0, 99))
    job.end_dispatch()
    job.assign("again", b"i", wall_ns=1)
    assert job.learn(Knowledge((ALONE,)), 1) == (True, True), "another process counts from one"


@pytest.mark.parametrize("span", [GAP, ALONE], ids=["ids", "time"])
def test_a_span_that_is_named_again_is_open_again(span: ProvisionalSpan) -> None:
    job = _job(span)
    job.learn(Knowledge())
    job.learn(Knowledge((span,)))
    assert not job.landed(TimeRange(90, 91)) and job.provisional_in(0, TimeRange(0, 99)) == [span.span]
    job.positions[0].next_ns = 91
    job.learn(Knowledge())
    assert not job.landed(TimeRange(90, 91)) and job.landed(TimeRange(91, 92))
    assert not job.provisional_in(0, TimeRange(0, 99))


def test_of_time_that_is_named_again_in_part_the_rest_has_ended() -> None:
    job, part = _job(ALONE), ALONE._replace(span=TimeRange(70, 75))
    job.learn(Knowledge())
    job.learn(Knowledge((part,)))
    assert job.provisional_in(0, TimeRange(0, 99)) == [ALONE.span]
    assert job.landed(TimeRange(90, 91))
    assert job.provisional_in(0, TimeRange(0, 99)) == [part.span]


def test_without_records_of_trades_a_span_ends_at_once() -> None:
    job = _job(GAP, trades=False)
    assert job.learn(Knowledge()) == (True, True) and not job.knowledge.provisional


def test_candles_of_a_period_that_nobody_asks_for_are_forgotten() -> None:
    job = RealtimeJob(1, TICKER, positions={60: SeriesPosition(0, ceil_to_grid(1, 60))})
    kept, dropped = (UncheckedCandles(period, TimeRange(0, 300 * SECOND_NS), 0, None) for period in (60, 300))
    assert job.learn(Knowledge(unchecked=(kept, dropped))) == (True, False)
    assert job.knowledge.unchecked == (kept,)
    assert job.learn(Knowledge(unchecked=(kept, dropped))) == (False, False)


def test_candles_that_no_status_has_told_of_are_to_be_compared() -> None:
    """Their dispatch was killed after Kafka had them, and the relay knows them only from the table."""
    job = RealtimeJob(1, TICKER, positions={0: SeriesPosition(0, 1), 60: SeriesPosition(MINUTE_NS, 20 * MINUTE_NS)})
    job.positions[300] = SeriesPosition(0, 0)
    (newest,) = job.resumption().unchecked
    assert newest == UncheckedCandles(60, TimeRange(10 * MINUTE_NS, 20 * MINUTE_NS), 0, None)
    told = UncheckedCandles(60, TimeRange(7 * MINUTE_NS, 19 * MINUTE_NS), 0, None)
    job.learn(Knowledge(unchecked=(told,)))
    assert job.resumption().unchecked == (told, newest._replace(span=TimeRange(19 * MINUTE_NS, 20 * MINUTE_NS)))
    job.learn(Knowledge(unchecked=(told, told._replace(span=TimeRange(19 * MINUTE_NS, 20 * MINUTE_NS)))))
    assert len(job.resumption().unchecked) == 2 and job.knowledge.unchecked == job.resumption().unchecked
