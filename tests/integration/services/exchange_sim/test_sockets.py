from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import ccxt as ccxt_errors
import orjson
import pytest
from aiohttp import ClientWebSocketResponse, WSMsgType

from tests.integration.services.exchange_sim.conftest import NOW_NS, Exchange, Start

NOW_MS = NOW_NS // 1_000_000
SECOND_NS = 1_000_000_000
SAME = ("id", "timestamp", "price", "amount", "side")
OLD_TRADES = "/api/v3/historicalTrades"


async def rest_trades(exchange: Exchange, symbol: str, first_id: int, last_id: int) -> list[list[Any]]:
    """All trades from an id to another, as unmodified ccxt refills them."""
    found: list[dict[str, Any]] = []
    while first_id <= last_id:
        page = {"fromId": first_id, "fetchTradesMethod": "publicGetHistoricalTrades"}
        found += await exchange.pro.fetch_trades(symbol, None, 1000, page)
        first_id = int(found[-1]["id"]) + 1
    return [[trade[name] for name in SAME] for trade in found if int(trade["id"]) <= last_id]


async def newest_id(exchange: Exchange, symbol: str = "BTCUSDT") -> int:
    return int((await exchange.get("/api/v3/trades", symbol=symbol, limit=1))[0]["id"])


async def watch(exchange: Exchange, symbols: list[str], until: dict[str, int]) -> dict[str, list[list[Any]]]:
    """Trades of each symbol as ccxt.pro gives them, until their last ids have come."""
    got: dict[str, list[list[Any]]] = {symbol: [] for symbol in symbols}
    while any(not got[symbol] or int(got[symbol][-1][0]) < last_id for symbol, last_id in until.items()):
        for trade in await exchange.pro.watch_trades_for_symbols(symbols):
            got[trade["symbol"]].append([trade[name] for name in SAME])
    return got


async def test_watched_trades_are_those_of_rest(exchange: Exchange) -> None:
    symbols, ids = ["BTC/USDT", "ETH/USDT", "SOL/USDT"], ["BTCUSDT", "ETHUSDT", "SOLUSDT"]
    before = {symbol: await newest_id(exchange, id) for symbol, id in zip(symbols, ids, strict=True)}
    # four trades a second in each of these markets, also in the 130 seconds to come
    watching = asyncio.create_task(watch(exchange, symbols, {symbol: last + 520 for symbol, last in before.items()}))
    await exchange.subscribed(*(f"{id.lower()}@trade" for id in ids))
    while not watching.done():  # ccxt.pro shows a trade that no call waits for with the next one of its market
        await exchange.clock(advance_ns=SECOND_NS)
    for symbol, trades in (await watching).items():
        assert len(trades) >= 520
        assert trades == await rest_trades(exchange, symbol, before[symbol] + 1, int(trades[-1][0]))


async def test_unsubscribed_trades_do_not_come(exchange: Exchange) -> None:
    watching = asyncio.create_task(exchange.pro.watch_trades("BTC/USDT"))
    await exchange.subscribed("btcusdt@trade")
    await exchange.clock(advance_ns=SECOND_NS)
    assert await watching
    await exchange.pro.un_watch_trades("BTC/USDT")
    await exchange.subscribed()


async def test_a_running_clock_never_shows_a_trade_early(start: Start) -> None:
    async with start(speed=600, options={"fetchMarkets": {"types": ["spot"]}}) as exchange:
        seen: list[Any] = []
        while len(seen) < 2000:
            trades = await exchange.pro.watch_trades("BTC/USDT")
            time_ms = (await exchange.get("/api/v3/time"))["serverTime"]
            assert all(trade["timestamp"] <= time_ms for trade in trades)
            seen += trades
        assert time_ms > NOW_MS


async def test_a_clock_that_is_set_continues_there(exchange: Exchange) -> None:
    async with subscribed(exchange, "btcusdt@trade") as ws:
        await exchange.clock(now_ns=NOW_NS + 3600 * SECOND_NS)
        await asyncio.sleep(0.05)  # longer than the longest pause of the server
        await exchange.clock(advance_ns=SECOND_NS)
        first = orjson.loads((await ws.receive()).data)
        assert NOW_MS + 3_600_000 < first["T"] < NOW_MS + 3_601_000


@asynccontextmanager
async def subscribed(exchange: Exchange, *names: str, path: str = "/ws/0") -> AsyncIterator[ClientWebSocketResponse]:
    async with exchange.http.ws_connect(exchange.url + path, autoping=False) as ws:
        await ws.send_str(orjson.dumps({"method": "SUBSCRIBE", "params": names, "id": 7}).decode())
        assert orjson.loads((await ws.receive()).data) == {"result": None, "id": 7}
        yield ws


async def frames(ws: ClientWebSocketResponse, last_id: int) -> list[Any]:
    """Ids of trades, other data as it is, and the type of the message that ended the connection, until an id."""
    found: list[Any] = []
    while last_id not in found:
        message = await ws.receive()
        if message.type not in (WSMsgType.TEXT, WSMsgType.BINARY):
            return [*found, message.type]
        try:
            found.append(orjson.loads(message.data)["t"])
        except (ValueError, KeyError, TypeError):
            found.append(message.data)
    return found


async def two_seconds(exchange: Exchange, rule: dict[str, Any]) -> list[Any]:
    """What a client gets of eight trades, numbered from 0, when the third is struck."""
    newest = await newest_id(exchange)
    async with subscribed(exchange, "btcusdt@trade") as ws:
        await exchange.faults({**rule, "after": 2, "count": 1})
        await exchange.clock(advance_ns=2 * SECOND_NS)
        found = await frames(ws, newest + 8)
    assert (await exchange.stats())["faults"] == {rule["kind"]: 1}
    return [one - newest - 1 if isinstance(one, int) and one > newest else one for one in found]


@pytest.mark.parametrize(
    ("kind", "end"),
    [("ws_close", WSMsgType.CLOSE), ("ws_abort", WSMsgType.CLOSED), ("ws_half", WSMsgType.CLOSED)],
)
async def test_faults_that_end_the_connection(exchange: Exchange, kind: str, end: WSMsgType) -> None:
    found = await two_seconds(exchange, {"kind": kind})
    assert found[:2] == [0, 1]
    assert found[2:] == [end] or (kind != "ws_close" and found[2:] == [WSMsgType.ERROR])


@pytest.mark.parametrize(
    ("rule", "ids"),
    [
        ({"kind": "ws_drop"}, [0, 1, 3, 4, 5, 6, 7]),
        ({"kind": "ws_double"}, [0, 1, 2, 2, 3, 4, 5, 6, 7]),
        ({"kind": "ws_lag", "lag_s": 0.05}, [0, 1, 2, 3, 4, 5, 6, 7]),
    ],
)
async def test_faults_of_one_message(exchange: Exchange, rule: dict[str, Any], ids: list[int]) -> None:
    assert await two_seconds(exchange, rule) == ids


async def test_unreadable_messages_take_the_place_of_one(exchange: Exchange) -> None:
    for kind in ("ws_garbage", "ws_cut"):
        await exchange.http.delete(f"{exchange.url}/sim/stats")
        found = await two_seconds(exchange, {"kind": kind})
        assert found[:2] + found[3:] == [0, 1, 3, 4, 5, 6, 7] and not isinstance(found[2], int | WSMsgType)


async def test_shuffled_messages_all_come_in_another_order(exchange: Exchange) -> None:
    found = await two_seconds(exchange, {"kind": "ws_shuffle", "size": 4})
    assert sorted(found[2:6]) == [2, 3, 4, 5] != found[2:6]
    assert found[:2] + found[6:] == [0, 1, 6, 7]


async def test_a_silent_socket_answers_pings(exchange: Exchange) -> None:
    async with subscribed(exchange, "btcusdt@trade") as ws:
        await exchange.faults({"kind": "ws_silence"})
        await exchange.clock(advance_ns=SECOND_NS)
        while (await exchange.stats())["sockets"]["messages"] < 4:
            pass
        await ws.ping(b"alive?")
        answer = await ws.receive()
        assert (answer.type, answer.data) == (WSMsgType.PONG, b"alive?")


async def test_a_command_strikes_all_open_sockets(exchange: Exchange) -> None:
    async with subscribed(exchange, "btcusdt@trade") as one, subscribed(exchange, "ethusdt@trade") as other:
        async with exchange.http.post(f"{exchange.url}/sim/sockets", json={"kind": "ws_close"}) as answer:
            assert await answer.json() == {"sockets": 2}
        ends = [await ws.receive() for ws in (one, other)]
    assert [(end.type, end.data) for end in ends] == [(WSMsgType.CLOSE, 1001)] * 2
    await exchange.subscribed()
    stats = await exchange.stats()
    assert stats["faults"] == {"ws_close": 2} and stats["sockets"]["closed"] == 2
    async with exchange.http.post(f"{exchange.url}/sim/sockets", json={"kind": "ws_double"}) as answer:
        assert answer.status == 400 and "ws_close" in (await answer.json())["error"]


async def test_the_opening_request_fails_as_any_other(exchange: Exchange) -> None:
    await exchange.faults({"kind": "http_503", "path": "/ws/0"})
    with pytest.raises(ccxt_errors.NetworkError):
        await exchange.pro.watch_trades("BTC/USDT")
    assert (await exchange.stats())["faults"] == {"http_503": 1}


async def test_a_waiting_call_learns_of_a_close_and_the_trades_meanwhile_are_only_in_rest(exchange: Exchange) -> None:
    newest = await newest_id(exchange)
    watching = asyncio.create_task(exchange.pro.watch_trades("BTC/USDT"))
    await exchange.subscribed("btcusdt@trade")
    await exchange.http.post(f"{exchange.url}/sim/sockets", json={"kind": "ws_close"})
    with pytest.raises(ccxt_errors.NetworkError):
        await watching
    await exchange.clock(advance_ns=10 * SECOND_NS)
    again = asyncio.create_task(exchange.pro.watch_trades("BTC/USDT"))
    await exchange.subscribed("btcusdt@trade")
    await exchange.clock(advance_ns=SECOND_NS)
    assert int((await again)[0]["id"]) == newest + 41
    assert len(await rest_trades(exchange, "BTC/USDT", newest + 1, newest + 40)) == 40


async def test_combined_streams_name_their_stream(exchange: Exchange) -> None:
    path = "/stream?streams=btcusdt@trade/ethusdt@aggTrade"
    async with exchange.http.ws_connect(exchange.url + path) as ws:
        await exchange.subscribed("btcusdt@trade", "ethusdt@aggTrade")
        await exchange.clock(advance_ns=SECOND_NS)
        messages = [orjson.loads((await ws.receive()).data) for _ in range(8)]
    assert {(message["stream"], message["data"]["e"]) for message in messages} == {
        ("btcusdt@trade", "trade"),
        ("ethusdt@aggTrade", "aggTrade"),
    }
    aggregates = [message["data"] for message in messages if message["data"]["e"] == "aggTrade"]
    page = await exchange.get("/api/v3/aggTrades", symbol="ETHUSDT", fromId=aggregates[0]["a"])
    assert [one["a"] for one in page] == [one["a"] for one in aggregates]


async def test_ids_of_aggregates_begin_again_in_messages_and_answers_alike(exchange: Exchange) -> None:
    async with exchange.http.ws_connect(f"{exchange.url}/ws/btcusdt@aggTrade/ethusdt@aggTrade") as ws:
        await exchange.clock(advance_ns=SECOND_NS)
        old = [orjson.loads((await ws.receive()).data) for _ in range(8)]
        async with exchange.http.post(f"{exchange.url}/sim/ids", json={"symbol": "BTCUSDT"}) as answer:
            assert answer.status == 200 and (await answer.json())["time_ns"] == NOW_NS + SECOND_NS
        await exchange.clock(advance_ns=SECOND_NS)
        new = [orjson.loads((await ws.receive()).data) for _ in range(8)]
    first, again = ([each for each in part if each["s"] == "BTCUSDT"] for part in (old, new))
    assert [each["a"] for each in again] == [1, 2, 3, 4] and first[0]["a"] > 10**12
    assert [each["f"] for each in (*first, *again)] == list(range(first[0]["f"], first[0]["f"] + 8))
    assert all(each["a"] > 10**12 for each in new if each["s"] == "ETHUSDT"), "other markets go on"
    page = await exchange.get("/api/v3/aggTrades", symbol="BTCUSDT", startTime=first[0]["T"])
    assert [each["a"] for each in page] == [each["a"] for each in (*first, *again)]
    page = await exchange.get("/api/v3/aggTrades", symbol="BTCUSDT", fromId=3)
    assert [each["a"] for each in page] == [3, 4]
    assert await exchange.get("/api/v3/aggTrades", symbol="BTCUSDT", fromId=first[0]["a"]) == []
    for bad in (b"{}", b'{"symbol": "NONE"}', b'{"symbol": "BTCUSDT", "id": 1}', b"x"):
        async with exchange.http.post(f"{exchange.url}/sim/ids", data=bad) as answer:
            assert answer.status == 400


@pytest.mark.parametrize(
    ("command", "code"),
    [("{", 3), ('{"method":"SUBSCRIBE","params":["btcusdt"],"id":1}', 2), ('{"method":"NO","id":1}', 2)],
)
async def test_refused_commands(exchange: Exchange, command: str, code: int) -> None:
    async with exchange.http.ws_connect(exchange.url + "/ws") as ws:
        await ws.send_str(command)
        assert orjson.loads((await ws.receive()).data)["error"]["code"] == code


async def test_recorded_trades_are_played_as_they_are(start: Start, tmp_path: Path) -> None:
    rows = [
        (NOW_MS + n // 40 * 150, 500 + n, ("buy", "sell")[n % 3 == 0], 0.00141342 + n / 1e7, n + 0.5)
        for n in range(100)
    ]
    lines = [",".join(map(str, row)) for row in rows]
    (tmp_path / "trades.csv").write_text("\n".join(["timestamp,id,side,price,amount", *lines]))
    recorded = (f"{tmp_path / 'trades.csv'}=XRP/ETH@trades",)
    async with start(recorded=recorded, now_ns=NOW_NS - SECOND_NS, speed=2) as exchange:
        got = (await watch(exchange, ["XRP/ETH"], {"XRP/ETH": 599}))["XRP/ETH"]
        assert got == [[str(id), time_ms, price, amount, side] for time_ms, id, side, price, amount in rows]
        assert got == await rest_trades(exchange, "XRP/ETH", 500, 599)
        [candle] = await exchange.klines(symbol="XRPETH", interval="1m")
        assert [float(value) for value in candle[1:6]] == [
            *(rows[0][3], max(row[3] for row in rows), min(row[3] for row in rows), rows[-1][3]),
            sum(row[4] for row in rows),
        ]
