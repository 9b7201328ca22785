from __future__ import annotations

import asyncio
import os
import signal
import sys
from typing import Any

import aiohttp
import ccxt as ccxt_errors
import orjson
import pytest
from pydantic import ValidationError

from dexorder_common.config import split_address
from dexorder_exchange_sim.config import SimSettings
from dexorder_exchange_sim.faults import FaultRule, Kind
from dexorder_exchange_sim.server import Simulator
from tests.integration.services.exchange_sim.conftest import NOW_NS, Exchange, Start

NOW_MS = NOW_NS // 1_000_000
HOUR_MS = 3_600_000
SINCE = 1_577_836_800_000


async def test_load_markets_with_default_options(exchange: Exchange) -> None:
    markets = await exchange.client.load_markets()
    assert {"BTC/USDT", "ETH/USDT", "SOL/USDT", "BTC/USD"} <= set(markets)
    assert len(markets) >= 20
    assert markets["BTC/USDT"]["active"] and markets["BTC/USDT"]["spot"]
    assert markets["BTC/USDT"]["precision"]["price"] == 0.01
    assert [symbol for symbol, market in markets.items() if not market["active"]] == ["LUNA/USDT", "OMG/USD"]


async def test_spot_only_loads_from_one_host(start: Start) -> None:
    async with start({"fetchMarkets": {"types": ["spot"]}}) as exchange:
        await exchange.client.load_markets()
        assert (await exchange.stats())["requests"] == {"/api/v3/exchangeInfo": 1}


@pytest.mark.parametrize("timeframe", ["1s", "1m", "3m", "1h", "1d", "3d", "1w", "1M"])
async def test_every_timeframe_is_served(exchange: Exchange, timeframe: str) -> None:
    rows = await exchange.client.fetch_ohlcv("BTC/USDT", timeframe, limit=10)
    assert len(rows) == 10
    assert rows[-1][0] <= NOW_MS
    assert [row[0] for row in rows] == sorted({row[0] for row in rows})


async def test_paging_gives_every_candle_once(exchange: Exchange) -> None:
    rows: list[list[float]] = []
    since = SINCE
    while since < SINCE + 60 * HOUR_MS:
        page = await exchange.client.fetch_ohlcv("BTC/USDT", "1m", since, 1000, {"until": SINCE + 60 * HOUR_MS - 1})
        rows += page
        since = page[-1][0] + 60_000
    assert [row[0] for row in rows] == list(range(SINCE, SINCE + 60 * HOUR_MS, 60_000))
    hours = await exchange.client.fetch_ohlcv("BTC/USDT", "1h", SINCE, 60)
    for number, hour in enumerate(hours):
        part = rows[number * 60 : number * 60 + 60]
        assert hour[:5] == [part[0][0], part[0][1], max(r[2] for r in part), min(r[3] for r in part), part[-1][4]]
        assert hour[5] == pytest.approx(sum(r[5] for r in part), rel=1e-12)


async def test_kline_query_rules(exchange: Exchange) -> None:
    async def opens(**query: int) -> list[int]:
        return [row[0] for row in await exchange.klines(symbol="BTCUSDT", interval="1h", **query)]

    assert len(await opens()) == 500
    assert len(await opens(limit=5000)) == 1000
    assert await opens(startTime=SINCE, endTime=SINCE + 2 * HOUR_MS) == [SINCE + n * HOUR_MS for n in range(3)]
    assert await opens(startTime=SINCE + 1, limit=1) == [SINCE + HOUR_MS]
    assert await opens(endTime=SINCE, limit=2) == [SINCE - HOUR_MS, SINCE]
    assert (await opens(limit=1))[0] == NOW_MS // HOUR_MS * HOUR_MS
    assert await opens(startTime=10**19) == []
    assert (await opens(startTime=0, limit=1)) == [1_502_928_000_000]


async def test_kline_columns(exchange: Exchange) -> None:
    [row] = await exchange.klines(symbol="ETHUSDT", interval="1M", startTime=SINCE, limit=1)
    assert row[6] == SINCE + 31 * 24 * HOUR_MS - 1
    assert [type(value) for value in row] == [int, str, str, str, str, str, int, str, int, str, str, str]
    assert all(len(value.partition(".")[2]) == 2 for value in row[1:5])
    assert row[7] == "0", "not known"


@pytest.mark.parametrize(
    ("path", "query", "code"),
    [
        ("/api/v3/klines", {"symbol": "NOPE", "interval": "1m"}, -1121),
        ("/api/v3/klines", {"symbol": "BTCUSDT", "interval": "7m"}, -1120),
        ("/api/v3/klines", {"symbol": "BTCUSDT"}, -1102),
        ("/api/v3/klines", {"interval": "1m"}, -1102),
        ("/api/v3/klines", {"symbol": "BTCUSDT", "interval": "1m", "limit": "x"}, -1100),
        ("/api/v3/klines", {"symbol": "BTCUSDT", "interval": "1m", "startTime": "-1"}, -1100),
        ("/api/v3/klines", {"symbol": "BTCUSDT", "interval": "1m", "limit": "0"}, -1130),
        ("/api/v3/exchangeInfo", {"symbol": "NOPE"}, -1121),
        ("/api/v3/aggTrades", {"symbol": "BTCUSDT", "fromId": "1", "startTime": "1"}, -1128),
    ],
)
async def test_refusals(exchange: Exchange, path: str, query: dict[str, str], code: int) -> None:
    async with exchange.http.get(exchange.url + path, params=query) as answer:
        body = await answer.json()
        assert (answer.status, body["code"]) == (400, code)


async def test_ccxt_calls_beside_candles(exchange: Exchange) -> None:
    client = exchange.client
    assert await client.fetch_time() == NOW_MS
    ticker = await client.fetch_ticker("BTC/USDT")
    [newest] = await client.fetch_ohlcv("BTC/USDT", "1m", limit=1)
    assert ticker["last"] == newest[4]
    assert ticker["low"] <= ticker["vwap"] <= ticker["high"]
    assert len(await client.fetch_tickers()) == len(client.markets)


async def test_trades_add_up_to_a_minute(exchange: Exchange) -> None:
    trades: list[dict[str, Any]] = await exchange.client.fetch_trades("BTC/USDT", SINCE, 1000)
    assert [int(trade["id"]) for trade in trades] == list(range(int(trades[0]["id"]), int(trades[0]["id"]) + 1000))
    minute = [trade for trade in trades if trade["timestamp"] < SINCE + 60_000]
    [candle] = await exchange.client.fetch_ohlcv("BTC/USDT", "1m", SINCE, 1)
    prices = [trade["price"] for trade in minute]
    assert candle[1:5] == [prices[0], max(prices), min(prices), prices[-1]]
    assert candle[5] == pytest.approx(sum(trade["amount"] for trade in minute), rel=1e-12)
    more = await exchange.client.fetch_trades("BTC/USDT", None, 3, {"fromId": int(trades[-1]["id"])})
    assert more[0]["id"] == trades[-1]["id"] and len(more) == 3
    newest = await exchange.client.fetch_trades("BTC/USDT", None, 5)
    assert len(newest) == 5 and NOW_MS - 3000 < newest[-1]["timestamp"] <= NOW_MS


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        ("http_429", ccxt_errors.DDoSProtection),
        ("http_418", ccxt_errors.DDoSProtection),
        ("http_403", ccxt_errors.ExchangeNotAvailable),
        ("http_404", ccxt_errors.ExchangeNotAvailable),
        ("http_451", ccxt_errors.ExchangeNotAvailable),
        ("http_500", ccxt_errors.ExchangeNotAvailable),
        ("http_502", ccxt_errors.ExchangeNotAvailable),
        ("http_503", ccxt_errors.ExchangeNotAvailable),
        ("http_504", ccxt_errors.RequestTimeout),
    ],
)
async def test_statuses_reach_ccxt_as_its_errors(exchange: Exchange, kind: str, error: type[Exception]) -> None:
    await exchange.client.load_markets()
    await exchange.faults({"kind": kind, "count": 1, "retry_after_s": 17})
    with pytest.raises(error):
        await exchange.client.fetch_ohlcv("BTC/USDT")
    if kind in ("http_429", "http_418"):
        assert exchange.client.last_response_headers["Retry-After"] == "17"
    assert len(await exchange.client.fetch_ohlcv("BTC/USDT")) == 500
    assert (await exchange.stats())["faults"] == {kind: 1}


async def test_unknown_symbol_is_bad_symbol(exchange: Exchange) -> None:
    await exchange.client.load_markets()
    exchange.client.markets["BTC/USDT"]["id"] = "NOPE"
    with pytest.raises(ccxt_errors.BadSymbol):
        await exchange.client.fetch_ohlcv("BTC/USDT")


BODIES: dict[Kind, str] = {
    "html": "<!DOCTYPE html><html><body><h1>Down for maintenance</h1></body></html>",
    "text": "temporarily unavailable",
    "null": "null",
    "empty": "[]",
    "slow_down": '{"code":-1003,"msg":"Too many requests."}',
    "unavailable": '{"code":-1001,"msg":"Internal error; unable to process your request."}',
}


@pytest.mark.parametrize(("kind", "body"), BODIES.items())
async def test_wrong_bodies_come_with_status_200(exchange: Exchange, kind: str, body: str) -> None:
    await exchange.faults({"kind": kind})
    async with exchange.http.get(f"{exchange.url}/api/v3/klines?symbol=BTCUSDT&interval=1m") as answer:
        assert (answer.status, await answer.text()) == (200, body)


async def test_cut_json_is_the_first_half(exchange: Exchange) -> None:
    async def fetch() -> bytes:
        async with exchange.http.get(f"{exchange.url}/api/v3/klines?symbol=BTCUSDT&interval=1m") as answer:
            return await answer.read()

    whole = await fetch()
    await exchange.faults({"kind": "cut_json"})
    assert await fetch() == whole[: len(whole) // 2]


async def test_row_faults_reach_the_client(exchange: Exchange) -> None:
    good = await exchange.klines(symbol="BTCUSDT", interval="1m", startTime=SINCE, limit=100)
    await exchange.faults({"kind": "hole", "count": 1}, {"kind": "unfinished"})
    assert await exchange.klines(symbol="BTCUSDT", interval="1m", startTime=SINCE, limit=100) == good[:45] + good[55:]
    odd = await exchange.klines(symbol="BTCUSDT", interval="1m", startTime=SINCE, limit=100)
    assert odd[:-1] == good and odd[-1][0] == NOW_MS // 60_000 * 60_000


async def test_answers_of_another_market_and_of_another_range(exchange: Exchange) -> None:
    async def rows(symbol: str, since: int = SINCE, limit: int = 100) -> list[list[Any]]:
        return await exchange.klines(symbol=symbol, interval="1m", startTime=since, limit=limit)

    btc, eth, bnb = [await rows(symbol) for symbol in ("BTCUSDT", "ETHUSDT", "BNBUSDT")]
    before = await rows("BTCUSDT", SINCE - 120_000, 2)
    await exchange.faults({"kind": "other_symbol"})
    assert (await rows("BTCUSDT"), await rows("ETHUSDT"), await rows("BNBUSDT")) == (eth, btc, eth)
    await exchange.faults({"kind": "other_symbol", "other": "BNBUSDT"})
    assert (await rows("BTCUSDT"), await rows("BNBUSDT")) == (bnb, eth)
    await exchange.faults({"kind": "outside"})
    assert await rows("BTCUSDT") == before + btc
    await exchange.faults({"kind": "short", "size": 30})
    assert await rows("BTCUSDT") == btc[:30]


async def test_running_is_the_last_candle_at_half_its_time(exchange: Exchange) -> None:
    query: dict[str, str | int] = {"symbol": "BTCUSDT", "startTime": SINCE}
    good = await exchange.klines(**query, interval="1h", limit=3)
    half = await exchange.klines(**query | {"startTime": SINCE + 2 * HOUR_MS}, interval="30m", limit=1)
    await exchange.faults({"kind": "running"})
    bad = await exchange.klines(**query, interval="1h", limit=3)
    assert bad[:2] == good[:2]
    assert bad[2][:6] == [*half[0][:6]] != good[2][:6]
    assert bad[2][6] == good[2][6]


async def test_a_broken_shard_spoils_its_time_for_whoever_asks(exchange: Exchange) -> None:
    async def opens(start: int, limit: int) -> list[int]:
        rows = await exchange.klines(symbol="BTCUSDT", interval="1m", startTime=SINCE + start * 60_000, limit=limit)
        return [(row[0] - SINCE) // 60_000 for row in rows]

    start_ns = SINCE * 1_000_000
    await exchange.faults({"kind": "hole", "span": [start_ns + 600_000_000_000, start_ns + 720_000_000_000]})
    assert await opens(0, 10) == list(range(10))
    assert await opens(0, 20) == [*range(10), *range(12, 20)]
    assert await opens(11, 3) == [12, 13]
    assert await opens(12, 3) == [12, 13, 14]
    assert (await exchange.stats())["faults"] == {"hole": 2}


async def test_a_rule_that_names_no_market_is_refused(exchange: Exchange) -> None:
    for other, status in (("NOPE", 400), ("XETHZUSD", 200), ("ETHUSDT", 200)):
        rules = [{"kind": "other_symbol", "other": other}]
        async with exchange.http.post(f"{exchange.url}/sim/faults", json=rules) as answer:
            assert answer.status == status, await answer.text()
    with pytest.raises(ValueError, match="NOPE"):
        Simulator(SimSettings(faults=(FaultRule(kind="other_symbol", other="NOPE"),)))


async def test_drip_sends_the_head_and_then_byte_after_byte(exchange: Exchange) -> None:
    await exchange.faults({"kind": "drip", "path": "*", "drip_s": 0.001})
    async with exchange.http.get(f"{exchange.url}/api/v3/time") as answer:
        assert answer.status == 200
        assert [await answer.content.readexactly(1) for _ in range(3)] == [b"{", b'"', b"s"]


async def test_stall_sends_half_and_no_more(exchange: Exchange) -> None:
    await exchange.faults({"kind": "stall", "path": "*", "hang_s": 0})
    async with exchange.http.get(f"{exchange.url}/api/v3/time") as answer:
        assert answer.status == 200
        with pytest.raises(aiohttp.ClientError):
            await answer.read()


async def test_reset_is_a_reset(exchange: Exchange) -> None:
    await exchange.faults({"kind": "reset", "path": "*"})
    reader, writer = await ask(exchange.url, "/api/v3/time")
    with pytest.raises(ConnectionResetError):
        await reader.read()
    writer.close()


async def test_calls_beyond_the_limit_of_a_second_are_refused_and_counted(start: Start) -> None:
    async with start(call_limit=3) as exchange:
        seen = []
        for _ in range(4):
            async with exchange.http.get(f"{exchange.url}/api/v3/ping") as answer:
                seen.append(answer.status)
        stats = await exchange.stats()
        if stats["most_calls_1s"] == 4:  # else the machine took longer than a second for four calls
            assert seen == [200, 200, 200, 429]
            assert stats["faults"] == {"over_limit": 1}
        assert stats["most_calls_60s"] == 4


async def ask(url: str, path: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A request on a plain socket: aiohttp's client would quietly repeat it when the connection is cut."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
    writer.write(f"GET {path} HTTP/1.1\r\nHost: sim\r\n\r\n".encode())
    await writer.drain()
    return reader, writer


async def silence(connection: tuple[asyncio.StreamReader, asyncio.StreamWriter]) -> None:
    """The other side closes without having said anything."""
    reader, writer = connection
    try:
        assert await asyncio.wait_for(reader.read(), 20) == b""
    except ConnectionResetError:
        pass
    finally:
        writer.close()


async def test_hang_answers_nothing_and_does_not_keep_the_server(start: Start) -> None:
    async with start(faults=[{"kind": "hang", "count": 1}, {"kind": "hang", "hang_s": 0}]) as exchange:
        hanging = await ask(exchange.url, "/api/v3/klines")
        while not (await exchange.stats())["faults"]:
            pass
        await silence(await ask(exchange.url, "/api/v3/klines"))
        assert not hanging[0].at_eof()
    await silence(hanging)


async def test_calls_in_the_ban_window_are_counted(exchange: Exchange) -> None:
    await exchange.faults({"kind": "http_418", "count": 1, "retry_after_s": 3600})
    query: dict[str, str] = {"symbol": "BTCUSDT", "interval": "1m"}
    async with exchange.http.get(f"{exchange.url}/api/v3/klines", params=query) as answer:
        assert (answer.status, answer.headers["Retry-After"]) == (418, "3600")
    assert (await exchange.stats())["calls_in_ban"] == 0
    await exchange.klines(**query)
    stats = await exchange.stats()
    assert stats["calls_in_ban"] == len(stats["calls_in_ban_ms"]) == 1
    assert stats["requests"] == {"/api/v3/klines": 2}
    async with exchange.http.delete(f"{exchange.url}/sim/stats") as answer:
        assert (await answer.json())["requests"] == {}


async def test_weight_is_told_and_can_be_enforced(start: Start) -> None:
    async with start(weight_limit=5) as exchange:
        url = f"{exchange.url}/api/v3/klines?symbol=BTCUSDT&interval=1m"
        answers = [await exchange.http.get(url) for _ in range(3)]
        if len({int(a.headers["X-MBX-USED-WEIGHT"]) for a in answers}) == 3:  # no minute began in between
            assert [a.status for a in answers] == [200, 200, 429]
            assert 1 <= int(answers[-1].headers["Retry-After"]) <= 60


async def test_clock_can_be_moved(exchange: Exchange) -> None:
    async with exchange.http.post(f"{exchange.url}/sim/clock", json={"advance_ns": 60 * 10**9}) as answer:
        assert (await answer.json())["now_ns"] == NOW_NS + 60 * 10**9
    assert await exchange.client.fetch_time() == NOW_MS + 60_000
    for bad in (b"{}", b"[]", b'{"now_ns": -1}', b'{"now_ns": 1.5}', b"x"):
        async with exchange.http.post(f"{exchange.url}/sim/clock", data=bad) as answer:
            assert answer.status == 400


async def test_bad_rules_are_refused_and_change_nothing(exchange: Exchange) -> None:
    await exchange.faults({"kind": "empty", "every": 2})
    async with exchange.http.post(f"{exchange.url}/sim/faults", json=[{"kind": "fire"}]) as answer:
        assert answer.status == 400
    async with exchange.http.get(f"{exchange.url}/sim/faults") as answer:
        assert [rule["kind"] for rule in await answer.json()] == ["empty"]


async def test_health_and_unknown_path(exchange: Exchange) -> None:
    assert (await exchange.http.get(f"{exchange.url}/healthz")).status == 200
    assert (await exchange.http.get(f"{exchange.url}/api/v9/klines")).status == 404


@pytest.mark.parametrize("listen", ["0.0.0.0:0", "example.org:80", "127.0.0.1", "127.0.0.1:x", "127.0.0.1:70000"])
def test_listen_addresses_that_are_refused(listen: str) -> None:
    with pytest.raises(ValidationError, match="DEXORDER_SIM_LISTEN"):
        SimSettings(listen=listen)


def test_settings_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEXORDER_SIM_RECORDED", '["a.parquet=BTC/USDT"]')
    monkeypatch.setenv("DEXORDER_SIM_FAULTS", '[{"kind": "html", "every": 20}]')
    monkeypatch.setenv("DEXORDER_ALLOW_INSECURE", "1")
    monkeypatch.setenv("DEXORDER_SIM_LISTEN", "0.0.0.0:0")
    settings = SimSettings()
    assert settings.recorded == ("a.parquet=BTC/USDT",)
    assert (settings.faults[0].kind, settings.faults[0].every) == ("html", 20)
    assert split_address(settings.listen) == ("0.0.0.0", 0)


async def test_sigterm_ends_the_process_at_once() -> None:
    """An open request that hangs does not delay the end."""
    environment = {**os.environ, "DEXORDER_SIM_FAULTS": orjson.dumps([{"kind": "hang", "path": "*"}]).decode()}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "dexorder_exchange_sim", "--listen", "127.0.0.1:0"),
        env=environment,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    assert process.stdout is not None
    try:
        line = (await process.stdout.readline()).decode()
        url = "http://127.0.0.1:" + line.rpartition("127.0.0.1:")[2].split("\x1b")[0].strip()
        async with aiohttp.ClientSession() as http:
            hanging = await ask(url, "/api/v3/time")
            while not orjson.loads(await (await http.get(f"{url}/sim/stats")).read())["faults"]:
                pass
        process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(process.wait(), 20) == 0
        await silence(hanging)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
