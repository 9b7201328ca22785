"""An exchange's markets: ccxt's list in, what the relay is told out. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from services.common.errors import InvalidRequest
from services.common.market import Ticker


@dataclass(frozen=True, slots=True)
class Market:
    """One market, as the relay lists it."""

    ticker: str
    active: bool
    type: str
    base: str
    quote: str


def listed(venue: str, markets: Iterable[Mapping[str, Any]]) -> list[Market]:
    """The markets of ccxt's list that a request can name; one of which ccxt does not know whether it trades does."""
    found = []
    for market in markets:
        try:
            ticker = Ticker.parse(f"{market['symbol']}.{venue}")
        except InvalidRequest:
            continue
        found.append(
            Market(
                str(ticker), market.get("active") is not False, market.get("type") or "", market.get("base") or "",
                market.get("quote") or "",
            )
        )  # fmt: skip
    return found
