"""Answers as the real exchanges give them, written by hand, and a server that gives them."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from dexorder_common.model.times import SECOND_NS
from tests.fakes.exchange import answering
from tests.unit.services.ingestor.conftest import minutes

Query = Mapping[str, str]
Body = Any
"""JSON, or text that is sent as it is, or a status and JSON."""
START_MS = minutes(0, 1).start_ns // 1_000_000


@dataclass(frozen=True)
class Shape:
    """One exchange that has candles."""

    ccxt: str
    market_id: str
    fixed: Mapping[str, Body]
    path: str
    answer: Callable[[list[list[float]], str], Body]
    asked: Mapping[str, str]
    """What the call for minutes 0 to 10 says."""
    symbol: str = "BTC/USDT"

    def body(self, candles: list[list[float]]) -> Body:
        return self.answer(candles, self.market_id)


def _text(candle: list[float]) -> list[str]:
    return [str(candle[0]), *(f"{value:.2f}" for value in candle[1:])]


def _binance(candles: list[list[float]], market_id: str) -> Body:
    return [[c[0], *_text(c)[1:], c[0] + 59_999, "1.0", 2, "0.5", "0.5", "0"] for c in candles]


def _okx(candles: list[list[float]], market_id: str) -> Body:
    return {"code": "0", "msg": "", "data": [[*_text(c), "1.0", "1.0", "1"] for c in reversed(candles)]}


def _bybit(candles: list[list[float]], market_id: str) -> Body:
    rows = [[*_text(c), "1.0"] for c in reversed(candles)]
    result = {"symbol": market_id, "category": "spot", "list": rows}
    return {"retCode": 0, "retMsg": "OK", "result": result, "retExtInfo": {}, "time": 1_700_000_000_000}


def _coinbase(candles: list[list[float]], market_id: str) -> Body:
    names = ("start", "open", "high", "low", "close", "volume")
    rows = [dict(zip(names, (str(int(c[0]) // 1000), *_text(c)[1:]), strict=True)) for c in reversed(candles)]
    return {"candles": rows}


def _gate(candles: list[list[float]], market_id: str) -> Body:
    rows = ((str(int(c[0]) // 1000), *_text(c)[1:]) for c in candles)
    return [[time, "1.0", close, high, low, opened, volume, "true"] for time, opened, high, low, close, volume in rows]


def _bitget(candles: list[list[float]], market_id: str) -> Body:
    rows = [[*_text(c), "1.0", "1.0"] for c in candles]
    return {"code": "00000", "msg": "success", "requestTime": 1_700_000_000_000, "data": rows}


BINANCE = Shape(
    "binance",
    "BTCUSDT",
    {
        "/api/v3/exchangeInfo": {
            "timezone": "UTC",
            "serverTime": START_MS,
            "rateLimits": [],
            "exchangeFilters": [],
            "symbols": [
                {
                    "symbol": "BTCUSDT",
                    "status": "TRADING",
                    "baseAsset": "BTC",
                    "quoteAsset": "USDT",
                    "isSpotTradingAllowed": True,
                    "permissions": ["SPOT"],
                    "filters": [{"filterType": "PRICE_FILTER", "minPrice": "0.01", "tickSize": "0.01"}],
                }
            ],
        },
    },
    "/api/v3/klines",
    _binance,
    {
        "symbol": "BTCUSDT",
        "interval": "1m",
        "limit": "1000",
        "startTime": str(START_MS),
        "endTime": str(START_MS + 599_999),
    },
)
OKX = Shape(
    "okx",
    "BTC-USDT",
    {
        "/api/v5/public/instruments": {
            "code": "0",
            "msg": "",
            "data": [
                {
                    "instId": "BTC-USDT",
                    "instType": "SPOT",
                    "baseCcy": "BTC",
                    "quoteCcy": "USDT",
                    "state": "live",
                    "lotSz": "0.00000001",
                    "minSz": "0.00001",
                    "tickSz": "0.1",
                    "listTime": "1548133413000",
                    "lever": "10",
                }
            ],
        },
    },
    "/api/v5/market/history-candles",
    _okx,
    {"instId": "BTC-USDT", "bar": "1m", "limit": "100", "before": str(START_MS - 1), "after": str(START_MS + 599_999)},
)
BYBIT = Shape(
    "bybit",
    "BTCUSDT",
    {
        "/v5/market/instruments-info": {
            "retCode": 0,
            "retMsg": "OK",
            "retExtInfo": {},
            "time": 1_700_000_000_000,
            "result": {
                "category": "spot",
                "list": [
                    {
                        "symbol": "BTCUSDT",
                        "baseCoin": "BTC",
                        "quoteCoin": "USDT",
                        "status": "Trading",
                        "marginTrading": "both",
                        "lotSizeFilter": {"basePrecision": "0.000001"},
                        "priceFilter": {"tickSize": "0.01"},
                    }
                ],
            },
        },
    },
    "/v5/market/kline",
    _bybit,
    {
        "category": "spot",
        "symbol": "BTCUSDT",
        "interval": "1",
        "limit": "1000",
        "start": str(START_MS),
        "end": str(START_MS + 599_999),
    },
)
COINBASE = Shape(
    "coinbase",
    "BTC-USDT",
    {
        "/api/v3/brokerage/market/products": lambda query: {
            "products": []
            if "product_type" in query
            else [
                {
                    "product_id": "BTC-USDT",
                    "product_type": "SPOT",
                    "base_currency_id": "BTC",
                    "quote_currency_id": "USDT",
                    "base_increment": "0.00000001",
                    "quote_increment": "0.01",
                    "trading_disabled": False,
                    "alias_to": [],
                }
            ],
        },
        "/v2/currencies": {"data": [{"id": "USD", "name": "US Dollar", "min_size": "0.01"}]},
        "/v2/currencies/crypto": {"data": []},
        "/v2/exchange-rates": {"data": {"currency": "USD", "rates": {"BTC": "0.00002"}}},
    },
    "/api/v3/brokerage/market/products/BTC-USDT/candles",
    _coinbase,
    {"granularity": "ONE_MINUTE", "start": str(START_MS // 1000), "end": str(START_MS // 1000 + 599)},
)
BITGET = Shape(
    "bitget",
    "BTCUSDT",
    {
        "/api/v2/spot/public/symbols": {
            "code": "00000",
            "msg": "success",
            "requestTime": 1_700_000_000_000,
            "data": [
                {
                    "symbol": "BTCUSDT",
                    "baseCoin": "BTC",
                    "quoteCoin": "USDT",
                    "pricePrecision": "2",
                    "quantityPrecision": "6",
                    "quotePrecision": "8",
                    "status": "online",
                    "minTradeUSDT": "1",
                }
            ],
        },
        "/api/v2/spot/public/coins": {"code": "00000", "msg": "success", "requestTime": 1_700_000_000_000, "data": []},
        "/api/v2/margin/currencies": {
            "code": "00000",
            "msg": "success",
            "requestTime": 1_700_000_000_000,
            "data": [{"symbol": "BTCUSDT", "isBorrowable": True}],
        },
    },
    "/api/v2/spot/market/history-candles",
    _bitget,
    {
        "symbol": "BTCUSDT",
        "granularity": "1min",
        "limit": "200",
        "startTime": str(START_MS + 599_999 - 200 * 60_000),
        "endTime": str(START_MS + 599_999),
    },
)
GATE = Shape(
    "gate",
    "BTC_USDT",
    {
        "/api/v4/margin/currency_pairs": [],
        "/api/v4/spot/currencies": [],
        "/api/v4/spot/currency_pairs": [
            {
                "id": "BTC_USDT",
                "base": "BTC",
                "quote": "USDT",
                "fee": "0.2",
                "min_quote_amount": "1",
                "amount_precision": 6,
                "precision": 2,
                "trade_status": "tradable",
                "sell_start": 0,
                "buy_start": 0,
            }
        ],
        **{f"/api/v4/{kind}/{settle}/contracts": [] for kind in ("futures", "delivery") for settle in ("usdt", "btc")},
        "/api/v4/options/underlyings": [],
    },
    "/api/v4/spot/candlesticks",
    _gate,
    {
        "currency_pair": "BTC_USDT",
        "interval": "1m",
        "from": str(START_MS // 1000),
        "to": str(START_MS // 1000 + 599),
    },
)
CANDLES = [BINANCE, BITGET, OKX, BYBIT, COINBASE, GATE]


def _pair(market_id: str, altname: str, base: str, quote: str) -> dict[str, dict[str, Any]]:
    return {
        market_id: {
            "altname": altname,
            "wsname": altname,
            "base": base,
            "quote": quote,
            "pair_decimals": 1,
            "lot_decimals": 8,
            "fees": [[0, 0.4]],
            "fees_maker": [[0, 0.25]],
            "leverage_buy": [],
            "ordermin": "0.0001",
            "status": "online",
        },
    }


KRAKEN_FIXED: Mapping[str, Body] = {
    "/0/public/Assets": {
        "error": [],
        "result": {
            "XXBT": {"aclass": "currency", "altname": "XBT", "decimals": 10, "status": "enabled"},
            "ZUSD": {"aclass": "currency", "altname": "USD", "decimals": 4, "status": "enabled"},
        },
    },
    "/0/public/AssetPairs": {
        "error": [],
        "result": _pair("XXBTZUSD", "XBTUSD", "XXBT", "ZUSD") | _pair("XXBTZUSD.d", "XBTUSD.d", "XXBT", "ZUSD"),
    },
    "/0/public/Time": {"error": [], "result": {"unixtime": START_MS // 1000, "rfc1123": ""}},
}
KRAKEN_TRADES = "/0/public/Trades"


def kraken_trades(rows: list[list[Any]], query: Query, *, pair: str = "XXBTZUSD") -> Body:
    """The oldest trades from ``since`` on, which may be seconds or nanoseconds, and the cursor behind them."""
    given = int(query["since"])
    since_ns = given if given > 10**12 else given * SECOND_NS
    found = [list(r) for r in rows if round(r[2] * 1e6) * 1000 >= since_ns][: int(query["count"])]
    last = str(round(found[-1][2] * 1e6) * 1000) if found else query["since"]
    return {"error": [], "result": {pair: found, "last": last}}


@dataclass
class Desk:
    """A server's side of a test.

    Attributes:
        answers: By path: a body, or what makes one of the query.
        first: Bodies to give before that, for ``path``.
        asked: Queries of ``path`` so far.
    """

    path: str
    answers: dict[str, Body | Callable[[Query], Body]]
    url: str = ""
    first: deque[Body] = field(default_factory=deque)
    asked: list[dict[str, str]] = field(default_factory=list)

    async def answer(self, request: web.Request) -> web.Response:
        body = self.answers.get(request.path, (404, {"no": request.path}))
        if request.path == self.path:
            self.asked.append(dict(request.query))
            if self.first:
                body = self.first.popleft()
        if callable(body):
            body = body(request.query)
        status, body = body if isinstance(body, tuple) else (200, body)
        if isinstance(body, str):
            return web.Response(status=status, text=body, content_type="application/json")
        return web.json_response(body, status=status)


@asynccontextmanager
async def desk(path: str, answers: Mapping[str, Body | Callable[[Query], Body]]) -> AsyncIterator[Desk]:
    made = Desk(path, dict(answers))
    async with answering(made.answer) as made.url:
        yield made
