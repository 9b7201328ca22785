"""REST dialect of Binance's funding rates. Pure."""

from __future__ import annotations

from dexorder_exchange_sim.dialects.dialect import History, Query, RowLayout, Rows, SimAnswer, SimRefusal
from dexorder_exchange_sim.instruments import Funding
from dexorder_exchange_sim.venue import SimVenue

_MS = 1_000_000
_MAX_LIMIT, _DEFAULT_LIMIT = 1_000, 100
_RATES = RowLayout(time="fundingTime", unit_ns=_MS, close="fundingRate", volume="markPrice")


def funding_rates(query: Query, venue: SimVenue, now_ns: int) -> SimAnswer:
    """Answer /fapi/v1/fundingRate: of a window with more rates than the limit, the oldest."""
    funding = _funding(query, venue)
    start_ms, end_ms = int(query.get("startTime", 0)), int(query.get("endTime", now_ns // _MS))
    limit = min(int(query.get("limit", _DEFAULT_LIMIT)), _MAX_LIMIT)
    rows = _rows(funding, -(-start_ms // 1000), min(end_ms // 1000 + 1, now_ns // 10**9 + 1))
    window_ns = (start_ms * _MS, end_ms * _MS)
    history = History(
        rows[:limit],
        _RATES,
        window_ns,
        wrap=lambda rows: rows,
        nothing=[],
        earlier=lambda size: _rows(funding, 0, start_ms // 1000)[-size:],
    )
    return SimAnswer(history.rows, history=history)


def premium_index(query: Query, venue: SimVenue, now_ns: int) -> SimAnswer:
    """Answer /fapi/v1/premiumIndex, of one market."""
    funding, now_s = _funding(query, venue), now_ns // 10**9
    return SimAnswer(
        {
            "symbol": funding.market,
            "markPrice": funding.mark_price(now_s),
            "indexPrice": funding.mark_price(now_s),
            "lastFundingRate": funding.rate(now_s),
            "interestRate": "0.00010000",
            "nextFundingTime": funding.next_s(now_s) * 1000,
            "time": now_ns // _MS,
        }
    )


def _rows(funding: Funding, start_s: int, end_s: int) -> Rows:
    return [
        {
            "symbol": funding.market,
            "fundingTime": time_s * 1000,
            "fundingRate": funding.rate(time_s),
            "markPrice": funding.mark_price(time_s),
        }
        for time_s in funding.times_s(start_s, end_s)
    ]


def _funding(query: Query, venue: SimVenue) -> Funding:
    found = venue.funding.get(query.get("symbol", ""))
    if found is None:
        raise SimRefusal(SimAnswer({"code": -1121, "msg": "Invalid symbol."}, status=400))
    return found


ROUTES = {
    "/fapi/v1/fundingRate": funding_rates,
    "/fapi/v1/premiumIndex": premium_index,
}
