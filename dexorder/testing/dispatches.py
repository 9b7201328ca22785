"""Dispatches without a relay: the id of each names its series, so a fake of the relay can describe any of them."""

from __future__ import annotations

from collections.abc import Iterable

from services.common.model.dispatch_id import new_dispatch_id
from services.common.model.errors import InvalidRequest
from services.common.model.history import IssuedDispatch
from services.common.model.instrument import Instrument, Series
from services.common.model.time_range import TimeRange
from services.common.model.times import MAX_TIME_NS

PERIOD_SECONDS = 60


def dispatch_id(number: int, ticker: str) -> str:
    """Return the id of a dispatch of the minutes of an instrument, whose ticker has at most 32 bytes."""
    return new_dispatch_id(number, ticker.encode().ljust(8, b"\0").hex())


def issued(dispatch_ids: Iterable[str]) -> dict[str, IssuedDispatch]:
    """Return the dispatches whose ids name a ticker, as issued for all of its minutes; the others are unknown."""
    found = {}
    for each in dispatch_ids:
        try:
            ticker = bytes.fromhex(each.partition("-")[2]).rstrip(b"\0").decode()
            Instrument.parse(ticker)
        except (ValueError, InvalidRequest):
            continue
        found[each] = IssuedDispatch(each, Series(ticker, PERIOD_SECONDS), TimeRange(0, MAX_TIME_NS))
    return found
