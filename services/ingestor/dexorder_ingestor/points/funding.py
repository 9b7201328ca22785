"""Funding rates of perpetual futures: how each exchange is queried, and how its answers are checked."""

from __future__ import annotations

import math
from typing import Any

from dexorder_common.model.datasets import FUNDING, Dataset
from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.times import iso
from dexorder_ingestor.exchange.answers import MS_NS, BadAnswer, at
from dexorder_ingestor.exchange.dialect import PointFacts
from dexorder_ingestor.exchange.failures import ExchangeFailure
from dexorder_ingestor.exchange.venue import CcxtSession
from dexorder_ingestor.points.evidence import PointAnswer, Values
from dexorder_ingestor.points.fetch import SettledPoint
from dexorder_protos.dexorder.market.v1 import funding_pb2

_EXACT_MS = 2**43


class FundingSource:
    """Queries funding rates."""

    dataset: Dataset = FUNDING

    async def fetch(self, session: CcxtSession, symbol: str, window: TimeRange) -> PointAnswer:
        """Query the rates of a window; ExchangeFailure without a valid answer in all attempts."""
        facts, client = _facts_of(session, symbol), session.client
        market_id = client.markets[symbol]["id"]
        since_ms, until_ms = -(-window.start_ns // MS_NS), (window.end_ns - 1) // MS_NS

        async def fetch() -> PointAnswer:
            await client.fetch_funding_rate_history(symbol, since_ms, facts.limit, {"until": until_ms})
            return read_answer(client.last_json_response, facts, market_id, window)

        return await session.query(f"{symbol} funding rates {window}", fetch)

    async def settled_before_ns(self, session: CcxtSession, symbol: str) -> int:
        """Return the exchange's own next funding time; no rate comes before it."""
        _facts_of(session, symbol)

        async def fetch() -> int:
            rate = await session.client.fetch_funding_rate(symbol)
            time_ms = rate.get("nextFundingTimestamp") or rate.get("fundingTimestamp")
            if rate.get("symbol") != symbol or not isinstance(time_ms, int) or not 0 < time_ms < _EXACT_MS:
                raise BadAnswer(f"its next funding time of {symbol} is {time_ms!r}", kind="time")
            return time_ms * MS_NS

        return await session.query(f"{symbol} next funding time", fetch)

    def encode(self, points: tuple[SettledPoint, ...]) -> bytes:
        """Return the value of a page's record."""
        rates = [
            funding_pb2.FundingRate(
                funding_time_ns=each.time_ns,
                rate=each.values[0],
                mark_price=each.values[1],
                interval_seconds=each.interval_seconds,
            )
            for each in points
        ]
        return funding_pb2.FundingRates(rates=rates).SerializeToString(deterministic=True)


SOURCE = FundingSource()


def read_answer(raw: Any, facts: PointFacts, market_id: str, window: TimeRange) -> PointAnswer:
    """Return the rates in an exchange's answer; BadAnswer if one is not valid, or of another market or time."""
    if not isinstance(raw, (list, dict)):
        raise BadAnswer("the answer is not JSON", kind="not_json")
    rows = at(raw, facts.rows_at)
    if not isinstance(rows, list):
        raise BadAnswer(f"the answer has a {type(rows).__name__} in place of a list of funding rates")
    points: dict[int, Values] = {}
    for row in rows:
        time_ns, values = _read_rate(row, facts, market_id)
        if not window.start_ns <= time_ns < window.end_ns:
            raise BadAnswer(f"a funding rate of {iso(time_ns)} is outside {window}", kind="outside")
        if points.setdefault(time_ns, values) != values:
            raise BadAnswer(f"two funding rates of {iso(time_ns)} differ", kind="double")
    return PointAnswer(window, points, is_cut=len(rows) >= facts.limit)


def _read_rate(row: Any, facts: PointFacts, market_id: str) -> tuple[int, Values]:
    if not isinstance(row, dict):
        raise BadAnswer(f"a funding rate is a {type(row).__name__}")
    if row.get(facts.market) != market_id:
        raise BadAnswer(f"a funding rate is of {row.get(facts.market)!r} instead of {market_id}", kind="market")
    try:
        time_ms, rate = int(row[facts.fields["time"]]), float(row[facts.fields["rate"]])
        given = row.get(facts.fields.get("mark_price", ""))
        mark_price = float(given) if given not in (None, "") else 0.0
    except (KeyError, TypeError, ValueError) as error:
        raise BadAnswer(f"a funding rate has invalid values: {row!r:.120}", kind="values") from error
    good = 0 < time_ms < _EXACT_MS and abs(rate) < 1 and 0 <= mark_price < math.inf  # not for NaN either
    if not good:
        raise BadAnswer(f"a funding rate has impossible values: {row!r:.120}", kind="values")
    return time_ms * MS_NS, (rate, mark_price or None)


def _facts_of(session: CcxtSession, symbol: str) -> PointFacts:
    venue, market = session.venue, session.client.markets[symbol]
    if FUNDING not in venue.dialect.points:
        raise ExchangeFailure(f"funding rates of {venue.name} ({venue.dialect.ccxt} of ccxt) can't be fetched")
    if not market.get("swap"):
        raise ExchangeFailure(f"{symbol} of {venue.name} is not a perpetual future, so it has no funding rates")
    return venue.dialect.points[FUNDING]
