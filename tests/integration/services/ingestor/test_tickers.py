"""Every kind of ticker on its whole way: client, relay, job, ccxt, exchange, Kafka headers, Iceberg, file, topic."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from aiohttp import web

from dexorder.cli.history import command as history
from dexorder.cli.history.runs import RunStore, file_name
from dexorder.cli.rows.options import OutputOptions
from dexorder.errors import VenueUnknown
from dexorder_common.model.history import RequestStatus
from dexorder_common.model.instrument import InstrumentKind, InstrumentList
from dexorder_common.model.time_range import TimeRange
from tests.fakes.exchange import answering
from tests.unit.services.ingestor.whole import Whole, by_open, whole
from tests.unit.services.relay.harness import MINUTE_NS, at

pytestmark = pytest.mark.smoke

EXPIRY_MS = int(datetime(2025, 12, 26, 8, tzinfo=UTC).timestamp()) * 1_000
PERPETUAL_MS = 4_133_404_800_000
NOW_NS = at(1_000_000)


def future(symbol: str, kind: str, margin: str, base: str, quote: str, expiry_ms: int) -> dict[str, Any]:
    return {
        "symbol": symbol,
        "contractType": kind,
        "deliveryDate": expiry_ms,
        "marginAsset": margin,
        "baseAsset": base,
        "quoteAsset": quote,
        "status": "TRADING",
        "contractStatus": "TRADING",
        "filters": [],
    }


def option(symbol: str, strike: str, side: str) -> dict[str, Any]:
    base = symbol.partition("-")[0]
    return {
        "symbol": symbol,
        "underlying": f"{base}USDT",
        "quoteAsset": "USDT",
        "strikePrice": strike,
        "side": side,
        "expiryDate": EXPIRY_MS,
        "unit": 1,
        "filters": [],
    }


def spot(symbol: str, base: str, quote: str) -> dict[str, Any]:
    return {"symbol": symbol, "status": "TRADING", "baseAsset": base, "quoteAsset": quote, "filters": []}


INFO: dict[str, dict[str, Any]] = {
    "/api/v3": {"symbols": [spot("BTCUSDT", "BTC", "USDT"), spot("ETH2.SETH", "ETH2.S", "ETH")]},
    "/fapi/v1": {
        "symbols": [
            future("BTCUSDT", "PERPETUAL", "USDT", "BTC", "USDT", PERPETUAL_MS),
            future("BTCUSDT_251226", "CURRENT_QUARTER", "USDT", "BTC", "USDT", EXPIRY_MS),
        ]
    },
    "/dapi/v1": {
        "symbols": [
            future("BTCUSD_PERP", "PERPETUAL", "BTC", "BTC", "USD", PERPETUAL_MS),
            future("BTCUSD_251226", "CURRENT_QUARTER", "BTC", "BTC", "USD", EXPIRY_MS),
        ]
    },
    "/eapi/v1": {
        "optionSymbols": [
            option("BTC-251226-50000-C", "50000.000", "CALL"),
            option("XRP-251226-2.25-P", "2.25", "PUT"),
        ]
    },
}
TICKERS = {
    "BTC/USDT.SIM": ("/api/v3", "BTCUSDT"),
    "ETH2.S/ETH.SIM": ("/api/v3", "ETH2.SETH"),
    "BTC/USDT:USDT.SIM": ("/fapi/v1", "BTCUSDT"),
    "BTC/USDT:USDT-251226.SIM": ("/fapi/v1", "BTCUSDT_251226"),
    "BTC/USD:BTC.SIM": ("/dapi/v1", "BTCUSD_PERP"),
    "BTC/USD:BTC-251226.SIM": ("/dapi/v1", "BTCUSD_251226"),
    "BTC/USDT:USDT-251226-50000-C.SIM": ("/eapi/v1", "BTC-251226-50000-C"),
    "XRP/USDT:USDT-251226-2.25-P.SIM": ("/eapi/v1", "XRP-251226-2.25-P"),
}
"""Ticker -> where Binance has it: API and the market's own name there."""
NUMBERS = {place: float(n) for n, place in enumerate(TICKERS.values(), start=1)}
"""The volume of all of a market's candles, by which its rows are told from another's."""


class Derivatives:
    """Binance's four APIs, with one candle a minute of each market; keeps what was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []

    async def answer(self, request: web.Request) -> web.Response:
        api, _, call = request.path.rpartition("/")
        if call == "time":
            return web.json_response({"serverTime": NOW_NS // 1_000_000})
        if call == "exchangeInfo":
            return web.json_response(INFO[api])
        place = (api, request.query["symbol"])
        self.asked.append(place)
        first, last = int(request.query["startTime"]), int(request.query["endTime"])
        opens = range(-(-first // 60_000) * 60_000, last + 1, 60_000)[: int(request.query["limit"])]
        return web.json_response([candle(api, t, str(NUMBERS[place])) for t in opens])


def candle(api: str, open_ms: int, volume: str) -> Any:
    if api != "/eapi/v1":
        # Of an inverse contract ccxt takes the seventh column, which is in coins instead of contracts.
        return [open_ms, "2", "3", "1", "2", volume, open_ms + 59_999, volume, 1, "0", "0", "0"]
    return {"openTime": open_ms, "open": "2", "high": "3", "low": "1", "close": "2", "volume": volume}


@asynccontextmanager
async def derivatives(folder: Path) -> AsyncIterator[tuple[Whole, Derivatives]]:
    there = Derivatives()
    kinds = {"options": {"fetchMarkets": {"types": ["spot", "linear", "inverse", "option"]}}}
    async with answering(there.answer) as url, whole(folder, url=url, venue=kinds) as made:
        yield made, there


def kind_of(ticker: str) -> InstrumentKind:
    """Return the kind that the form of ccxt's symbol shows."""
    if ":" not in ticker:
        return InstrumentKind.SPOT
    parts = ticker.count("-")
    return InstrumentKind.OPTION if parts > 1 else InstrumentKind.FUTURE if parts else InstrumentKind.SWAP


async def reported(w: Whole) -> InstrumentList:
    async with asyncio.timeout(60):
        while True:
            try:
                return await w.client.markets("SIM")
            except VenueUnknown:
                await asyncio.sleep(0.05)


async def test_each_ticker_is_its_own_market_from_the_request_to_the_rows(tmp_path: Path) -> None:
    span = TimeRange(at(0), at(150))
    async with derivatives(tmp_path) as (w, exchange):
        listed = (await reported(w)).markets
        assert {m.ticker: m.exchange_id for m in listed} == {ticker: place[1] for ticker, place in TICKERS.items()}
        assert {m.ticker: m.kind for m in listed} == {ticker: kind_of(ticker) for ticker in TICKERS}
        assert {m.ticker for m in listed if m.expiry_ns == EXPIRY_MS * 1_000_000} == {t for t in TICKERS if "-25" in t}
        for ticker, place in TICKERS.items():
            exchange.asked.clear()
            first = len(w.gateway.records)
            ended = await w.ask(f"request:{ticker}/1", ticker, 60, span)
            assert ended.record.status is RequestStatus.OK, ended.record.error_message
            assert ended.record.ticker == ticker
            assert ended.notification.topic == f"HISTORY_READY:request:{ticker}/1"
            assert set(exchange.asked) == {place}
            assert {r.control.encode()["dx-ticker"] for r in w.gateway.records[first:]} == {ticker}
            rows = await w.rows(ended)
            assert list(rows) == list(range(span.start_ns, span.end_ns, MINUTE_NS))
            assert {row[4] for row in rows.values()} == {NUMBERS[place]}
        assert w.tickers == TICKERS.keys(), "what the table's rows say"
    assert len({file_name(ticker) for ticker in TICKERS}) == len(TICKERS)


async def test_command_takes_a_dated_future(tmp_path: Path) -> None:
    ticker, out = "BTC/USD:BTC-251226.SIM", tmp_path / "rows.parquet"
    async with derivatives(tmp_path) as (w, _):
        asked = history.new_run(
            (ticker, "1m"), None, "2024-01-01", "2024-01-01T02:00", OutputOptions(out=out), relay=w.client.relay
        )
        assert await asyncio.to_thread(history.run, asked, RunStore(tmp_path / "run.json"), timeout=60, quiet=True) == 0
        rows = pq.read_table(out)
        assert set(rows.column("ticker").to_pylist()) == {ticker}
        assert {row[4] for row in by_open(rows).values()} == {NUMBERS[TICKERS[ticker]]}
        assert rows.num_rows == 120


async def test_one_letter_more_or_less_is_another_ticker(tmp_path: Path) -> None:
    """A symbol is never guessed: the exchange's own names, other cases and the spot twin of a swap are unknown."""
    async with derivatives(tmp_path) as (w, exchange):
        for n, symbol in enumerate(("BTCUSDT", "btc/usdt", "BTC/USDT:USD", "BTC/USDT:USDT-251227", "ETH2/ETH")):
            record = (await w.ask(f"r{n}", f"{symbol}.SIM", 60, TimeRange(at(0), at(10)))).record
            assert record.status is RequestStatus.ERROR
            assert f"symbol {symbol!r} is unknown to SIM" in record.error_message
        assert exchange.asked == []
