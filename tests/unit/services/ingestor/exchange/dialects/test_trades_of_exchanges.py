"""A trade as unmodified ccxt reads it from the socket's row and from REST's: one id, one number, the right rule."""

from __future__ import annotations

from typing import Any

import ccxt
import pytest

from dexorder_ingestor.exchange.dialects import DIALECTS, dialect_of
from dexorder_ingestor.exchange.trades import TradeQuery, TradeRule

SPOT = {"id": "BTCUSDT", "symbol": "BTC/USDT", "base": "BTC", "quote": "USDT", "spot": True, "type": "spot"}
SWAP = {
    "id": "BTCUSDT",
    "symbol": "BTC/USDT:USDT",
    "base": "BTC",
    "quote": "USDT",
    "settle": "USDT",
    "swap": True,
    "contract": True,
    "linear": True,
    "inverse": False,
    "contractSize": 1,
    "type": "swap",
}
MS = 1_700_000_000_123
AGGREGATE = {"a": 26129, "p": "10.5", "q": "2", "f": 27781, "l": 27782, "T": MS, "m": True}
GATE = {"create_time_ms": f"{MS}.378105", "currency_pair": "BTC_USDT", "side": "sell", "amount": "2", "price": "10.5"}
KUCOIN = {"sequence": "1568787654360", "side": "sell", "size": "2", "price": "10.5", "time": MS * 1_000_000}
DERIBIT = {
    "trade_seq": 501899,
    "trade_id": "USDC-2436803",
    "timestamp": MS,
    "price": 10.5,
    "instrument_name": "BTCUSDT",
    "direction": "sell",
    "amount": 2.0,
}
BITGET = {"tradeId": "1116461060594286593", "price": "10.5", "size": "2", "side": "sell", "ts": str(MS)}
OKX = {"instId": "BTC-USDT", "tradeId": "130639474", "px": "10.5", "sz": "2", "side": "sell", "ts": str(MS)}
ROWS: list[tuple[str, dict[str, Any], dict[str, Any], dict[str, Any], str, int, int]] = [
    ("binanceusdm", SWAP, {**AGGREGATE, "e": "aggTrade", "s": "BTCUSDT", "E": MS}, AGGREGATE, "26129", 26129, 2),
    ("binancecoinm", SWAP, {**AGGREGATE, "e": "aggTrade", "s": "BTCUSDT", "E": MS}, AGGREGATE, "26129", 26129, 2),
    ("gate", SPOT, {**GATE, "id": 3130257995}, {**GATE, "id": "3130257995"}, "3130257995", 3130257995, 1),
    ("kucoin", SPOT, {**KUCOIN, "tradeId": "5e356c4aeefabd62c62a1ece", "type": "match"}, KUCOIN, "1568787654360", 0, 1),
    ("deribit", SWAP, DERIBIT, DERIBIT, "501899", 501899, 1),
    ("bitget", SPOT, BITGET, {**BITGET, "symbol": "BTCUSDT"}, "1116461060594286593", 1116461060594286593, 1),
    ("okx", SPOT, {**OKX, "source": "0"}, OKX, "130639474", 130639474, 1),
]


@pytest.mark.parametrize(
    ("name", "market", "sent", "answered", "trade_id", "number", "fills"), ROWS, ids=[row[0] for row in ROWS]
)
def test_socket_and_rest_have_one_id(
    name: str,
    market: dict[str, Any],
    sent: dict[str, Any],
    answered: dict[str, Any],
    trade_id: str,
    number: int,
    fills: int,
) -> None:
    client, series = getattr(ccxt, name)(), dialect_of(name).trades
    whole = client.safe_market_structure({"precision": {}, "limits": {}, **market})
    for row in (sent, answered):
        trade = series.read(client.parse_trade(row, whole), received_ns=7)
        assert (trade.trade_id, trade.number) == (trade_id, number or int(trade_id))
        assert (trade.price, trade.amount, trade.side, trade.fills) == (10.5, 2.0, "sell", fills)
        assert trade.time_ns == MS * 1_000_000


def test_each_exchange_has_its_rule() -> None:
    assert {name: each.trades.rule for name, each in DIALECTS.items()} == {
        "binance": TradeRule.NUMBERS,
        "binancecoinm": TradeRule.NUMBERS,
        "binanceus": TradeRule.NUMBERS,
        "binanceusdm": TradeRule.NUMBERS,
        "bitget": TradeRule.TWO_SOURCES_IN_ORDER,
        "bybit": TradeRule.TWO_SOURCES,
        "coinbase": TradeRule.TWO_SOURCES,
        "deribit": TradeRule.NUMBERS,
        "gate": TradeRule.TWO_SOURCES_IN_ORDER,
        "hyperliquid": TradeRule.LIVE_ONLY,
        "kraken": TradeRule.NUMBERS,
        "kucoin": TradeRule.TWO_SOURCES_IN_ORDER,
        "kucoinfutures": TradeRule.TWO_SOURCES_IN_ORDER,
        "okx": TradeRule.TWO_SOURCES_IN_ORDER,
    }
    assert dialect_of("unheard of").trades.rule is TradeRule.TWO_SOURCES


@pytest.mark.parametrize(
    ("name", "query", "arguments"),
    [
        ("binanceusdm", TradeQuery(number=5), (None, {"fromId": 5})),
        ("deribit", TradeQuery(), (None, {})),
        ("deribit", TradeQuery(number=5), (None, {"start_seq": 5, "sorting": "asc"})),
        ("deribit", TradeQuery(since_ns=5_000_000), (5, {"sorting": "asc"})),
        ("kucoin", TradeQuery(), (None, {})),
    ],
)
def test_queries_are_passed_on_as_the_exchange_takes_them(
    name: str, query: TradeQuery, arguments: tuple[int | None, dict[str, Any]]
) -> None:
    assert dialect_of(name).trades.arguments(query) == arguments


def test_hyperliquid_is_not_asked_as_ccxt_refuses_to() -> None:
    client = ccxt.hyperliquid()
    client.markets = {"BTC/USDC:USDC": {}}
    with pytest.raises(ccxt.ArgumentsRequired):
        client.fetch_trades("BTC/USDC:USDC")
