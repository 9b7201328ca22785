"""The lying exchange of the history tests at the loop's time, as venue and session of one ingestor."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from random import Random
from typing import Any

from dexorder_common.clock import Clock
from dexorder_common.model.history import Delay
from dexorder_common.model.page import Candle
from dexorder_common.model.time_range import TimeRange
from dexorder_ingestor.config import IngestorSettings
from dexorder_ingestor.exchange.dialect import CallLimits
from dexorder_ingestor.exchange.failures import ExchangeFailure
from tests.simulation.loop import SECOND_NS, START_WALL_NS, SimulatedLoop
from tests.unit.services.ingestor.history.simulated.exchange import ANY_FILES, Exchange
from tests.unit.services.ingestor.history.simulated.world import History, Untruth, World

LISTED = "SIM"


class _Learnt:
    """What the process knows of the exchange; nothing is shared between processes."""

    def __init__(self, agreement: Any) -> None:
        self.agreement = agreement

    def share(self, *, now_ns: int) -> None:
        return


class SimulatedVenue(Exchange):
    """One ingestor's view of the exchange.

    Attributes:
        calls_of_all: Times and windows of all calls, for the checks.
        is_refused: Whether the exchange refuses this ingestor now.
    """

    name = LISTED

    def __init__(
        self,
        world: World,
        loop: SimulatedLoop,
        settings: IngestorSettings,
        clock: Clock,
        random: Random,
        calls_of_all: list[tuple[int, TimeRange]],
        fault_ns: int,
    ) -> None:
        self._loop = loop
        super().__init__(world)
        self.settings = settings
        self.clock = clock
        self.learnt = _Learnt(self.agreement)
        self.calls_of_all = calls_of_all
        self.is_refused: Callable[[], bool] = lambda: False
        self._dice = random
        self._began_ns = fault_ns

    @property
    def clock_ns(self) -> int:
        """The exchange's time; it moves only with the loop's."""
        return START_WALL_NS + self._loop.now_ns

    @clock_ns.setter
    def clock_ns(self, _: int) -> None:
        return

    @asynccontextmanager
    async def session(self) -> AsyncIterator[SimulatedVenue]:
        """Lend itself."""
        yield self

    def delay(self) -> Delay | None:
        """Nothing holds it up for long."""
        return None

    async def sleep(self, seconds: float) -> None:
        """Sleep in the loop's time."""
        await asyncio.sleep(seconds)

    async def day_file(self, symbol: str, period_seconds: int, day: TimeRange) -> tuple[list[Candle], int] | None:
        """Return a file after the time of a fetch."""
        if self.world.files:
            await asyncio.sleep(self._dice.uniform(0.05, 3.0))
        return await super().day_file(symbol, period_seconds, day)

    async def candles(
        self, symbol: str, timeframe: str, period_seconds: int, window: TimeRange, skip: Collection[int] = ()
    ) -> tuple[list[Candle], int]:
        """Answer after the time of a call."""
        await asyncio.sleep(self._dice.uniform(0.05, 0.3))
        self.calls_of_all.append((self._loop.now_ns, window))
        if self.is_refused():
            raise ExchangeFailure("the exchange refuses this address")
        return await super().candles(symbol, timeframe, period_seconds, window, skip)


def wall_ns(seconds: float) -> int:
    """Return the wall clock time of a moment of the run."""
    return START_WALL_NS + round(seconds * SECOND_NS)


def draw_world(seed: int, dice: Random, lies: float, *, hides: bool, files: bool) -> World:
    """Draw the market and its exchange.

    Args:
        lies: Probability that an answer is a lie.
        hides: Candles are absent for a while.
        files: The exchange has coarser candles, and files of whole days.
    """
    periods = 600
    outages = tuple((dice.randint(0, periods), dice.randint(1, 60)) for _ in range(dice.choice([0, 1, 2])))
    untruth = None
    if hides:
        untruth = Untruth(
            dice.randint(0, periods - 50), dice.randint(5, 40), dice.choice([60.0, 200.0, 900.0]), intact=False
        )
    history = History(dice.choice([1.0, 1.0, 0.97]), outages)
    if files and seed % 2:
        history = History()  # a day with an outage has no file
    return World(
        seed,
        history,
        periods,
        60,
        CallLimits(100, wide=dice.random() < 0.5),
        page=100,
        lies=lies,
        untruth=untruth,
        good_answers=2_000,
        cells=(300, 900) if files else (),
        files=ANY_FILES if files else "",
    )
