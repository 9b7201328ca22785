"""Trades of an exchange: queries, answers, the trades themselves, and facts about them. Pure.

An exchange may have several series of trades with different ids, such as aggregates and single fills; the facts name
one of them for both the socket and REST.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from enum import Enum
from math import isfinite
from typing import Any, NamedTuple

from dexorder_common.model.periods import floor_to_grid
from dexorder_common.model.times import SECOND_NS, iso, iso_microseconds
from dexorder_ingestor.exchange.answers import MS_NS, BadAnswer

PAGE_TRADES = 1_000
"""Number of trades that a query asks for, unless the exchange allows fewer."""
MADE_ID = "~"
"""Start of an id that was made of a trade's values, for exchanges without ids."""
_MAX_NUMBER = 2**62
_SIDES = ("buy", "sell")
_DECIMAL = re.compile(r"[0-9]{1,20}(\.[0-9]{1,20})?")


class Trade(NamedTuple):
    """One trade of a market; sorts by time and number.

    Attributes:
        number: The exchange's number of the trade, consecutive in its market or at least ascending; 0 without one.
        trade_id: The exchange's id, or one that `ordinal_ids` made.
        side: The taker's: ``buy``, ``sell`` or empty.
        fills: Number of fills in it; more than one in an aggregate.
        received_ns: Time at which it was received, by the ingestor's clock.
        revision: Time at which its values were corrected; 0 of the first values. The larger one counts.
    """

    time_ns: int
    number: int
    trade_id: str
    price: float
    amount: float
    side: str
    fills: int
    received_ns: int
    revision: int = 0

    def __str__(self) -> str:
        return f"trade {self.trade_id} of {iso_microseconds(self.time_ns)}"


class TradeQuery(NamedTuple):
    """Query for the oldest trades with at least a number or a time; without both, for the newest trades."""

    number: int | None = None
    since_ns: int | None = None

    def __str__(self) -> str:
        if self.number is not None:
            return f"from trade {self.number}"
        return "the newest" if self.since_ns is None else f"from {self.since_ns} ns"


class TradeAnswer(NamedTuple):
    """Answer of REST to a query of a feed.

    Attributes:
        full: It has as many trades as an answer can have, so there may be more.
        clock_ns: A time that the exchange's clock had passed before the query.
    """

    trades: Sequence[Trade]
    full: bool
    clock_ns: int


@dataclass(frozen=True, slots=True)
class TradeRow:
    """Trade as the exchange sent it; equal to the same trade in another answer."""

    time_ns: int
    id: int | None
    row: tuple[Any, ...]

    def values(self, period_seconds: int) -> tuple[Decimal, Decimal]:
        """Return price and amount.

        Raises:
            BadAnswer: They are not numbers. The error names the candle that can't be built.
        """
        price, amount = self.row[:2]
        if not all(isinstance(v, str) and _DECIMAL.fullmatch(v) for v in (price, amount)) or not Decimal(price):
            raise BadAnswer(
                f"trade {list(self.row)!r} at {iso(self.time_ns)} lacks a price above 0 or an amount",
                kind="values",
                opens=[floor_to_grid(self.time_ns, period_seconds)],
            )
        return Decimal(price), Decimal(amount)


class TradeRule(Enum):
    """Rule by which the trades of a market are complete."""

    NUMBERS = "numbers"
    TWO_SOURCES_IN_ORDER = "two sources, ordered by id"
    TWO_SOURCES = "two sources"
    LIVE_ONLY = "live only"

    @property
    def proves(self) -> str:
        """Facts that are proven for trades settled by the rule."""
        return _PROVES[self]


_PROVES = {
    TradeRule.NUMBERS: "no number is missing, and a later one exists",
    TradeRule.TWO_SOURCES_IN_ORDER: "socket and REST, or two different answers, have the same trades; "
    "open and close are right within a millisecond, too",
    TradeRule.TWO_SOURCES: "socket and REST, or two different answers, have the same trades",
    TradeRule.LIVE_ONLY: "nothing; trades are not stored",
}


@dataclass(frozen=True, slots=True)
class TradeSeries:
    """Facts about the trades of one exchange.

    Attributes:
        numbered: Ids are consecutive numbers within a market, so a missing trade shows.
        ascending: Ids are numbers that grow with the trades of a market, but leave others out. They order trades of the
            same time, which decides about the open and the close of a candle.
        has_rest: ccxt can query the trades of a market without a user's key or address. Otherwise they are live only.
        from_number: Parameter of ccxt's ``fetch_trades`` for the number of the first trade, or empty.
        since_params: More parameters of queries from a number or a time on.
        since_text: ``since`` is sent in nanoseconds, among the parameters of ``fetch_trades``; ccxt would cut its own
            argument to whole seconds.
        by_time: ``fetch_trades`` with ``since`` returns the oldest trades since then. Otherwise only the newest are
            available: ccxt drops older ones from them, or refuses ``since``.
        page: Number of trades that a query asks for.
        silence_ns: Longest time between two frames of a socket that is alive; it is pinged every 2 s.
        since_slack_ns: Time before a trade at which a query starts, so that its answer holds this trade.
        watch: Parameters of ccxt's ``watch_trades``.
        trade_id: Reads the id that the socket and REST both have.
        time_ns: Reads a trade's time from ccxt's trade.
        fills: Reads the number of fills in it.
    """

    numbered: bool = False
    ascending: bool = False
    has_rest: bool = True
    from_number: str = ""
    since_params: Mapping[str, str] = field(default_factory=dict)
    since_text: bool = False
    by_time: bool = True
    page: int = PAGE_TRADES
    silence_ns: int = 5 * SECOND_NS
    since_slack_ns: int = MS_NS
    watch: Mapping[str, str] = field(default_factory=dict)
    trade_id: Callable[[Mapping[str, Any]], str] = lambda trade: trade["id"] or ""
    time_ns: Callable[[Mapping[str, Any]], int] = lambda trade: int(trade["timestamp"]) * MS_NS
    fills: Callable[[Mapping[str, Any]], int] = lambda trade: 1

    @property
    def rule(self) -> TradeRule:
        """The rule for its trades."""
        if self.numbered:
            return TradeRule.NUMBERS
        if not self.has_rest:
            return TradeRule.LIVE_ONLY
        return TradeRule.TWO_SOURCES_IN_ORDER if self.ascending else TradeRule.TWO_SOURCES

    def query(self, number: int | None, since_ns: int) -> TradeQuery:
        """Return the query for the trades that start with a number, and not before a time."""
        if number is not None and self.from_number:
            return TradeQuery(number=number)
        return TradeQuery(since_ns=max(0, since_ns - self.since_slack_ns))

    def arguments(self, query: TradeQuery) -> tuple[int | None, dict[str, Any]]:
        """Return ``since`` in milliseconds and the parameters of ccxt's ``fetch_trades``."""
        if query.number is not None:
            return None, {self.from_number: query.number, **self.since_params}
        if query.since_ns is None:
            return None, {}
        if self.since_text:
            return None, {"since": str(query.since_ns)}
        return query.since_ns // MS_NS, dict(self.since_params)

    def read(self, trade: Any, received_ns: int) -> Trade:
        """Return ccxt's trade as ours.

        Raises:
            BadAnswer: It lacks a time, an id, a price above 0 or an amount.
        """
        try:
            trade_id, price, amount = self.trade_id(trade), float(trade["price"]), float(trade["amount"])
            time_ns, fills = self.time_ns(trade), self.fills(trade)
            number = int(trade_id) if self.numbered or self.ascending else 0
        except (KeyError, TypeError, ValueError, ArithmeticError) as error:
            raise BadAnswer(f"{str(trade)[:120]} is not a trade: {error!r:.80}", kind="values") from error
        sane = isfinite(price) and isfinite(amount) and price > 0 and amount >= 0 and fills > 0
        if not sane or not 0 < time_ns < 2**63 or not 0 <= number < _MAX_NUMBER:
            raise BadAnswer(f"trade {trade_id} has price {price}, amount {amount}, time {time_ns} ns", kind="values")
        side = trade.get("side")
        return Trade(time_ns, number, trade_id, price, amount, side if side in _SIDES else "", fills, received_ns)
