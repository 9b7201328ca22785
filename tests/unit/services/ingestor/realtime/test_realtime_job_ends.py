"""Begin, end and repair of realtime jobs of a whole ingestor."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from dexorder_common.model.page import Kind
from dexorder_common.model.time_range import TimeRange
from dexorder_ingestor.exchange import live_sockets
from dexorder_ingestor.exchange.dialects import dialect_of
from dexorder_ingestor.exchange.trades import TradeSeries
from dexorder_ingestor.realtime import candle_checks
from dexorder_protos.dexorder.ingest.v1 import ingest_pb2 as pb
from tests.unit.services.ingestor.conftest import NOW_NS, until
from tests.unit.services.ingestor.realtime.live_world import SECOND_NS, check_job, live_world, resume_at

SINCE_NS = NOW_NS - 90 * SECOND_NS
MINUTE_NS = 60 * SECOND_NS


async def test_a_fenced_job_ends_without_completion_and_its_slot_is_offered_again(tmp_path: Path) -> None:
    async with live_world(tmp_path, since_ns=SINCE_NS) as live:
        await live.start("j1")
        await live.until_settled("j1", NOW_NS)
        live.world.relay.fenced.add("j1")
        async with asyncio.timeout(30):
            while True:
                _, message = await live.world.broker.hear()
                is_offer = isinstance(message, pb.WorkerReady) and message.job_type == pb.REALTIME
                if is_offer and live.world.relay.progress:
                    break
        heard = [m for _, m in live.world.broker.heard if isinstance(m, pb.WorkComplete)]
        assert not heard


@pytest.mark.parametrize("dialect", ["binance", "kraken"])
async def test_the_trades_of_a_stopped_market_are_unsubscribed_and_come_again_for_a_later_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dialect: str
) -> None:
    """ccxt.pro can't unsubscribe at Kraken; the trades are dropped there."""
    monkeypatch.setattr(live_sockets, "_LEAVE_SECONDS", 0.1)
    async with live_world(tmp_path, dialect=dialect, since_ns=SINCE_NS) as live:
        await live.start("j1")
        await live.until_settled("j1", NOW_NS)
        await live.until_subscribed(to_any=True)
        assert (await live.stop("j1")).success
        if dialect == "binance":
            await live.until_subscribed(to_any=False)
        else:
            await asyncio.sleep(0.5)
        await live.start("j2")
        await live.until_subscribed(to_any=True)
        await live.until_settled("j2", live.settled("j1") + 100 * SECOND_NS)
        assert (await live.stop("j2")).success
        await check_job(live, "j2", SINCE_NS)


async def test_a_job_that_is_no_longer_current_at_its_start_produces_nothing(tmp_path: Path) -> None:
    async with live_world(tmp_path, since_ns=SINCE_NS) as live:
        live.world.relay.fenced.add("j1")
        await live.start("j1")
        await live.start("j2")
        await live.until_settled("j2", NOW_NS)
        assert live.world.gateway.of("j1") == []


@pytest.mark.parametrize("dialect", ["binance", "kraken"])
async def test_a_reassigned_job_continues_behind_the_last_settled_trade(tmp_path: Path, dialect: str) -> None:
    async with live_world(tmp_path, dialect=dialect, since_ns=SINCE_NS) as live:
        await live.start("j1")
        await live.until_settled("j1", NOW_NS + 60 * SECOND_NS)
        assert (await live.stop("j1")).success
        last = [report for report in live.world.relay.progress if report.series.dataset == "trades"][-1]
        candles = [report for report in live.world.relay.progress if report.series.period_seconds == 60][-1]
        live.world.relay.resume = resume_at(last.end_ns, last_trade_id=last.last_trade_id)
        live.world.relay.resume.candles.add(period_seconds=60, start_ns=candles.end_ns)
        live.world.relay.resume.compared_until_ns = last.compared_until_ns
        await live.start("j2")
        await live.until_settled("j2", last.end_ns + 200 * SECOND_NS)
        assert (await live.stop("j2")).success
        trades = [t for job in ("j1", "j2") for r in live.records(job, Kind.TRADES) for t in r.trades]
        firsts = {t.trade_id: place for place, t in reversed([*enumerate(trades)])}
        again = [t for place, t in enumerate(trades) if firsts[t.trade_id] != place]
        assert all(t.revision and t.time_ns >= last.compared_until_ns for t in again), "only what was not compared"
        truth = await live.true_trades(TimeRange(SINCE_NS, live.settled("j2")))
        assert truth.keys() <= {t.trade_id for t in trades}
        pages = [*live.records("j1", Kind.PAGE, 60), *live.records("j2", Kind.PAGE, 60)]
        ends = [page.control.span.end_ns for page in pages]
        assert [page.control.span.start_ns for page in pages][1:] == ends[:-1], "candles join"


async def test_candles_of_a_silent_market_close_without_a_trade(tmp_path: Path) -> None:
    """The clock passes a minute in which nothing is traded; no socket message and no trade shows it."""
    async with live_world(tmp_path, dialect="kraken", market=("XMR/USD", "XXMRZUSD"), speed=30) as live:
        # XMR/USD has minutes without trades
        start_ns = await live.quiet_minute()
        await live.sim.clock(now_ns=start_ns + 50 * SECOND_NS, speed=30)
        live.world.relay.resume = resume_at(start_ns, 60)
        await live.start("j1")
        await until(lambda: bool(live.records("j1", Kind.PAGE, 60)))
        first = live.records("j1", Kind.PAGE, 60)[0]
        assert first.control.span.start_ns == start_ns
        assert first.control.empty[0].start_ns == start_ns
        await live.stop("j1")
        await check_job(live, "j1", start_ns)


async def test_a_trade_with_wrong_values_is_found_by_the_exchanges_candle_and_amended(tmp_path: Path) -> None:
    """REST doubles a volume in its answer about a time long ago; the answers after it are right."""
    start_ns = NOW_NS // MINUTE_NS * MINUTE_NS - 3 * MINUTE_NS
    async with live_world(tmp_path, since_ns=start_ns, speed=10, candle_check_seconds=0.1) as live:
        span = [start_ns, start_ns + 40 * SECOND_NS]
        await live.sim.faults({"kind": "edited", "path": "/api/v3/aggTrades", "span": span, "count": 2})
        await live.start("j1")
        await until(lambda: any(page.control.amends for page in live.records("j1", Kind.PAGE, 60)))
        assert (await live.stop("j1")).success
        truth = await live.true_candles(TimeRange(start_ns, start_ns + MINUTE_NS))
        pages = live.records("j1", Kind.PAGE, 60)
        told = [c for page in pages for c in page.candles if c.open_time_ns == start_ns]
        assert told[0].volume != truth[start_ns][4] and told[-1].volume == truth[start_ns][4]
        trades = {t.trade_id: t.amount for r in live.records("j1", Kind.TRADES) for t in r.trades}
        true_trades = await live.true_trades(TimeRange(start_ns, start_ns + MINUTE_NS))
        assert {i: trades[i] for i in true_trades} == {i: amount for i, (_, _, amount) in true_trades.items()}


async def test_a_repair_is_tried_again_when_the_exchange_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(candle_checks, "_RETRY_NS", SECOND_NS // 10)  # the exchange's clock is known by queries only
    start_ns = NOW_NS // MINUTE_NS * MINUTE_NS - 3 * MINUTE_NS
    settings: dict[str, Any] = {"candle_check_seconds": 0.2, "attempts": 1, "backoff_seconds": 0}
    async with live_world(tmp_path, since_ns=start_ns, speed=10, **settings) as live:
        span = [start_ns, start_ns + 40 * SECOND_NS]
        edited = {"kind": "edited", "path": "/api/v3/aggTrades", "span": span, "count": 2}
        # the first queries about this minute are those of the start; those behind them are the repair's
        down = {"kind": "http_502", "path": "/api/v3/aggTrades", "span": span, "after": 2, "count": 2}
        await live.sim.faults(down, edited)
        await live.start("j1")
        await until(lambda: any(page.control.amends for page in live.records("j1", Kind.PAGE, 60)))
        await live.until_seen(["http_502"])
        assert (await live.stop("j1")).success
        truth = await live.true_candles(TimeRange(start_ns, start_ns + MINUTE_NS))
        told = [c for page in live.records("j1", Kind.PAGE, 60) for c in page.candles if c.open_time_ns == start_ns]
        assert told[-1].volume == truth[start_ns][4]


async def test_kafka_trouble_delays_records_and_loses_none(tmp_path: Path) -> None:
    async with live_world(tmp_path, since_ns=SINCE_NS) as live:
        await live.start("j1")
        await live.until_settled("j1", NOW_NS + 30 * SECOND_NS)
        live.world.gateway.trouble = [grpc.StatusCode.UNAVAILABLE] * 6
        await live.until_settled("j1", NOW_NS + 300 * SECOND_NS)
        assert (await live.stop("j1")).success
        await check_job(live, "j1", SINCE_NS)


async def test_a_symbol_that_the_exchange_lacks_ends_the_job_with_the_reason(tmp_path: Path) -> None:
    async with live_world(tmp_path, market=("NOPE/USDT", "NOPEUSDT")) as live:
        await live.start("j1")
        _, complete = await live.world.broker.wait_for(pb.WorkComplete, "j1")
        assert not complete.success and "symbol 'NOPE/USDT' is unknown to SIM" in complete.error_message


async def test_shutdown_hands_the_job_back_with_everything_settled(tmp_path: Path) -> None:
    async with live_world(tmp_path, since_ns=SINCE_NS) as live:
        await live.start("j1")
        await live.until_settled("j1", NOW_NS + 60 * SECOND_NS)
        live.world.stop.set()
        _, complete = await live.world.broker.wait_for(pb.WorkComplete, "j1")
        assert (complete.success, complete.error_message) == (False, "this ingestor is shutting down")
        await check_job(live, "j1", SINCE_NS)


@pytest.fixture
def no_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nothing be known of the ids of the simulated exchange's trades."""
    dialect = replace(dialect_of("binance"), trades=TradeSeries(watch={"name": "aggTrade"}))
    monkeypatch.setattr("dexorder_ingestor.exchange.venue.dialect_of", lambda name, features: dialect)


@pytest.mark.usefixtures("no_numbers")
async def test_an_exchange_without_numbers_loses_and_doubles_no_trade_either(tmp_path: Path) -> None:
    """REST decides, with short queries of the newest."""
    async with live_world(tmp_path, since_ns=SINCE_NS, speed=60, trade_poll_seconds=0.1) as live:
        await live.sim.faults({"kind": "hole", "path": "/api/v3/aggTrades", "every": 5})
        await live.start("j1")
        await live.until_settled("j1", NOW_NS + 130 * SECOND_NS)
        await live.until_seen(["hole"])
        await live.sim.faults()
        assert (await live.stop("j1")).success
        await check_job(live, "j1", SINCE_NS)


@pytest.mark.usefixtures("no_numbers")
async def test_trades_that_the_exchange_no_longer_has_leave_a_hole_between_two_spans(tmp_path: Path) -> None:
    # queries by time are answered with nothing: only the newest 1,000 trades, 250 s, are there
    async with live_world(tmp_path, since_ns=NOW_NS - 900 * SECOND_NS, speed=60, trade_poll_seconds=0.1) as live:
        long_ago = [NOW_NS - 10_000 * SECOND_NS, NOW_NS - 300 * SECOND_NS]
        await live.sim.faults({"kind": "empty", "path": "/api/v3/aggTrades", "span": long_ago})
        await live.start("j1")
        await live.until_settled("j1", NOW_NS + 130 * SECOND_NS)
        assert (await live.stop("j1")).success
        records = live.records("j1", Kind.TRADES)
        starts = [r.control.span.start_ns for r in records][1:]
        holes = [
            (r.control.span.end_ns, s) for r, s in zip(records, starts, strict=False) if s != r.control.span.end_ns
        ]
        first_ns = records[0].control.span.start_ns
        holes += [(NOW_NS - 900 * SECOND_NS, first_ns)] if first_ns > NOW_NS - 900 * SECOND_NS else []
        ((_, end_ns),) = holes
        truth = await live.true_trades(TimeRange(end_ns, live.settled("j1")))
        assert truth.keys() <= {t.trade_id for r in records for t in r.trades}
        opens = [c.open_time_ns for r in live.records("j1", Kind.PAGE, 60) for c in r.candles]
        assert min(opens) >= end_ns, "candles of the hole are not built"
