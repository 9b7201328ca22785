"""Which markets each exchange has, as its ingestors last said. Kept in the store, so a restart forgets none."""

from __future__ import annotations

from collections.abc import Container

from services.common.clock import Clock
from services.common.model.errors import InvalidRequest, NotFound
from services.common.model.history import InstrumentList
from services.common.model.instrument import Instrument
from services.common.model.times import MAX_TIME_NS
from services.relay.store.database import Store
from services.relay.store.schema import Batch


class Instruments:
    """What the two RPCs about markets do."""

    def __init__(self, store: Store, venues: Container[str], clock: Clock) -> None:
        self._store = store
        self._venues = venues
        self._clock = clock

    async def report(self, exchange: str, listed: InstrumentList) -> None:
        """Replace what is kept of an exchange, unless that is newer; on disk when this returns.

        Raises:
            InvalidRequest: The exchange is none of ours, or the report can't be one.
        """
        if exchange not in self._venues:
            raise InvalidRequest(f"exchange {exchange[:64]!r} is not known")
        batch = Batch()
        batch.markets(exchange, check(exchange, listed, now_ns=self._clock.wall_ns()))
        await self._store.commit(batch)

    async def listed(self, exchange: str) -> InstrumentList:
        """An exchange's markets, by ticker.

        Raises:
            NotFound: The exchange is none of ours, or no ingestor has reported it yet.
        """
        if exchange not in self._venues:
            raise NotFound(f"exchange {exchange[:64]!r} is not known")
        listed = await self._store.markets(exchange)
        if listed is None:
            raise NotFound(f"no ingestor has reported the markets of {exchange!r} yet")
        return listed


def check(exchange: str, listed: InstrumentList, *, now_ns: int) -> InstrumentList:
    """The report, by ticker; a time after now is now, so that a clock ahead does not shut out later reports. Pure.

    Raises:
        InvalidRequest: No markets, no time, a ticker of another exchange, or one twice.
    """
    if not listed.markets:
        raise InvalidRequest("markets is empty")
    if not 0 < listed.fetched_ns <= MAX_TIME_NS:
        raise InvalidRequest(f"fetched_at {listed.fetched_ns} is outside [1, {MAX_TIME_NS}] nanoseconds")
    markets = sorted(listed.markets)
    previous = ""
    for series in markets:
        if Instrument.parse(series.ticker).venue != exchange:
            raise InvalidRequest(f"ticker {series.ticker[:64]!r} is not one of exchange {exchange!r}")
        if series.ticker == previous:
            raise InvalidRequest(f"ticker {series.ticker[:64]!r} is there twice")
        previous = series.ticker
    return InstrumentList(tuple(markets), min(listed.fetched_ns, now_ns))
