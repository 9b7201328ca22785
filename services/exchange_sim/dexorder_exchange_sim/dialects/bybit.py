"""REST dialect of Bybit's perpetual futures, as far as funding rates need it. Pure."""

from __future__ import annotations

from typing import Any

from dexorder_exchange_sim.dialects.dialect import History, Query, RowLayout, Rows, SimAnswer, SimDialect, SimRefusal
from dexorder_exchange_sim.instruments import Funding
from dexorder_exchange_sim.venue import SimVenue

_MS = 1_000_000
_MAX_LIMIT = 200
_RATES = RowLayout(time="fundingRateTimestamp", unit_ns=_MS, close="fundingRate", volume="fundingRate")


def _time(query: Query, venue: SimVenue, now_ns: int) -> SimAnswer:
    seconds = now_ns // 10**9
    return _answer({"timeSecond": str(seconds), "timeNano": str(now_ns)}, now_ns)


def _instruments(query: Query, venue: SimVenue, now_ns: int) -> SimAnswer:
    is_listed = query.get("category") == "linear" and query.get("status") != "PreLaunch"
    found = [_market(venue, id) for id in venue.funding] if is_listed else []
    return _list(query, found, now_ns)


def _funding_history(query: Query, venue: SimVenue, now_ns: int) -> SimAnswer:
    """Answer with the rates of a window, newest first; of more rates than the limit, the newest."""
    funding = _funding(query, venue)
    if "startTime" in query and "endTime" not in query:
        raise SimRefusal(SimAnswer({"retCode": 10001, "retMsg": "endTime is required", "result": {}}))
    start_ms, end_ms = int(query.get("startTime", 0)), int(query.get("endTime", now_ns // _MS))
    limit = min(int(query.get("limit", _MAX_LIMIT)), _MAX_LIMIT)
    rows = _rows(funding, -(-start_ms // 1000), min(end_ms // 1000 + 1, now_ns // 10**9 + 1))

    def wrap(rows: Rows) -> Any:
        return _list(query, rows, now_ns).body

    history = History(
        rows[:limit],
        _RATES,
        (start_ms * _MS, end_ms * _MS),
        wrap=wrap,
        nothing=wrap([]),
        earlier=lambda size: _rows(funding, 0, start_ms // 1000)[:size],
    )
    return SimAnswer(wrap(history.rows), history=history)


def _tickers(query: Query, venue: SimVenue, now_ns: int) -> SimAnswer:
    funding, now_s = _funding(query, venue), now_ns // 10**9
    ticker = {
        "symbol": funding.market,
        "lastPrice": funding.mark_price(now_s),
        "markPrice": funding.mark_price(now_s),
        "indexPrice": funding.mark_price(now_s),
        "fundingRate": funding.rate(now_s),
        "nextFundingTime": str(funding.next_s(now_s) * 1000),
    }
    return _list(query, [ticker], now_ns)


def _rows(funding: Funding, start_s: int, end_s: int) -> Rows:
    return [
        {"symbol": funding.market, "fundingRate": funding.rate(time_s), "fundingRateTimestamp": str(time_s * 1000)}
        for time_s in reversed(funding.times_s(start_s, end_s))
    ]


def _funding(query: Query, venue: SimVenue) -> Funding:
    found = venue.funding.get(query.get("symbol", ""))
    if found is None:
        raise SimRefusal(SimAnswer({"retCode": 10001, "retMsg": "params error: symbol invalid", "result": {}}))
    return found


def _list(query: Query, found: list[Any], now_ns: int) -> SimAnswer:
    return _answer({"category": query.get("category", ""), "list": found}, now_ns)


def _answer(result: dict[str, Any], now_ns: int) -> SimAnswer:
    return SimAnswer({"retCode": 0, "retMsg": "OK", "result": result, "retExtInfo": {}, "time": now_ns // _MS})


def _market(venue: SimVenue, id: str) -> dict[str, Any]:
    instrument = venue.sources[id].instrument
    return {
        "symbol": id,
        "contractType": "LinearPerpetual",
        "status": "Trading",
        "baseCoin": instrument.base,
        "quoteCoin": instrument.quote,
        "settleCoin": instrument.quote,
        "launchTime": "1585526400000",
        "deliveryTime": "0",
        "priceScale": "2",
        "leverageFilter": {"minLeverage": "1", "maxLeverage": "100.00", "leverageStep": "0.01"},
        "priceFilter": {"minPrice": "0.50", "maxPrice": "999999.00", "tickSize": "0.50"},
        "lotSizeFilter": {"maxOrderQty": "100.000", "minOrderQty": "0.001", "qtyStep": "0.001"},
    }


def _of_other(query: Query, venue: SimVenue, other: str | None) -> Query:
    asked = query.get("symbol")
    return {**query, "symbol": next((id for id in (other, *venue.funding) if id and id != asked), asked or "")}


DIALECT = SimDialect(
    prefixes=("/v5/",),
    routes={
        "/v5/market/time": _time,
        "/v5/market/instruments-info": _instruments,
        "/v5/market/funding/history": _funding_history,
        "/v5/market/tickers": _tickers,
    },
    history=("/v5/market/funding/history",),
    connect=lambda tapes, path, query, now_ns: None,
    knows=lambda id, venue: id in venue.funding,
    market=lambda query, venue: query.get("symbol"),
    of_other=_of_other,
    bodies={"slow_down": ("application/json", '{"retCode":10006,"retMsg":"Too many visits!","result":{}}')},
)
