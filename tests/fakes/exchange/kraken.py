"""REST dialect of Kraken's spot market. Pure."""

from __future__ import annotations

import datetime as dt
from typing import Any

import numpy as np

from dexorder_exchange_sim.candles import Source, printer, sum_up
from dexorder_exchange_sim.dialects.dialect import Query, SimAnswer, SimDialect
from dexorder_exchange_sim.instruments import SimInstrument
from dexorder_exchange_sim.market import usual_trades
from dexorder_exchange_sim.periods import DAY
from dexorder_exchange_sim.venue import SimVenue
from tests.fakes.exchange.kraken_history import ohlc, trades
from tests.fakes.exchange.kraken_query import Pair, altname, asset, find, one_pair, pairs
from tests.fakes.exchange.kraken_socket import KrakenSession

_NS = 1_000_000_000
_OTHERS = ("XETHZUSD", "XXBTZUSD")
DARK_POOL = SimInstrument(
    "BTC", "USD", 2, 5, listed_s=1_546_300_800, price=44_000, daily_turnover=1e6, busy_minutes=5, busy_seconds=1
)
"""Dark pool of BTC/USD, listed on 2019-01-01. It is ``BTC/USD`` in ccxt, which keeps a symbol's last market."""


def _result(result: Any) -> SimAnswer:
    return SimAnswer({"error": [], "result": result}, weight=0)


def _market_of(query: Query, venue: SimVenue) -> str | None:
    name = query.get("pair", "")
    pair = find(name, venue)
    return pair.key if pair else name or None


def _of_other(query: Query, venue: SimVenue, other: str | None) -> Query:
    asked = _market_of(query, venue)
    if asked is None:
        return query
    keys = (_market_of({"pair": name}, venue) for name in (other, *_OTHERS) if name)
    return {**query, "pair": next(key for key in keys if key and key != asked)}


def _time(query: Query, venue: SimVenue, now_ns: int) -> SimAnswer:
    text = _date(now_ns).strftime("%a, %d %b %y %H:%M:%S +0000")
    return _result({"unixtime": now_ns // _NS, "rfc1123": text})


def _status(query: Query, venue: SimVenue, now_ns: int) -> SimAnswer:
    return _result({"status": "online", "timestamp": _date(now_ns).strftime("%Y-%m-%dT%H:%M:%SZ")})


def _date(now_ns: int) -> dt.datetime:
    return dt.datetime.fromtimestamp(now_ns // _NS, dt.UTC)


def _assets(query: Query, venue: SimVenue, now_ns: int) -> SimAnswer:
    instruments = [source.instrument for source in venue.sources.values()]
    coins = {coin for instrument in instruments for coin in (instrument.base, instrument.quote)}
    common = {"aclass": "currency", "decimals": 10, "display_decimals": 5, "status": "enabled"}
    return _result({asset(coin): {"altname": altname(coin), **common} for coin in sorted(coins, key=asset)})


def _asset_pairs(query: Query, venue: SimVenue, now_ns: int) -> SimAnswer:
    return _result({pair.key: _describe(pair, now_ns) for pair in pairs(venue).values()})


def _describe(pair: Pair, now_ns: int) -> dict[str, Any]:
    instrument = pair.source.instrument
    decimals = 8 if instrument.price_decimals is None else instrument.price_decimals
    return {
        "altname": pair.altname,
        **({"wsname": pair.wsname, "ordermin": "0.0001", "costmin": "0.5"} if pair.wsname else {}),
        "aclass_base": "currency",
        "base": pair.base,
        "aclass_quote": "currency",
        "quote": pair.quote,
        "lot": "unit",
        "cost_decimals": 5,
        "pair_decimals": decimals,
        "lot_decimals": 8,
        "lot_multiplier": 1,
        "leverage_buy": [],
        "leverage_sell": [],
        "fees": [[0, 0.4]],
        "fees_maker": [[0, 0.25]],
        "fee_volume_currency": "ZUSD",
        "margin_call": 80,
        "margin_stop": 40,
        "tick_size": f"{10.0**-decimals:.{decimals}f}",
        "status": "online" if instrument.is_active(now_ns // _NS) else "cancel_only",
    }


def _ticker(query: Query, venue: SimVenue, now_ns: int) -> SimAnswer:
    named = [one_pair({"pair": name}, venue) for name in query["pair"].split(",")] if "pair" in query else None
    return _result({pair.key: _day(pair.source, now_ns) for pair in (named or pairs(venue).values())})


def _day(source: Source, now_ns: int) -> dict[str, Any]:
    """Return the ticker: today since midnight and the last 24 hours, to the minute."""
    end_s = source.newest_s(now_ns=now_ns)
    today, day = (sum_up(source, start_s, end_s, now_ns=now_ns) for start_s in (end_s // DAY * DAY, end_s - DAY))
    price = printer(source.instrument.price_decimals)
    [last] = price(np.array([day.close]))
    counts = usual_trades(source.instrument, np.array([end_s % DAY, DAY])).tolist()
    return {
        "a": [last, "1", "1.000"],
        "b": [last, "1", "1.000"],
        "c": [last, "0.00000000"],
        "v": printer(8)(np.array([today.volume, day.volume])),
        "p": price(np.array([today.mean, day.mean])),
        "t": counts,
        "l": price(np.array([today.low, day.low])),
        "h": price(np.array([today.high, day.high])),
        "o": price(np.array([today.open]))[0],
    }


_ROUTES = {
    "/0/public/Time": _time,
    "/0/public/SystemStatus": _status,
    "/0/public/Assets": _assets,
    "/0/public/AssetPairs": _asset_pairs,
    "/0/public/OHLC": ohlc,
    "/0/public/Trades": trades,
    "/0/public/Ticker": _ticker,
}

DIALECT = SimDialect(
    prefixes=("/0/", "/v2"),
    routes=_ROUTES,
    history=("/0/public/OHLC", "/0/public/Trades"),
    connect=lambda tapes, path, query, now_ns: KrakenSession(tapes) if path == "/v2" else None,
    knows=lambda id, venue: find(id, venue) is not None,
    market=_market_of,
    of_other=_of_other,
    bodies={
        "slow_down": ("application/json", '{"error":["EAPI:Rate limit exceeded"],"result":{}}'),
        "empty": ("application/json", '{"error":[],"result":{}}'),
        "unavailable": ("application/json", '{"error":["EService:Unavailable"]}'),
        "http_429": ("text/plain", "error code: 1015"),
        "http_418": ("text/plain", "error code: 1015"),
    },
    dark_pools=(DARK_POOL,),
)
