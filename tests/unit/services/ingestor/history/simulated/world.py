"""Inputs of a simulated job: the market's history, the exchange's limits and its lies. Pure.

Periods are numbered from the start of the job's span, so its first period is 0. A history also has candles before and
after the span, as queries for evidence reach beyond it.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import fsum

from dexorder_common.model.history import Dispatch
from dexorder_common.model.instrument import Series
from dexorder_common.model.page import Candle
from dexorder_common.model.periods import MONTH_SECONDS, WEEK_SECONDS, floor_to_grid, next_open
from dexorder_common.model.time_range import TimeRange
from dexorder_ingestor.exchange.dialect import CallLimits

BEFORE, BEHIND = 150, 150
"""Periods of history on either side of the span."""
_START_NS = 1_577_836_800 * 1_000_000_000  # 2020
PERIODS = (60, 86_400, WEEK_SECONDS, MONTH_SECONDS)
SYMBOL, OTHER = "BTC/USDT", "ETH/USDT"


@dataclass(frozen=True)
class History:
    """Candles of a market.

    Attributes:
        density: Probability that a period has a candle; 1 has no holes, 0 is empty.
        outages: (first, count) of periods without candles.
        listed: First period with a candle; None is long before the span.
        delisted: First period without candles again; None is long after the span.
    """

    density: float = 1.0
    outages: tuple[tuple[int, int], ...] = ()
    listed: int | None = None
    delisted: int | None = None

    def has(self, number: int, dice: random.Random) -> bool:
        """Return whether there is a candle; call once for each period, in order."""
        drawn = dice.random() < self.density
        within = (self.listed is None or number >= self.listed) and (self.delisted is None or number < self.delisted)
        return drawn and within and not any(first <= number < first + count for first, count in self.outages)


@dataclass(frozen=True)
class Untruth:
    """Candles that are absent from all answers for a while.

    Attributes:
        first: First of these periods.
        count: Number of them.
        lasts_s: They are there so many seconds after the first call.
        replicas: Number of replicas; one of them has the fault, and a connection stays at its replica.
        calls: True answers before the fault begins.
        lag_s: Every candle is absent until so many seconds after its close, and coarser ones lack it.
        deep: Coarser candles are computed from those that are left, so they agree.
        intact: Coarser candles are there all the time.
        share: Share of the answers that have the fault while it lasts.
        behind_s: Answers are as of so many seconds ago, with the candle that was open then half-finished.
    """

    first: int = 0
    count: int = 0
    lasts_s: float = 0.0
    replicas: int = 1
    calls: int = 0
    lag_s: float = 0.0
    deep: bool = False
    intact: bool = False
    share: float = 1.0
    behind_s: float = 0.0


@dataclass(frozen=True)
class World:
    """One job against one exchange; equal worlds behave alike.

    Attributes:
        seed: Seed of prices, of a thin history and of the lies.
        periods: Length of the job's span.
        call: Limits of one call.
        page: Largest number of periods in a page.
        lies: Probability that an answer is a lie, see `lies`.
        kinds: Kinds of lies; empty for all.
        failures: Probability that a query has no valid answer.
        impossible: Periods whose candle is impossible in every answer.
        closed: Periods of the span that have ended when the job starts; None if all have.
        limit: Limit of the job; 0 for none.
        returned: Largest number of candles that an answer really has: the oldest of the window, or the newest if
            negative; 0 for as many as ``call`` says.
        cells: Coarser periods that the exchange has, seconds; they are checksums.
        untruth: What is untrue for a while, in candles of all periods; None if nothing is.
        good_answers: Answers that the exchange gave before, all true.
        files: What is in the exchange's files of whole days, see `exchange.FILES`; ``any`` for each
            of any kind, empty for no files.
    """

    seed: int
    history: History
    periods: int
    period_seconds: int
    call: CallLimits
    page: int
    lies: float = 0.0
    kinds: tuple[str, ...] = ()
    failures: float = 0.0
    impossible: frozenset[int] = frozenset()
    closed: int | None = None
    limit: int = 0
    returned: int = 0
    cells: tuple[int, ...] = ()
    untruth: Untruth | None = None
    good_answers: int = 0
    files: str = ""

    def open_ns(self, number: int) -> int:
        """Return the open time of a period."""
        return _open_ns(self.period_seconds, number)

    @cached_property
    def span(self) -> TimeRange:
        return TimeRange(self.open_ns(0), self.open_ns(self.periods))

    @cached_property
    def closed_end_ns(self) -> int:
        """End of the last candle that has ended when the job starts."""
        return self.open_ns(self.periods + BEHIND if self.closed is None else self.closed)

    @cached_property
    def job(self) -> Dispatch:
        return Dispatch("j1", "r1", Series(f"{SYMBOL}.SIM", self.period_seconds), self.span, limit=self.limit)

    @cached_property
    def market(self) -> dict[int, Candle]:
        """Every candle of the queried symbol by its open time, in time order."""
        return self._candles(self.history, "asked")

    def coarse(self, rows: list[Candle], seconds: int) -> list[Candle]:
        """Return the candles of a coarser period that these fill."""
        found: dict[int, list[Candle]] = {}
        for c in rows:
            found.setdefault(floor_to_grid(c.open_ns, seconds), []).append(c)
        return [
            Candle(
                t,
                inside[0].open,
                max(c.high for c in inside),
                min(c.low for c in inside),
                inside[-1].close,
                fsum(c.volume for c in inside),
            )
            for t, inside in found.items()
        ]

    @cached_property
    def other(self) -> dict[int, Candle]:
        """Another symbol's: other values, at the same times or, with an even seed, at all times."""
        return self._candles(History() if self.seed % 2 == 0 else self.history, "other")

    @cached_property
    def truth(self) -> dict[int, Candle]:
        """The rows that the job must produce."""
        end_ns = min(self.span.end_ns, self.closed_end_ns)
        bad = {self.open_ns(number) for number in self.impossible}
        rows = [(t, c) for t, c in self.market.items() if self.span.start_ns <= t < end_ns and t not in bad]
        return dict(rows[: self.limit] if self.limit else rows)

    @cached_property
    def answered(self) -> TimeRange:
        """The part of the span that the job must account for: all of it, or up to the limit's last candle."""
        if self.limit and len(self.truth) == self.limit:
            return TimeRange(self.span.start_ns, next_open(max(self.truth), self.period_seconds))
        return self.span

    def _candles(self, history: History, whose: str) -> dict[int, Candle]:
        return _drawn(self.seed, history, whose, self.periods, self.period_seconds)


@lru_cache(maxsize=256)
def _drawn(seed: int, history: History, whose: str, periods: int, period_seconds: int) -> dict[int, Candle]:
    """Return the candles of a symbol, the same object for each world that has them."""
    thin = random.Random(f"{seed}/times")  # the same draws for both symbols
    prices = random.Random(f"{seed}/{whose}")
    base = 100.0 if whose == "asked" else 4_000.0
    candles: dict[int, Candle] = {}
    for number in range(-BEFORE, periods + BEHIND):
        low, opened, close, high = sorted(base + prices.random() for _ in range(4))
        if history.has(number, thin):
            open_ns = _open_ns(period_seconds, number)
            candles[open_ns] = Candle(open_ns, opened, high, low, close, prices.random())
    return candles


def _open_ns(period_seconds: int, number: int) -> int:
    return next_open(floor_to_grid(_START_NS, period_seconds), period_seconds, number)
