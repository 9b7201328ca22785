"""What a query in Kraken's dialect says, and how Kraken refuses one. Pure."""

from __future__ import annotations

import re
from decimal import Decimal

from services.exchange_sim.dialects.dialect import Answer, Query, Refusal
from services.exchange_sim.dialects.kraken_names import Pair, find
from services.exchange_sim.venue import Venue

_LARGEST_SECOND = 10**12
"""A larger ``since`` is in nanoseconds."""


class KrakenError(Refusal):
    """An error as Kraken words it: HTTP 200 with a text under ``error``."""

    def __init__(self, text: str) -> None:
        super().__init__(Answer({"error": [text]}, weight=0))


def one_pair(query: Query, venue: Venue) -> Pair:
    """The pair a query names, by any of its names."""
    name = query.get("pair", "")
    if not name:
        raise KrakenError("EGeneral:Invalid arguments")
    pair = find(name, venue)
    if pair is None:
        raise KrakenError("EQuery:Unknown asset pair")
    return pair


def integer(query: Query, name: str, default: int) -> int:
    """A whole number, at least 0."""
    text = query.get(name, str(default))
    if not re.fullmatch(r"[0-9]{1,18}", text):
        raise KrakenError(f"EGeneral:Invalid arguments:{name}")
    return int(text)


def since_ns(query: Query) -> int | None:
    """``since``, given in seconds or nanoseconds since the epoch; None if it is not given."""
    text = query.get("since")
    if text is None:
        return None
    if not re.fullmatch(r"-?[0-9]{1,19}(\.[0-9]{1,9})?", text):
        raise KrakenError("EGeneral:Invalid arguments:since")
    value = max(Decimal(text), Decimal(0))
    return min(int(value * 1_000_000_000 if value < _LARGEST_SECOND else value), 2**62)
