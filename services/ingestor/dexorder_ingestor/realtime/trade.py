"""Trades as realtime jobs handle them. Pure."""

from __future__ import annotations

from typing import NamedTuple

from dexorder_common.model.times import iso_microseconds


class Trade(NamedTuple):
    """One trade of a market; sorts by time and number.

    Attributes:
        number: The exchange's consecutive number of the trade in its market; 0 where there is none.
        trade_id: The exchange's id, or one that `ordinal_ids` made.
        side: The taker's: ``buy``, ``sell`` or empty.
        fills: Number of fills in it; more than one in an aggregate.
        received_ns: Time at which it was received, by the ingestor's clock.
    """

    time_ns: int
    number: int
    trade_id: str
    price: float
    amount: float
    side: str
    fills: int
    received_ns: int

    def __str__(self) -> str:
        return f"trade {self.trade_id} of {iso_microseconds(self.time_ns)}"
