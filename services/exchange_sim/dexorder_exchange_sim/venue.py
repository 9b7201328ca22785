"""Exchange behind the dialects: its clock and its markets."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterable, Mapping, Sequence

from pydantic import BaseModel, ConfigDict, Field, model_validator

from dexorder_exchange_sim.absent import Coarser, without
from dexorder_exchange_sim.candles import Source
from dexorder_exchange_sim.futures import SimFuture
from dexorder_exchange_sim.instruments import INSTRUMENTS, Funding, SimInstrument
from dexorder_exchange_sim.market import SyntheticMarket
from dexorder_exchange_sim.trades import TradeSource


class SimClock:
    """Clock of the exchange: the machine's, or one that starts at a given time and runs at a multiple of its speed.

    Attributes:
        speed: Seconds that pass here in one of the machine's; 0 stands still.
        jumps: Number of times that the clock was set; moving it by `advance` is not a jump.
    """

    def __init__(self, now_ns: int | None = None, speed: float | None = None) -> None:
        self.jumps = -1
        self.set(now_ns, speed)

    def now_ns(self) -> int:
        """Return nanoseconds since the epoch."""
        if self._start_ns is None:
            return time.time_ns()
        return self._start_ns + int((time.monotonic_ns() - self._set_ns) * self.speed)

    def set(self, now_ns: int | None, speed: float | None = None) -> None:
        """Set the time; None is the machine's. Without a speed the machine's clock runs and another stands still."""
        self.jumps += 1
        self.speed = (1.0 if now_ns is None else 0.0) if speed is None else speed
        self._set_ns = time.monotonic_ns()
        self._start_ns = time.time_ns() if now_ns is None and self.speed != 1 else now_ns

    def advance(self, by_ns: int) -> None:
        """Move the clock; the time between passes, and the speed stays."""
        self._start_ns = self.now_ns() + by_ns
        self._set_ns = time.monotonic_ns()

    def pace(self, speed: float) -> None:
        """Change the speed of the clock, starting now."""
        self.advance(0)
        self.speed = speed


class ClockChange(BaseModel):
    """Change of the clock: a time and a speed for it, a way to move, or another speed."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    now_ns: int | None = Field(default=None, ge=0, lt=2**63)
    advance_ns: int | None = Field(default=None, ge=0, lt=2**62)
    speed: float | None = Field(default=None, ge=0, le=100_000)

    @model_validator(mode="after")
    def _one_change(self) -> ClockChange:
        if not self.model_fields_set or {"now_ns", "advance_ns"} <= self.model_fields_set:
            raise ValueError("use now_ns, advance_ns or speed; only speed may be beside another one")
        return self

    def apply(self, clock: SimClock) -> None:
        """Change a clock."""
        if "now_ns" in self.model_fields_set:
            clock.set(self.now_ns, self.speed)
            return
        if self.speed is not None:
            clock.pace(self.speed)
        if self.advance_ns is not None:
            clock.advance(self.advance_ns)


class IdsChange(BaseModel):
    """Market with ids that start again, by the exchange's id."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    symbol: str


class SimVenue:
    """Markets by the exchange's id; recorded ones replace synthetic ones of the same symbol.

    ``extra`` markets are added; ``futures`` are only listed. ``dark`` holds the ``dark_pools`` by the id of the market
    with the same name.
    """

    def __init__(
        self,
        recorded: Iterable[Source],
        *,
        seed: int,
        extra: Iterable[SimInstrument] = (),
        dark_pools: Iterable[SimInstrument] = (),
        funding: Mapping[str, Sequence[tuple[int, int]]] | None = None,
        futures: Sequence[SimFuture] = (),
    ) -> None:
        self.futures = futures
        self.funding = {id: Funding(id, changes) for id, changes in (funding or {}).items()}
        synthetic = (SyntheticMarket(instrument, seed=seed) for instrument in (*INSTRUMENTS, *extra))
        self.sources: dict[str, Source] = {source.instrument.id: source for source in (*synthetic, *recorded)}
        # another seed, or they would trade at the other market's prices
        dark: list[Source] = [SyntheticMarket(instrument, seed=-1 - seed) for instrument in dark_pools]
        self.dark = {source.instrument.id: source for source in dark}
        self.again_ids: dict[str, int] = {}
        """Markets with ids that have restarted, and the first trade with a new id; not every dialect shows it."""

    def begin_ids_again(self, id: str, now_ns: int) -> int:
        """Let the ids of a market start again with its next trade; return that trade.

        Raises:
            ValueError: The market is unknown or has never traded.
        """
        source = self.sources.get(id)
        if not isinstance(source, TradeSource):
            raise ValueError(f"symbol: {id!r} is not a market with trades; use an id such as BTCUSDT")
        first = self.again_ids[id] = source.first_trade_at(now_ns // 1_000_000 + 1, now_ns=now_ns)
        return first

    def without(self, span_ns: tuple[int, int], coarser: Coarser) -> SimVenue:
        """Return the venue of a replica that lacks rows that open in [start, end), nanoseconds."""
        replica = copy.copy(self)
        replica.sources = {id: without(source, span_ns, coarser) for id, source in self.sources.items()}
        replica.dark = {id: without(source, span_ns, coarser) for id, source in self.dark.items()}
        return replica
