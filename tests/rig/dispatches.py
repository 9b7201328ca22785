"""Dispatches without a relay: the id of each names its series, so a fake of the relay can describe any of them."""

from __future__ import annotations

from collections.abc import Iterable

from dexorder_common.model.dispatch_id import new_dispatch_id
from dexorder_common.model.errors import InvalidRequest
from dexorder_common.model.history import IssuedDispatch
from dexorder_common.model.instrument import Instrument, Series
from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.times import MAX_TIME_NS

PERIOD_SECONDS = 60
_REALTIME = "~"


def dispatch_id(number: int, ticker: str) -> str:
    """Return the id of a dispatch of the minutes of an instrument, whose ticker has at most 32 bytes."""
    return new_dispatch_id(number, ticker.encode().ljust(8, b"\0").hex())


def realtime_dispatch_id(number: int, ticker: str) -> str:
    """Return the id of a realtime dispatch of an instrument, whose ticker has at most 31 bytes."""
    return dispatch_id(number, _REALTIME + ticker)


def issued(dispatch_ids: Iterable[str]) -> dict[str, IssuedDispatch]:
    """Return the dispatches whose ids name a ticker; the others are unknown.

    One of an instrument is issued for all of its minutes or, if it is a realtime one, for everything; one of
    ``*.VENUE`` for ticker snapshots.
    """
    found = {}
    for each in dispatch_ids:
        try:
            text = bytes.fromhex(each.partition("-")[2]).rstrip(b"\0").decode()
            ticker = text.removeprefix(_REALTIME)
            is_whole_exchange = Instrument.parse(ticker).is_whole_exchange
        except (ValueError, InvalidRequest):
            continue
        is_realtime = text != ticker
        series = Series.decode(ticker, 0 if is_realtime or is_whole_exchange else PERIOD_SECONDS)
        found[each] = IssuedDispatch(each, series, TimeRange(0, MAX_TIME_NS), is_realtime)
    return found
