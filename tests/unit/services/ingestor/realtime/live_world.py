"""An ingestor with realtime slots between a simulated exchange and fake services, and the truth of that exchange."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

from dexorder_common.model.page import Kind
from dexorder_common.model.periods import ceil_to_grid, open_times
from dexorder_common.model.time_range import TimeRange
from dexorder_ingestor.realtime import job
from dexorder_ingestor.realtime.numbered import quiet_time
from dexorder_protos.dexorder.ingest.v1 import ingest_pb2 as pb
from dexorder_protos.dexorder.relay.v1 import ingestor_service_pb2 as relay_pb
from tests.unit.services.ingestor.conftest import NOW_NS, Sim, World, exchanges_file, running_sim, running_world
from tests.unit.services.ingestor.fakes import Record

SECOND_NS = 1_000_000_000
MINUTE_NS = 60 * SECOND_NS
MARKETS = {"binance": ("BTC/USDT", "BTCUSDT"), "kraken": ("SOL/USDT", "SOLUSDT")}
"""A market of each dialect: ccxt's symbol and the exchange's id."""


@dataclass
class LiveWorld:
    """A running ingestor with realtime slots."""

    world: World
    sim: Sim
    dialect: str
    market: tuple[str, str]
    identity: bytes = b""

    @property
    def symbol(self) -> str:
        return self.market[0]

    @property
    def market_id(self) -> str:
        return self.market[1]

    async def start(self, job_id: str, *, periods: tuple[int, ...] = (60,), ticks: bool = True) -> None:
        """Send a realtime dispatch to a realtime slot."""
        while not self.identity:
            identity, offer = await self.world.broker.wait_for(pb.WorkerReady)
            self.identity = identity if offer.job_type == pb.REALTIME else b""
        params = pb.RealtimeParams(include_ticks=ticks, include_ohlc=bool(periods), ohlc_period_seconds=periods)
        request = pb.DataRequest(
            request_id=f"request of {job_id}",
            type=pb.DataRequest.REALTIME_TICKS,
            ticker=f"{self.symbol}.SIM",
            job_id=job_id,
            realtime=params,
        )
        await self.world.broker.send(self.identity, request)

    async def stop(self, job_id: str) -> pb.WorkComplete:
        """Send WorkStop; return the completion."""
        await self.world.broker.send(self.identity, pb.WorkStop(job_id=job_id))
        _, complete = await self.world.broker.wait_for(pb.WorkComplete, job_id)
        return complete

    def records(self, job_id: str, kind: Kind, period: int = 0) -> list[Record]:
        found = self.world.gateway.of(job_id)
        return [r for r in found if r.control.kind is kind and r.control.period_seconds == period]

    def settled(self, job_id: str) -> int:
        """Return the end of the last span of trades."""
        return max((r.control.span.end_ns for r in self.records(job_id, Kind.TRADES)), default=0)

    async def until_settled(self, job_id: str, time_ns: int) -> None:
        async with asyncio.timeout(100):
            while self.settled(job_id) < time_ns:  # noqa: ASYNC110 - it happens behind gRPC
                await asyncio.sleep(0.01)

    async def until_stats(self, condition: Callable[[dict[str, Any]], bool]) -> None:
        """Wait until the exchange's counts meet a condition."""
        async with asyncio.timeout(60):
            while not condition(await self.sim.stats()):  # noqa: ASYNC110 - it happens behind HTTP
                await asyncio.sleep(0.05)

    async def until_subscribed(self, *, to_any: bool) -> None:
        """Wait until the exchange's sockets have subscriptions, or none."""
        async with asyncio.timeout(60):
            while to_any != any(each["subscriptions"] for each in await self.sim.get("/sim/sockets")):  # noqa: ASYNC110
                await asyncio.sleep(0.05)

    async def until_seen(self, kinds: Iterable[str]) -> None:
        """Wait until each fault has occurred."""
        wanted = set(kinds)
        await self.until_stats(lambda stats: wanted <= stats["faults"].keys())

    async def true_trades(self, span: TimeRange) -> dict[str, tuple[int, float, float]]:
        """Return the exchange's trades of a span by id: milliseconds, price, amount; faults must be off."""
        if self.dialect == "kraken":
            return await self._kraken_trades(span)
        found: dict[str, tuple[int, float, float]] = {}
        query: dict[str, Any] = {
            "startTime": span.start_ns // 1_000_000,
            "endTime": span.start_ns // 1_000_000 + 60_000,
        }
        while True:
            rows = await self.sim.get("/api/v3/aggTrades", symbol=self.market_id, limit=1000, **query)
            for row in rows:
                if span.start_ns <= row["T"] * 1_000_000 < span.end_ns:
                    found[str(row["a"])] = (row["T"], float(row["p"]), float(row["q"]))
            if not rows or rows[-1]["T"] * 1_000_000 >= span.end_ns:
                return found
            query = {"fromId": rows[-1]["a"] + 1}

    async def _kraken_trades(self, span: TimeRange) -> dict[str, tuple[int, float, float]]:
        found: dict[str, tuple[int, float, float]] = {}
        since = span.start_ns - 1
        while True:
            answer = await self.sim.get("/0/public/Trades", pair=self.market_id, since=str(since))
            rows = answer["result"][self.market_id]
            for price, amount, time_s, *_, trade_id in rows:
                time_us = round(time_s * 1_000_000)
                if span.start_ns <= time_us * 1_000 < span.end_ns:
                    found[str(trade_id)] = (time_us // 1_000, float(price), float(amount))
            if not rows or rows[-1][2] * 1e9 >= span.end_ns:
                return found
            since = int(answer["result"]["last"])

    async def true_candles(self, span: TimeRange, interval: str = "1m") -> dict[int, list[float]]:
        """Return the exchange's own candles of a span."""
        return await self.sim.truth(span, self.symbol.replace("/", ""), interval)

    async def quiet_minute(self) -> int:
        """Return the start of a minute without trades behind one with trades, of the last hours."""
        end_ns = NOW_NS // MINUTE_NS * MINUTE_NS
        traded = await self.true_candles(TimeRange(end_ns - 600 * MINUTE_NS, end_ns))
        opens = range(end_ns - 599 * MINUTE_NS, end_ns, MINUTE_NS)
        return next(t for t in opens if t not in traded and t - MINUTE_NS in traded)


@asynccontextmanager
async def live_world(
    folder: Path,
    *,
    dialect: str = "binance",
    speed: float = 200,
    since_ns: int = NOW_NS,
    sim: dict[str, Any] | None = None,
    market: tuple[str, str] | None = None,
    **settings: Any,
) -> AsyncIterator[LiveWorld]:
    """Run an ingestor whose realtime dispatches begin at ``since_ns``.

    No call and no stop is cut off, however slow the machine is; otherwise records may come twice, and reports be lost.
    """
    settings = {"rpc_timeout_seconds": 60.0, "publish_timeout_seconds": 120.0, **settings}
    alone_ns = int(quiet_time.REST_ALONE_NS / speed)
    with patch.object(job, "_STOP_SECONDS", 60.0), patch.object(quiet_time, "REST_ALONE_NS", alone_ns):
        async with running_sim(speed=speed, **(sim or {})) as exchange:
            path = exchanges_file(folder, exchange.url, ccxt=dialect, realtime=4, slots=1, rate_per_second=1000)
            async with running_world(folder, path, **{"candle_check_seconds": 0.5, **settings}) as world:
                world.relay.resume = resume_at(since_ns, 60, 300)
                yield LiveWorld(world, exchange, dialect, market or MARKETS[dialect])


def resume_at(start_ns: int, *periods: int, last_trade_id: str | None = None) -> relay_pb.ResumeRealtimeResponse:
    starts = [relay_pb.CandleStart(period_seconds=p, start_ns=ceil_to_grid(start_ns, p)) for p in periods]
    return relay_pb.ResumeRealtimeResponse(current=True, start_ns=start_ns, last_trade_id=last_trade_id, candles=starts)


def check_spans(records: list[Record], start_ns: int) -> None:
    """The contract of docs/protocol.md for the records of one series of a job."""
    end_ns = start_ns
    for record in records:
        if record.control.amends:
            continue
        assert record.control.span.start_ns == end_ns
        end_ns = record.control.span.end_ns
        if record.control.kind is Kind.TRADES:
            assert all(trade.time_ns <= end_ns for trade in record.trades)


async def check_job(live: LiveWorld, job_id: str, since_ns: int, *, periods: tuple[int, ...] = (60,)) -> None:
    """All trades of the settled time are there once, in order; candles equal the exchange's."""
    records = live.records(job_id, Kind.TRADES)
    check_spans(records, since_ns)
    end_ns = records[-1].control.span.end_ns
    trades = [trade for record in records for trade in record.trades]
    truth = await live.true_trades(TimeRange(since_ns, end_ns))
    inside = [trade for trade in trades if trade.time_ns < end_ns]
    assert len({trade.trade_id for trade in trades}) == len(trades), "doubled trades"
    ours = {t.trade_id: (t.time_ns // 1_000_000, t.price, t.amount) for t in inside}
    assert not truth.keys() - ours.keys(), f"missing: {sorted(truth.keys() - ours.keys())[:5]}"
    assert not ours.keys() - truth.keys(), f"invented: {sorted(ours.keys() - truth.keys())[:5]}"
    assert not (wrong := [(i, ours[i], truth[i]) for i in ours if ours[i] != truth[i]]), wrong[:5]
    order = [(trade.time_ns, int(trade.trade_id)) for trade in trades]
    assert order == sorted(order)
    assert [r.control.page for r in live.world.gateway.of(job_id)] == list(range(len(live.world.gateway.of(job_id))))
    for period in periods:
        pages = live.records(job_id, Kind.PAGE, period)
        start_ns = ceil_to_grid(since_ns, period)
        check_spans(pages, start_ns)
        candles: dict[int, list[float]] = {}
        empty: set[int] = set()
        for page in pages:
            candles |= {c.open_time_ns: [c.open, c.high, c.low, c.close, c.volume] for c in page.candles}
            empty |= {t for gap in page.control.empty for t in open_times(gap, period)}
        closed = TimeRange(start_ns, max((p.control.span.end_ns for p in pages), default=start_ns))
        assert sorted([*candles, *empty]) == open_times(closed, period)
        theirs = await live.true_candles(closed, {60: "1m", 300: "5m"}[period])
        assert candles.keys() == theirs.keys()
        differences = [(t, candles[t], theirs[t]) for t in theirs if candles[t] != theirs[t]]
        assert not differences, differences[:3]
