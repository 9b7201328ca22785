"""Instruments of each exchange as ingestors last reported them. They are in the store, so a restart keeps them."""

from __future__ import annotations

import sys

from dexorder_common.model.errors import InvalidRequest, NotFound
from dexorder_common.model.instrument import CandleOffer, Instrument, InstrumentList, ListedInstrument
from dexorder_common.model.periods import PERIODS
from dexorder_common.model.times import MAX_TIME_NS
from dexorder_relay.requests.context import Context
from dexorder_relay.state.changes import InstrumentsReported
from dexorder_relay.state.request import unknown_exchange

_SIZES = ("tick_size", "lot_size", "contract_size")
_TIMES = ("expiry_ns", "listed_ns", "delisted_ns")
_TEXTS = ("exchange_id", "settle")


class Instruments:
    """Stores reports of instruments and answers questions about them."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def report(self, listed: InstrumentList) -> None:
        """Replace the stored instruments of a venue unless they are newer; on disk when this returns.

        Raises:
            InvalidRequest: The exchange is unknown, or the report is invalid.
        """
        if listed.venue not in self._context.venues:
            raise InvalidRequest(unknown_exchange(listed.venue, self._context.venues))
        checked = check(listed, now_ns=self._context.clock.wall_ns())
        await self._context.store.commit([InstrumentsReported(checked)])

    async def listed(self, venue: str) -> InstrumentList:
        """Return the instruments of a venue, by ticker; NotFound if it is unknown, or was not reported yet."""
        if venue not in self._context.venues:
            raise NotFound(unknown_exchange(venue, self._context.venues))
        listed = await self._context.store.instruments(venue)
        if listed is None:
            raise NotFound(f"no ingestor has reported the markets of {venue!r} yet")
        return listed


def check(listed: InstrumentList, *, now_ns: int) -> InstrumentList:
    """Return a report sorted by ticker, with a time of at most now, so that a clock ahead does not block later reports.

    Raises:
        InvalidRequest: No instruments, no time, a ticker of another exchange, a duplicate ticker, an instrument's field
            outside its range, or an invalid offer of candles.
    """
    if not listed.markets:
        raise InvalidRequest("markets is empty")
    if not 0 < listed.fetched_ns <= MAX_TIME_NS:
        raise InvalidRequest(f"fetched_ns {listed.fetched_ns} is outside [1, {MAX_TIME_NS}] nanoseconds")
    instruments = sorted(listed.markets, key=lambda each: each.ticker)
    if listed.candles:
        _check_offer(listed.candles)
    previous = ""
    for each in instruments:
        if Instrument.parse(each.ticker).venue != listed.venue:
            raise InvalidRequest(f"ticker {each.ticker[:64]!r} is not one of exchange {listed.venue!r}")
        if each.ticker == previous:
            raise InvalidRequest(f"ticker {each.ticker[:64]!r} is a duplicate")
        _check_fields(each)
        previous = each.ticker
    return listed._replace(markets=tuple(instruments), fetched_ns=min(listed.fetched_ns, now_ns))


def _check_fields(each: ListedInstrument) -> None:
    """Check the fields of an instrument; unknown ones are absent, never 0 or empty."""
    for name in _SIZES:
        size = getattr(each, name)
        if size is not None and not 0 < size <= sys.float_info.max:
            raise InvalidRequest(f"{each.ticker[:64]!r}: {name} {size} is not positive and finite")
    for name in _TIMES:
        time_ns = getattr(each, name)
        if time_ns is not None and not 0 <= time_ns <= MAX_TIME_NS:
            raise InvalidRequest(f"{each.ticker[:64]!r}: {name} {time_ns} is outside [0, {MAX_TIME_NS}] nanoseconds")
    for name in _TEXTS:
        if getattr(each, name) == "":
            raise InvalidRequest(f"{each.ticker[:64]!r}: {name} is empty; leave out unknown fields")


def _check_offer(offer: CandleOffer) -> None:
    if not offer.call_candles or any(each not in PERIODS for each in offer.period_seconds):
        raise InvalidRequest(f"candles: call_candles {offer.call_candles}, period_seconds {list(offer.period_seconds)}")
    if offer.volume_tolerance is not None and not 0 <= offer.volume_tolerance < 1:
        raise InvalidRequest(f"candles: volume_tolerance {offer.volume_tolerance} is outside [0, 1)")
