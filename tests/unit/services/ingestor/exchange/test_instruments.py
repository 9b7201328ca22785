"""Which market a symbol is, with unmodified ccxt: twins, renamed coins, symbols with dots, typing errors."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import ccxt.async_support as ccxt
import pytest
from aiohttp import web

from dexorder_common.exchanges import Exchange, override_urls
from dexorder_ingestor.exchange.instruments import keep_main_markets, main_markets, refusal
from dexorder_ingestor.exchange.listing import list_instruments
from tests.fakes.exchange import answering


def pair(altname: str, base: str, quote: str, *, status: str = "online") -> dict[str, Any]:
    """An entry of Kraken's AssetPairs, with what ccxt reads of it."""
    return {
        "altname": altname,
        "wsname": f"{base}/{quote}",
        "base": base,
        "quote": quote,
        "pair_decimals": 1,
        "lot_decimals": 8,
        "leverage_buy": [],
        "fees": [[0, 0.26]],
        "fees_maker": [[0, 0.16]],
        "status": status,
    }


ASSETS = {
    name: {"altname": altname, "decimals": 8, "status": "enabled"}
    for name, altname in (
        ("XXBT", "XBT"),
        ("ZUSD", "USD"),
        ("XETH", "ETH"),
        ("ETH2.S", "ETH2.S"),
        ("XXDG", "XDG"),
        ("LUNA", "LUNA"),
    )
}
PAIRS = {
    "ETH2.SETH": pair("ETH2.SETH", "ETH2.S", "XETH"),
    "LUNAUSD": pair("LUNAUSD", "LUNA", "ZUSD", status="cancel_only"),
    "XDGUSD": pair("XDGUSD", "XXDG", "ZUSD"),
    "XETHXXBT": pair("ETHXBT", "XETH", "XXBT"),
    "XXBTZUSD": pair("XBTUSD", "XXBT", "ZUSD"),
    "XXBTZUSD.d": pair("XBTUSD.d", "XXBT", "ZUSD"),
}


class Kraken:
    """Answers the calls ccxt makes for markets and candles; keeps which pairs were asked for."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def answer(self, request: web.Request) -> web.Response:
        results: dict[str, Any] = {"Assets": ASSETS, "AssetPairs": PAIRS}
        name = request.path.rpartition("/")[2]
        if name == "OHLC":
            self.asked.append(request.query["pair"])
            results[name] = {request.query["pair"]: [], "last": 0}
        return web.json_response({"error": [], "result": results[name]})


@asynccontextmanager
async def kraken() -> AsyncIterator[tuple[Any, Kraken]]:
    server = Kraken()
    client = ccxt.kraken({"enableRateLimit": False})
    async with answering(server.answer) as url:
        client.urls["api"] = override_urls(client.urls["api"], Exchange(ccxt="kraken", rest_url=url))
        try:
            yield client, server
        finally:
            await client.close()


async def test_dark_pool_twin_is_never_the_market_that_is_asked() -> None:
    async with kraken() as (client, server):
        await client.load_markets()
        await client.fetch_ohlcv("BTC/USD")
        assert server.asked == ["XXBTZUSD.d"], "ccxt alone asks the twin, which is what this is about"
        keep_main_markets(client)
        await client.fetch_ohlcv("BTC/USD")
        assert server.asked[1:] == ["XXBTZUSD"]
        assert [m["id"] for m in client.markets.values()] == [i for i in PAIRS if i != "XXBTZUSD.d"]
        assert refusal("KRAKEN", "BTC/USD", client) is None
        found = list_instruments("KRAKEN", client.markets.values(), client.precisionMode)
        assert [m.ticker for m in found].count("BTC/USD.KRAKEN") == 1


async def test_symbols_with_dots_and_renamed_coins_are_asked_under_the_exchanges_own_names() -> None:
    async with kraken() as (client, server):
        await client.load_markets()
        keep_main_markets(client)
        for symbol in ("ETH2.S/ETH", "DOGE/USD", "ETH/BTC", "LUNC/USD"):
            assert refusal("KRAKEN", symbol, client) is None
            await client.fetch_ohlcv(symbol)
        assert server.asked == ["ETH2.SETH", "XDGUSD", "XETHXXBT", "LUNAUSD"]


@pytest.mark.parametrize(
    ("symbol", "rest"),
    [
        ("XBT/USD", ": renamed, it is 'BTC/USD'"),
        ("ETH/XBT", ": renamed, it is 'ETH/BTC'"),
        ("XDG/USD", ": renamed, it is 'DOGE/USD'"),
        ("LUNA/USD", ": renamed, it is 'LUNC/USD' (no longer traded)"),
        ("XXBTZUSD", ": this is the exchange's own name of 'BTC/USD'"),
        ("XXBTZUSD.d", ""),  # a twin is nobody's name
        ("btc/usd", "; close to it: 'BTC/USD'"),
        ("BTC/USDT", "; close to it: 'BTC/USD'"),
        ("BTC/USD:BTC", "; close to it: 'BTC/USD'"),
        ("ETH2/ETH", "; close to it: 'ETH2.S/ETH'"),
        ("", ""),
        ("WOOF", ""),
    ],
)
async def test_unknown_symbol_is_told_what_may_be_meant(symbol: str, rest: str) -> None:
    async with kraken() as (client, _):
        await client.load_markets()
        keep_main_markets(client)
        found = refusal("KRAKEN", symbol, client)
        assert found is not None
        told = f"symbol {symbol!r} is unknown to KRAKEN{rest}"
        assert found.startswith(told) if rest else found == told, found


def market(market_id: str, symbol: str, **more: Any) -> dict[str, Any]:
    base, quote = symbol.partition(":")[0].split("/")
    return {
        "id": market_id,
        "symbol": symbol,
        "base": base,
        "quote": quote,
        "baseId": base,
        "quoteId": quote,
        "type": "spot",
        "spot": True,
        "active": True,
        "precision": {},
        "limits": {},
        **more,
    }


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_twin_is_forgotten_wherever_it_stands_in_the_list(order: tuple[int, ...]) -> None:
    there = [
        market("XXBTZUSD", "BTC/USD", active=False),  # even where only the twin is traded
        market("XXBTZUSD.d", "BTC/USD"),
        market("XETHZUSD.d", "ETH/USD"),  # and where there is nothing else
    ]
    client = ccxt.kraken()
    client.set_markets([there[i] for i in order])
    keep_main_markets(client)
    assert {s: m["id"] for s, m in client.markets.items()} == {"BTC/USD": "XXBTZUSD"}
    assert client.market("BTC/USD")["id"] == "XXBTZUSD"
    assert refusal("KRAKEN", "ETH/USD", client) is not None


def test_symbol_of_two_markets_is_the_traded_one_else_none_and_says_so() -> None:
    client = ccxt.binance()
    client.set_markets(
        [
            market("NEWOLD", "OLD/USDT"),
            market("OLDUSDT", "OLD/USDT", active=False),
            market("ONE", "TWO/USDT"),
            market("OTHER", "TWO/USDT", active=None),
            market("THEN", "GONE/USDT", active=False),
            market("BEFORE", "GONE/USDT", active=False),
            market("A.d", "A/USDT"),
        ]
    )
    keep_main_markets(client)
    assert client.market("OLD/USDT")["id"] == "NEWOLD"
    assert refusal("SIM", "OLD/USDT", client) is None
    assert refusal("SIM", "TWO/USDT", client) == "symbol 'TWO/USDT' is 2 markets of SIM: ONE, OTHER"
    assert refusal("SIM", "GONE/USDT", client) == "symbol 'GONE/USDT' is 2 markets of SIM: BEFORE, THEN"
    assert refusal("SIM", "A/USDT", client) is None, "the ending is Kraken's alone"


def test_one_id_of_a_spot_and_a_swap_market_is_two_symbols() -> None:
    client = ccxt.binance()
    swap = {"type": "swap", "spot": False, "swap": True, "contract": True, "linear": True}
    client.set_markets([market("BTCUSDT", "BTC/USDT:USDT", **swap), market("BTCUSDT", "BTC/USDT")])
    keep_main_markets(client)
    assert {s: m["type"] for s, m in client.markets.items()} == {"BTC/USDT": "spot", "BTC/USDT:USDT": "swap"}
    assert refusal("SIM", "BTC/USDT", client) is None
    found = refusal("SIM", "BTCUSDT", client)
    assert found is not None and found.endswith("the exchange's own name of 'BTC/USDT', 'BTC/USDT:USDT'")


def test_markets_without_twins_are_left_as_they_are() -> None:
    there = [market("A", "A/B"), market("C.d", "C/D"), market("E", "E/F", active=False)]
    assert main_markets("binance", there) == there
