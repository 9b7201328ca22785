"""Candles, tickers and Kraken's dialect over WebSockets, with unmodified ccxt.pro."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import orjson
import pytest

from tests.integration.services.exchange_sim.conftest import NOW_NS, Exchange, Start

SECOND_NS = 1_000_000_000
MINUTE_MS = 60_000
BOTH = pytest.mark.parametrize(
    ("name", "symbol", "stream"),
    [("pro", "BTC/USDT", "btcusdt@{}"), ("kraken_pro", "DOGE/USD", "('{}', 'DOGE/USD', {})")],
)


async def pushed(exchange: Exchange, awaited: Awaitable[Any], *streams: str) -> Any:
    """Result of a task that watches streams, while the clock moves second by second."""
    task = asyncio.ensure_future(awaited)
    await exchange.subscribed(*streams)
    while not task.done():
        await exchange.clock(advance_ns=SECOND_NS)
    return await task


async def collect(watch: Callable[[], Awaitable[list[Any]]], enough: Callable[[list[Any]], bool]) -> list[Any]:
    found: list[Any] = []
    while not enough(found):
        found += await watch()
    return found


async def test_kraken_trades_are_those_of_rest(exchange: Exchange) -> None:
    client, same = exchange.kraken_pro, ("id", "timestamp", "price", "amount", "side", "type")
    watching = collect(lambda: client.watch_trades("DOGE/USD"), lambda found: len(found) > 200)
    trades = await pushed(exchange, watching, "('trade', 'DOGE/USD', 0)")
    since = trades[0]["timestamp"] // 1000 * 1000
    page = [trade for trade in await client.fetch_trades("DOGE/USD", since) if int(trade["id"]) >= int(trades[0]["id"])]
    assert [[trade[name] for name in same] for trade in trades] == [
        [trade[name] for name in same] for trade in page[: len(trades)]
    ]


@BOTH
async def test_candles_are_those_of_rest(exchange: Exchange, name: str, symbol: str, stream: str) -> None:
    client = getattr(exchange, name)
    first = NOW_NS // 1_000_000 // MINUTE_MS * MINUTE_MS
    watching = collect(
        lambda: client.watch_ohlcv(symbol, "1m"), lambda rows: bool(rows) and rows[-1][0] > first + 5 * MINUTE_MS
    )
    channel = stream.format("kline_1m") if name == "pro" else stream.format("ohlc", 1)
    rows = await pushed(exchange, watching, channel)
    last = {row[0]: row for row in rows if row[0] >= first}  # the last one of a minute is its closed candle
    assert list(last)[:7] == list(range(first, first + 7 * MINUTE_MS, MINUTE_MS))
    stored = {row[0]: row for row in await client.fetch_ohlcv(symbol, "1m")}
    for minute in list(last)[:6]:
        assert last[minute] == pytest.approx(stored[minute], rel=1e-12)


@pytest.mark.parametrize("fill", [True, False])
async def test_a_minute_without_trades_closes_on_time_where_the_exchange_fills_it(start: Start, fill: bool) -> None:
    async with start(fill=fill) as exchange:
        async with exchange.http.ws_connect(exchange.url + "/ws/xmrusd@kline_1m") as ws:
            await exchange.subscribed("xmrusd@kline_1m")
            closed: list[dict[str, Any]] = []
            await exchange.clock(advance_ns=3600 * SECOND_NS)
            async for message in ws:
                kline = orjson.loads(message.data)["k"]
                closed += [kline] if kline["x"] else []
                if kline["t"] > NOW_NS // 1_000_000 + 3000_000:
                    break
        first, last = closed[0]["t"], closed[-1]["t"]
        rows = await exchange.klines(symbol="XMRUSD", interval="1m", startTime=first, endTime=last)
        assert [[kline[name] for name in "tohlcv"] for kline in closed] == [row[:6] for row in rows]
        assert (len(rows) == (last - first) // MINUTE_MS + 1) == fill
        assert any(float(kline["v"]) == 0 == kline["n"] for kline in closed) == fill


async def test_all_mini_tickers_are_those_of_rest(exchange: Exchange) -> None:
    client = exchange.pro
    tickers = await pushed(exchange, client.watch_tickers(), "!miniTicker@arr")
    assert set(tickers) == set(await client.fetch_tickers())
    assert all(ticker["last"] > 0 for ticker in tickers.values())
    [name] = await pushed(exchange, client.watch_tickers(["ETH/USDT"]), "!miniTicker@arr", "ethusdt@miniTicker")
    assert name == "ETH/USDT"


async def test_a_sampled_ticker_equals_rest_and_comes_only_when_it_changed(exchange: Exchange) -> None:
    async with exchange.http.ws_connect(exchange.url + "/ws/btcusdt@miniTicker/omgusd@miniTicker") as ws:
        await exchange.subscribed("btcusdt@miniTicker", "omgusd@miniTicker")
        seen: list[dict[str, Any]] = []
        for _ in range(4):
            await exchange.clock(advance_ns=SECOND_NS)
            while (
                not seen
                or seen[-1]["s"] != "BTCUSDT"
                or seen[-1]["E"] < (await exchange.get("/api/v3/time"))["serverTime"]
            ):
                seen.append(orjson.loads((await ws.receive()).data))
            day = await exchange.get("/api/v3/ticker/24hr", symbol="BTCUSDT")
            assert [[one for one in seen if one["s"] == "BTCUSDT"][-1][name] for name in "cohlv"] == [
                day[name] for name in ("lastPrice", "openPrice", "highPrice", "lowPrice", "volume")
            ]
    assert [one["s"] for one in seen if one["s"] == "OMGUSD"] == ["OMGUSD"]  # delisted, so it never changes


async def test_kraken_tickers_are_those_of_rest(exchange: Exchange) -> None:
    client = exchange.kraken_pro
    [ticker] = (await pushed(exchange, client.watch_tickers(["ETH/USD"]), "('ticker', 'ETH/USD', 0)")).values()
    stored = await client.fetch_ticker("ETH/USD")
    assert ticker["symbol"] == "ETH/USD"
    assert (
        ticker["last"] == pytest.approx(stored["last"], rel=0.01) and ticker["high"] >= ticker["last"] >= ticker["low"]
    )


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ({"method": "ping", "req_id": 5}, {"method": "pong", "req_id": 5}),
        (
            {"method": "subscribe", "params": {"channel": "trade", "symbol": ["NO/USD"]}, "req_id": 1},
            {"success": False, "error": "Currency pair not supported NO/USD", "req_id": 1},
        ),
        ({"method": "subscribe", "params": {"channel": "book", "symbol": []}}, {"success": False}),
        (
            {"method": "subscribe", "params": {"channel": "ohlc", "symbol": ["ETH/USD"], "interval": 7}},
            {"success": False, "error": "Subscription ohlc interval not supported"},
        ),
        ("{", {"success": False, "error": "Malformed request"}),
        (
            {"method": "unsubscribe", "params": {"channel": "trade", "symbol": ["ETH/USD"]}},
            {"success": True, "result": {"channel": "trade", "symbol": "ETH/USD"}},
        ),
    ],
)
async def test_kraken_commands(exchange: Exchange, command: Any, expected: dict[str, Any]) -> None:
    async with exchange.http.ws_connect(exchange.url + "/v2") as ws:
        assert orjson.loads((await ws.receive()).data)["channel"] == "status"
        await ws.send_str(command if isinstance(command, str) else orjson.dumps(command).decode())
        answer = orjson.loads((await ws.receive()).data)
        assert {name: answer[name] for name in expected} == expected


async def test_kraken_snapshots(exchange: Exchange) -> None:
    async with exchange.http.ws_connect(exchange.url + "/v2") as ws:
        await ws.receive()
        params = {"channel": "trade", "symbol": ["ETH/USD"], "snapshot": True}
        await ws.send_str(orjson.dumps({"method": "subscribe", "params": params}).decode())
        assert orjson.loads((await ws.receive()).data)["success"]
        snapshot = orjson.loads((await ws.receive()).data)
        newest = (await exchange.get("/0/public/Trades", pair="XETHZUSD", count=50))["result"]["XETHZUSD"]
        assert snapshot["type"] == "snapshot"
        assert [trade["trade_id"] for trade in snapshot["data"]] == [row[6] for row in newest]
        await exchange.clock(advance_ns=SECOND_NS)
        update = orjson.loads((await ws.receive()).data)
        assert update["type"] == "update" and update["data"][0]["trade_id"] == newest[-1][6] + 1
