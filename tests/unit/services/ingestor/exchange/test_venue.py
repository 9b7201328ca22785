"""Retries, bans and reading of answers: unmodified ccxt against the simulated exchange, time by hand."""

from __future__ import annotations

import asyncio
import re
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import ccxt.async_support as ccxt
import pytest
from prometheus_client import CollectorRegistry

from dexorder_common.clock import ManualClock
from dexorder_common.exchanges import Exchange
from dexorder_common.model.times import SECOND_NS
from dexorder_ingestor.config import IngestorSettings
from dexorder_ingestor.exchange.dialect import ErrorFacts
from dexorder_ingestor.exchange.failures import ExchangeFailure, ImpossibleCandle, announced_pause, status_of
from dexorder_ingestor.exchange.venue import CcxtSession, CcxtVenue
from dexorder_ingestor.metrics import IngestorMetrics
from tests.unit.services.ingestor.conftest import FAST, NOW_NS, Sim, minutes

SPAN = minutes(0, 10)


@dataclass
class Bench:
    """A venue whose sleeps pass at once and are kept; its rate budget is its own and never makes it wait."""

    url: str
    settings: dict[str, Any] = field(default_factory=dict)
    ccxt_id: str = "binance"
    slept: list[float] = field(default_factory=list)
    registry: CollectorRegistry = field(default_factory=CollectorRegistry)

    def __post_init__(self) -> None:
        self.clock = ManualClock(NOW_NS + 5 * SECOND_NS)
        folder = tempfile.TemporaryDirectory()
        self.close = folder.cleanup
        values = {**FAST, "backoff_seconds": 0, "rate_limit_dir": Path(folder.name), **self.settings}
        settings = IngestorSettings(**values)
        exchange = Exchange(
            ccxt=self.ccxt_id, rest_url=self.url, options={"fetchMarkets": {"types": ["spot"]}}, rate_per_second=1e15
        )
        self.venue = CcxtVenue("SIM", exchange, settings, IngestorMetrics(self.registry), self.clock, sleep=self.sleep)

    async def sleep(self, seconds: float) -> None:
        if seconds:
            self.slept.append(seconds)
        self.clock.advance(int(seconds * SECOND_NS) + 1)

    def count(self, name: str, **labels: str) -> float:
        return self.registry.get_sample_value(f"dexorder_ingestor_{name}_total", {"venue": "SIM", **labels}) or 0

    async def candles(self, session: CcxtSession) -> int:
        timeframe = await self.venue.timeframe(session, "BTC/USDT", 60)
        found, fetched_ns = await session.candles("BTC/USDT", timeframe, 60, SPAN)
        assert fetched_ns == self.clock.wall_ns()
        return len(found)


@asynccontextmanager
async def bench(url: str, **settings: Any) -> AsyncIterator[tuple[Bench, CcxtSession]]:
    made = Bench(url, settings)
    try:
        async with made.venue.session() as session:
            yield made, session
    finally:
        await made.venue.close()
        made.close()


async def test_clients_share_markets_and_throttle(sim: Sim) -> None:
    async with bench(sim.url) as (b, one), b.venue.session() as two:
        assert await b.candles(one) == await b.candles(two) == 10
        assert one.client is not two.client
        assert one.client.throttler is two.client.throttler
        assert b.count("calls") == 3, "markets are loaded once"


async def test_retry_after_keeps_everybody_away_until_it_is_over(sim: Sim) -> None:
    async with bench(sim.url) as (b, one), b.venue.session() as two:
        await b.candles(one)
        await sim.faults({"kind": "http_429", "count": 1, "retry_after_s": 7})
        assert await b.candles(one) == 10
        assert b.slept == [pytest.approx(7, abs=0.1)]
        assert b.count("bad_answers", kind="DDoSProtection") == 1
        assert b.count("ban_seconds") == pytest.approx(7, abs=0.1)
        b.venue.rate_limiter.ban(3)
        assert await b.candles(two) == 10
        assert b.slept[1:] == [pytest.approx(3, abs=0.1)]


async def test_ban_told_while_a_connection_is_opened_holds_for_the_call_that_waits_for_it(
    sim: Sim, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new connection takes some round trips after the call's turn; what was told in them must be kept, too."""
    async with bench(sim.url) as (b, session):
        opened = aiohttp.TCPConnector._create_connection

        async def open_slowly(connector: aiohttp.TCPConnector, *request: Any) -> Any:
            connection = await opened(connector, *request)
            b.venue.rate_limiter.ban(7)  # as another session, or process, may be told meanwhile
            return connection

        monkeypatch.setattr(aiohttp.TCPConnector, "_create_connection", open_slowly)
        await session.now_ns()
        assert b.slept == [pytest.approx(7, abs=0.1)], "before the one request, which leaves on the same connection"
        assert (await sim.stats())["requests"] == {"/api/v3/time": 1}


async def test_time_is_asked_once_for_ranges_that_are_long_past(sim: Sim) -> None:
    async with bench(sim.url) as (b, session):
        now_ns = await session.now_ns()
        for _ in range(3):
            assert now_ns <= await session.now_ns(now_ns - 2 * 3_600 * SECOND_NS) < now_ns + 60 * SECOND_NS
        assert (await sim.stats())["requests"] == {"/api/v3/time": 1}
        await session.now_ns(now_ns - 3_000 * SECOND_NS)  # not so long ago that a clock may not be wrong by it
        b.clock.advance(601 * SECOND_NS)
        await session.now_ns(now_ns - 2 * 3_600 * SECOND_NS)
        assert (await sim.stats())["requests"] == {"/api/v3/time": 3}


async def test_ban_is_heard_before_the_body_that_does_not_come() -> None:
    banned, sent = b"HTTP/1.1 429 Too Many Requests\r\nRetry-After: 7\r\nContent-Length: 2\r\n\r\n", asyncio.Event()
    heads = [banned, b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 16\r\n\r\n"]
    bodies, go_on = [b"{}", b'{"serverTime":1}'], asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while heads:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(heads.pop(0))
            sent.set()
            await go_on.wait()
            writer.write(bodies.pop(0))
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server, bench(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}") as (b, session):
        asked = asyncio.create_task(session.now_ns())
        await sent.wait()
        async with asyncio.timeout(60):
            while not b.venue.rate_limiter.is_banned():  # noqa: ASYNC110 - it happens in aiohttp
                await asyncio.sleep(0.01)
        go_on.set()
        assert await asked == 1_000_000
        assert b.slept == [pytest.approx(7, abs=0.1)], "it is one ban, told twice"


async def test_ban_told_with_the_last_try_is_kept_too(sim: Sim) -> None:
    async with bench(sim.url, attempts=1) as (b, session):
        await b.candles(session)
        await sim.faults({"kind": "http_429", "count": 1, "retry_after_s": 7})
        with pytest.raises(ExchangeFailure, match="in 1 attempts"):
            await b.candles(session)
        assert await b.candles(session) == 10
        assert b.slept == [pytest.approx(7, abs=0.1)]


async def test_rate_limit_in_the_exchanges_own_words_is_a_ban_of_the_usual_length(sim: Sim) -> None:
    async with bench(sim.url, ban_seconds=4) as (b, session):
        await b.candles(session)
        await sim.faults({"kind": "slow_down", "count": 1})
        assert await b.candles(session) == 10
        assert b.slept == [pytest.approx(4, abs=0.1)]


async def test_ban_that_lasts_too_long_ends_at_once_for_everybody(sim: Sim) -> None:
    async with bench(sim.url, longest_ban_seconds=60) as (b, one), b.venue.session() as two:
        await b.candles(one)
        await sim.faults({"kind": "http_418", "count": 1, "retry_after_s": 3600})
        for session in (one, two):
            with pytest.raises(ExchangeFailure, match=r"bans this address for another 3\d\d\d s"):
                await session.candles("BTC/USDT", "1m", 60, SPAN)
        assert b.slept == []


@pytest.mark.parametrize(
    ("kind", "tries"),
    [("http_403", 2), ("http_404", 2), ("http_451", 2), ("http_503", 5), ("http_504", 5), ("html", 5), ("null", 5)],
)
async def test_attempts_are_limited(sim: Sim, kind: str, tries: int) -> None:
    async with bench(sim.url, attempts=5, refused_attempts=2) as (b, session):
        await b.candles(session)
        before = b.count("calls")
        await sim.faults({"kind": kind})
        with pytest.raises(ExchangeFailure, match=rf"no valid answer to BTC/USDT 1m .* in {tries} attempts"):
            await session.candles("BTC/USDT", "1m", 60, SPAN)
        assert b.count("calls") - before == tries


@pytest.mark.parametrize(
    ("kind", "metric"),
    [("hang", "RequestTimeout"), ("drip", "RequestTimeout"), ("stall", "RequestTimeout"), ("reset", None)],
)
async def test_answer_that_does_not_come_to_its_end_is_cut_and_asked_for_again(
    sim: Sim, kind: str, metric: str | None
) -> None:
    async with bench(sim.url, call_timeout_seconds=1) as (b, session):
        one_second, patience = session.client.timeout, 30_000

        async def patiently(seconds: float) -> None:  # only the answer without an end is to be cut, on a busy host too
            session.client.timeout = patience
            await b.sleep(seconds)

        b.venue.sleep = patiently
        session.client.timeout = patience
        await b.candles(session)
        # A byte comes more often than once in the timeout, so it is the whole call's. Of two resets aiohttp hides one.
        await sim.faults({"kind": kind, "count": 1 if metric else 2, "drip_s": 0.1})
        session.client.timeout = one_second if metric else patience
        assert await b.candles(session) == 10
        assert b.count("bad_answers", kind=metric or "ExchangeNotAvailable") == 1


async def test_impossible_candle_is_named_with_its_row_after_equal_answers(sim: Sim) -> None:
    async with bench(sim.url) as (b, session):
        await b.candles(session)
        before = b.count("calls")
        await sim.faults({"kind": "low_above_high"})
        with pytest.raises(ImpossibleCandle, match=r"keeps answering candle \[16987971\d+, .*breaks low <= open") as e:
            await session.candles("BTC/USDT", "1m", 60, SPAN)
        assert e.value.opens == (minutes(5, 0).start_ns,)
        assert b.count("calls") - before == 7


async def test_other_faults_between_do_not_hide_an_impossible_candle(sim: Sim) -> None:
    """Otherwise one candle of a bad exchange would make the whole job missing: half of 8 attempts fail."""
    async with bench(sim.url, attempts=8) as (b, session):
        await b.candles(session)
        await sim.faults({"kind": "http_502", "every": 2}, {"kind": "low_above_high"})
        with pytest.raises(ImpossibleCandle, match=r"keeps answering candle \["):
            await session.candles("BTC/USDT", "1m", 60, SPAN)
        assert (await sim.stats())["faults"] == {"low_above_high": 7, "http_502": 6}


@pytest.mark.parametrize("kind", ["html", "empty", "cut_json", "http_500"])
async def test_list_of_markets_is_retried_too(sim: Sim, kind: str) -> None:
    await sim.faults({"kind": kind, "path": "/api/v3/exchangeInfo", "count": 2})
    async with bench(sim.url) as (b, session):
        assert await b.candles(session) == 10


async def test_unknown_symbol_is_looked_for_again_only_when_the_list_is_old(sim: Sim) -> None:
    async with bench(sim.url) as (b, session):
        await b.venue.timeframe(session, "BTC/USDT", 60)
        for calls in (1, 1):
            with pytest.raises(ExchangeFailure, match="symbol 'btc/usdt' is unknown to SIM"):
                await b.venue.timeframe(session, "btc/usdt", 60)
            assert b.count("calls") == calls
        b.clock.advance(61 * SECOND_NS)
        with pytest.raises(ExchangeFailure, match="unknown"):
            await b.venue.timeframe(session, "btc/usdt", 60)
        assert b.count("calls") == 2


async def test_unknown_symbol_is_told_what_may_be_meant(sim: Sim) -> None:
    told = {
        "BTC/USDTT": "close to it: 'BTC/USDT'",
        "XBT/USDT": "renamed, it is 'BTC/USDT'",
        "LUNA/USDC": "'LUNA/USDT' (no longer traded)",
        "BTCUSDT": "the exchange's own name of 'BTC/USDT'",
    }
    async with bench(sim.url) as (b, session):
        for symbol, text in told.items():
            with pytest.raises(ExchangeFailure, match=re.escape(text)):
                await b.venue.timeframe(session, symbol, 60)


async def test_period_the_exchange_does_not_have_is_refused(sim: Sim) -> None:
    async with bench(sim.url) as (b, session):
        session.client.timeframes = {"1m": "1m", "1h": "1h"}
        with pytest.raises(ExchangeFailure, match=r"period_seconds 180 \(3m\) is not offered by SIM; it has 1m, 1h"):
            await b.venue.timeframe(session, "BTC/USDT", 180)


async def test_refusal_is_not_repeated(sim: Sim) -> None:
    async with bench(sim.url) as (b, session):
        await b.candles(session)
        before = b.count("calls")
        session.client.markets["BTC/USDT"]["id"] = "NOPE"
        with pytest.raises(ExchangeFailure, match=r"SIM refuses BTC/USDT 1m .*BadSymbol"):
            await session.candles("BTC/USDT", "1m", 60, SPAN)
        assert b.count("calls") - before == 1


async def test_body_that_breaks_off_is_asked_for_again() -> None:
    async def broken(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n{")
        writer.close()

    server = await asyncio.start_server(broken, "127.0.0.1", 0)
    async with server, bench(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", attempts=3) as (b, session):
        with pytest.raises(ExchangeFailure, match="no valid answer to its markets in 3 attempts"):
            await b.venue.timeframe(session, "BTC/USDT", 60)


async def test_time_is_the_earlier_of_the_exchanges_and_ours(sim: Sim) -> None:
    async with bench(sim.url) as (b, session):
        assert await session.now_ns() == NOW_NS
        await sim.clock(now_ns=NOW_NS + 60 * SECOND_NS)
        assert await session.now_ns() == b.clock.wall_ns()


@pytest.mark.parametrize(
    ("status", "headers", "body", "seconds"),
    [
        (429, {"Retry-After": "12"}, "", 12),
        (503, {"retry-after": "3"}, "", 3),
        (403, {"retry-after": "3"}, "", 3),
        (503, {}, "", None),
        (418, {"Retry-After": "9"}, "IP banned until 1700000010500.", 10.5),
        (418, {"Retry-After": "9"}, "IP banned until 1600000000000.", 0),
        (429, {"Retry-After": "Fri, 31 Dec 1999 23:59:59 GMT"}, "", 5),
        (429, {"Retry-After": "Tue, 14 Nov 2023 22:14:20 GMT"}, "", 60),
        (503, {"Retry-After": "Tue, 14 Nov 2023 22:14:20 GMT"}, "", 60),
        (429, {"Retry-After": "Tue Nov 14 22:14:20 2023"}, "", 60),
        (429, {"Retry-After": "30.5"}, "", 30.5),
        (429, {"Retry-After": "Fri, 31 Dec 9999 23:59:59 GMT"}, "", 1e9),
        (429, {"Retry-After": "9" * 400}, "", 1e9),
        (503, {"Retry-After": "soon"}, "", None),
        (429, {}, "", 5),
        (400, {"Retry-After": "9"}, "", None),
        (200, {"Retry-After": "9"}, "", None),
    ],
)
def test_announced_pause(status: int, headers: dict[str, str], body: str, seconds: float | None) -> None:
    pause = announced_pause(status, headers, body, ErrorFacts(), default=5, wall_ns=1_700_000_000 * SECOND_NS)
    assert pause == seconds


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("binance GET https://x/y?a=1 451 Unavailable", 451),
        ("binance 418 I'm a teapot", 418),
        ("binance GET https://x/y", None),
        ("nothing", None),
    ],
)
def test_status_in_an_error(text: str, status: int | None) -> None:
    assert status_of(ccxt.ExchangeError(text)) == status
