"""REST dialect of Binance's spot market, and the dialect as a whole. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from dexorder_exchange_sim.candles import CandleRequest, Source
from dexorder_exchange_sim.dialects.binance_funding import ROUTES as FUNDING_ROUTES
from dexorder_exchange_sim.dialects.binance_futures import ROUTES as FUTURES_ROUTES
from dexorder_exchange_sim.dialects.binance_rows import (
    aggregate_rows,
    day_ticker,
    kline_rows,
    raw_trade_rows,
    trade_of_aggregate,
)
from dexorder_exchange_sim.dialects.binance_socket import connect
from dexorder_exchange_sim.dialects.dialect import (
    History,
    Query,
    Row,
    RowLayout,
    Rows,
    SimAnswer,
    SimDialect,
    SimRefusal,
)
from dexorder_exchange_sim.instruments import SimInstrument
from dexorder_exchange_sim.periods import PERIODS
from dexorder_exchange_sim.trades import Trades, TradeSource
from dexorder_exchange_sim.venue import SimVenue

MAX_LIMIT = 1000
DEFAULT_LIMIT = 500
WEIGHT_LIMIT = 6000
_MS = 1_000_000
_KLINE = RowLayout(time=0, unit_ns=_MS, close=4, volume=5, high=2, low=3, off_grid=500)
_OTHERS = ("ETHUSDT", "BTCUSDT")


class BinanceError(SimRefusal):
    """Error in Binance's form: a code, a message, HTTP 400."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(SimAnswer({"code": code, "msg": message}, status=400))


def _of_other(query: Query, venue: SimVenue, other: str | None) -> Query:
    asked = query.get("symbol")
    if asked is None:
        return query
    return {**query, "symbol": next(id for id in (other, *_OTHERS) if id and id != asked)}


def _ping(query: Query, venue: SimVenue, now_ns: int) -> SimAnswer:
    return SimAnswer({})


def _time(query: Query, venue: SimVenue, now_ns: int) -> SimAnswer:
    return SimAnswer({"serverTime": now_ns // 1_000_000})


def _spot_info(query: Query, venue: SimVenue, now_ns: int) -> SimAnswer:
    wanted: Iterable[Source] = venue.sources.values()
    if "symbol" in query:
        wanted = [_source(query, venue)]
    return SimAnswer(_info([_market(source.instrument, now_ns) for source in wanted], now_ns), weight=20)


def _info(symbols: list[dict[str, Any]], now_ns: int) -> dict[str, Any]:
    limit = {"rateLimitType": "REQUEST_WEIGHT", "interval": "MINUTE", "intervalNum": 1, "limit": WEIGHT_LIMIT}
    return {
        "timezone": "UTC",
        "serverTime": now_ns // 1_000_000,
        "rateLimits": [limit],
        "exchangeFilters": [],
        "symbols": symbols,
    }


def _market(instrument: SimInstrument, now_ns: int) -> dict[str, Any]:
    tick, lot = (
        f"{10.0 ** -(8 if decimals is None else decimals):.8f}"
        for decimals in (instrument.price_decimals, instrument.lot_decimals)
    )
    return {
        "symbol": instrument.id,
        "status": "TRADING" if instrument.is_active(now_ns // 1_000_000_000) else "BREAK",
        "baseAsset": instrument.base,
        "baseAssetPrecision": 8,
        "quoteAsset": instrument.quote,
        "quotePrecision": 8,
        "quoteAssetPrecision": 8,
        "baseCommissionPrecision": 8,
        "quoteCommissionPrecision": 8,
        "orderTypes": ["LIMIT", "MARKET"],
        "icebergAllowed": False,
        "ocoAllowed": False,
        "isSpotTradingAllowed": True,
        "isMarginTradingAllowed": False,
        "filters": [
            {"filterType": "PRICE_FILTER", "minPrice": tick, "maxPrice": "922327.00000000", "tickSize": tick},
            {"filterType": "LOT_SIZE", "minQty": lot, "maxQty": "92233720368.00000000", "stepSize": lot},
            {"filterType": "NOTIONAL", "minNotional": "0.00010000", "maxNotional": "9000000.00000000"},
        ],
        "permissions": ["SPOT"],
    }


def _klines(query: Query, venue: SimVenue, now_ns: int) -> SimAnswer:
    source = _source(query, venue)
    period = PERIODS.get(_needed(query, "interval"))
    if period is None:
        raise BinanceError(-1120, "Invalid interval.")
    wanted = CandleRequest(_integer(query, "startTime"), _integer(query, "endTime"), _limit(query))

    def fetch(wanted: CandleRequest, now_ns: int) -> Rows:
        return kline_rows(source.candles(period, wanted, now_ns=now_ns), period, source.instrument)

    rows = fetch(wanted, now_ns)
    asked_ms = wanted.start_ms if wanted.start_ms is not None else rows[0][0] if rows else now_ns // _MS
    end_ms = now_ns // _MS if wanted.end_ms is None else wanted.end_ms + 1
    if wanted.start_ms is not None and len(rows) == wanted.limit:
        end_ms = rows[-1][6] + 1

    def half() -> Row | None:
        open_ms, last_ms = rows[-1][0], rows[-1][6]
        middle_ns = min(now_ns, (open_ms + last_ms + 1) // 2 * _MS - 1)
        return next(iter(fetch(CandleRequest(open_ms, open_ms, 1), middle_ns)), None)

    history = History(
        rows,
        _KLINE,
        (asked_ms * _MS, end_ms * _MS),
        wrap=lambda rows: rows,
        nothing=[],
        earlier=lambda size: fetch(CandleRequest(None, asked_ms - 1, size), now_ns),
        half=half,
        running=period.open_s(period.index(now_ns // 1_000_000_000)) * 1000,
    )
    return SimAnswer(rows, weight=2, history=history)


def _agg_trades(query: Query, venue: SimVenue, now_ns: int) -> SimAnswer:
    start_ms, end_ms, first = (_integer(query, name) for name in ("startTime", "endTime", "fromId"))
    if first is not None and (start_ms is not None or end_ms is not None):
        raise BinanceError(-1128, "Combination of optional parameters invalid.")
    if first is not None:
        first = trade_of_aggregate(first, venue.again_ids.get(_needed(query, "symbol")))
    return _trades(query, venue, now_ns, _AGGREGATES, first, (start_ms, end_ms))


def _old_trades(query: Query, venue: SimVenue, now_ns: int) -> SimAnswer:
    return _trades(query, venue, now_ns, _RAW_TRADES, _integer(query, "fromId"))


def _recent_trades(query: Query, venue: SimVenue, now_ns: int) -> SimAnswer:
    return _trades(query, venue, now_ns, _RAW_TRADES)


def _trades(
    query: Query,
    venue: SimVenue,
    now_ns: int,
    form: _Form,
    first_id: int | None = None,
    span_ms: tuple[int | None, int | None] = (None, None),
) -> SimAnswer:
    """Return trades from an id on, or of a time span; without both the newest."""
    source, limit, (start_ms, end_ms) = _source(query, venue), _limit(query), span_ms
    if not isinstance(source, TradeSource):
        return SimAnswer([], weight=form.weight)  # a recording of candles
    stop_id = source.first_trade_at((now_ns // _MS if end_ms is None else end_ms) + 1, now_ns=now_ns)
    if first_id is None:
        first_id = stop_id - limit if start_ms is None else source.first_trade_at(start_ms, now_ns=now_ns)
    first_id = max(first_id, source.first_trade_at(0, now_ns=now_ns))

    def fetch(first_id: int, limit: int) -> Rows:
        trades = source.trades(first_id, max(0, limit), now_ns=now_ns)
        return form.rows(trades, source.instrument, venue.again_ids.get(source.instrument.id))

    rows, time = fetch(first_id, min(limit, stop_id - first_id)), form.layout.time
    now_ms = now_ns // _MS
    from_ms = start_ms if start_ms is not None else rows[0][time] if rows else now_ms
    to_ms = now_ms if end_ms is None else end_ms + 1
    if first_id + len(rows) < stop_id and rows:
        to_ms = rows[-1][time] + 1

    def earlier(size: int) -> Rows:
        from_id = max(0, first_id - size)
        return fetch(from_id, first_id - from_id)

    window_ns = (from_ms * _MS, to_ms * _MS)
    history = History(rows, form.layout, window_ns, wrap=lambda rows: rows, nothing=[], earlier=earlier)
    return SimAnswer(rows, weight=form.weight, history=history)


@dataclass(frozen=True, slots=True)
class _Form:
    """Form of trades in an answer, and the weight of the request."""

    layout: RowLayout
    rows: Callable[[Trades, SimInstrument, int | None], Rows]
    weight: int


_RAW_TRADES = _Form(RowLayout(time="time", unit_ns=_MS, close="price", volume="qty"), raw_trade_rows, weight=25)
_AGGREGATES = _Form(RowLayout(time="T", unit_ns=_MS, close="p", volume="q"), aggregate_rows, weight=4)


def _ticker(query: Query, venue: SimVenue, now_ns: int) -> SimAnswer:
    if "symbol" in query:
        return SimAnswer(day_ticker(_source(query, venue), now_ns), weight=2)
    return SimAnswer([day_ticker(source, now_ns) for source in venue.sources.values()], weight=80)


def _source(query: Query, venue: SimVenue) -> Source:
    source = venue.sources.get(_needed(query, "symbol"))
    if source is None:
        raise BinanceError(-1121, "Invalid symbol.")
    return source


def _needed(query: Query, name: str) -> str:
    value = query.get(name, "")
    if not value:
        raise BinanceError(-1102, f"Mandatory parameter '{name}' was not sent, was empty/null, or malformed.")
    return value


def _integer(query: Query, name: str) -> int | None:
    text = query.get(name)
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) <= 20):
        raise BinanceError(-1100, f"Illegal characters found in parameter '{name}'; legal range is '^[0-9]{{1,20}}$'.")
    return min(int(text), 2**62)


def _limit(query: Query) -> int:
    limit = _integer(query, "limit")
    if limit == 0:
        raise BinanceError(-1130, "Data sent for parameter 'limit' is not valid.")
    return DEFAULT_LIMIT if limit is None else min(limit, MAX_LIMIT)


_ROUTES = {
    "/api/v3/ping": _ping,
    "/api/v3/time": _time,
    "/api/v3/exchangeInfo": _spot_info,
    "/api/v3/klines": _klines,
    "/api/v3/aggTrades": _agg_trades,
    "/api/v3/historicalTrades": _old_trades,
    "/api/v3/trades": _recent_trades,
    "/api/v3/ticker/24hr": _ticker,
    "/fapi/v1/ping": _ping,
    "/fapi/v1/time": _time,
    "/dapi/v1/ping": _ping,
    "/dapi/v1/time": _time,
    **FUTURES_ROUTES,
    **FUNDING_ROUTES,
}

DIALECT = SimDialect(
    prefixes=("/api/", "/fapi/", "/dapi/", "/ws", "/stream"),
    routes=_ROUTES,
    history=("/api/v3/klines", "/fapi/v1/fundingRate"),
    connect=connect,
    knows=lambda id, venue: id in venue.sources,
    market=lambda query, venue: query.get("symbol"),
    of_other=_of_other,
    bodies={
        "slow_down": ("application/json", '{"code":-1003,"msg":"Too many requests."}'),
        "unavailable": ("application/json", '{"code":-1001,"msg":"Internal error; unable to process your request."}'),
    },
)
