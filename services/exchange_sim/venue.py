"""Exchange behind the dialects: its clock and its markets."""

from __future__ import annotations

import time
from collections.abc import Iterable

from services.exchange_sim.candles import Source
from services.exchange_sim.instruments import DARK_POOLS, INSTRUMENTS
from services.exchange_sim.market import SyntheticMarket


class Clock:
    """Clock of the exchange: the machine's, or one that stands still until it is set."""

    def __init__(self, now_ns: int | None = None) -> None:
        self._now_ns = now_ns

    def now_ns(self) -> int:
        """Return nanoseconds since the epoch."""
        return time.time_ns() if self._now_ns is None else self._now_ns

    def set(self, now_ns: int | None) -> None:
        """Stop at a time; None returns to the machine's clock."""
        self._now_ns = now_ns


class Venue:
    """Markets by the exchange's id; recorded ones replace synthetic ones of the same symbol.

    ``dark`` holds the dark pools by the id of the market whose name they share.
    """

    def __init__(self, recorded: Iterable[Source], *, seed: int) -> None:
        synthetic: list[Source] = [SyntheticMarket(instrument, seed=seed) for instrument in INSTRUMENTS]
        self.sources = {source.instrument.id: source for source in (*synthetic, *recorded)}
        # another seed, or they would trade at the other market's prices
        dark: list[Source] = [SyntheticMarket(instrument, seed=-1 - seed) for instrument in DARK_POOLS]
        self.dark = {source.instrument.id: source for source in dark}
