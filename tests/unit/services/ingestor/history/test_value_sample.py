"""Values that tally with their cell and are wrong all the same: smaller cells contradict them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from dataclasses import replace

import pytest

from dexorder_common.model.page import Candle
from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.times import SECOND_NS
from dexorder_ingestor.exchange.dialect import CallLimits
from dexorder_ingestor.history.checksum import CheckedCell, ValueSample, sampled
from dexorder_ingestor.history.paging import CandlePage
from tests.unit.services.ingestor.conftest import minutes
from tests.unit.services.ingestor.history.simulated.exchange import Exchange
from tests.unit.services.ingestor.history.simulated.jobs import check_whole, fetch
from tests.unit.services.ingestor.history.simulated.world import History, Untruth, World
from tests.unit.services.ingestor.history.test_evidence import warm

WRONG = 717
"""Inside an hour, and neither its first nor its last minute."""
Change = Callable[[Candle], Candle]


class Wrong(Exchange):
    """An exchange whose minutes have one wrong value for some seconds; its coarser candles are right."""

    def __init__(self, world: World, change: Change, lasts_s: float) -> None:
        super().__init__(world)
        self.agreement = warm()
        self._change, self._until_ns = change, self.clock_ns + round(lasts_s * SECOND_NS)

    async def candles(
        self, symbol: str, timeframe: str, period_seconds: int, window: TimeRange, skip: Collection[int] = ()
    ) -> tuple[list[Candle], int]:
        wrong_ns, is_wrong = self.world.open_ns(WRONG), self.clock_ns < self._until_ns
        found, now_ns = await super().candles(symbol, timeframe, period_seconds, window, skip)
        if is_wrong and period_seconds == self.world.period_seconds:
            found = [self._change(c) if c.open_ns == wrong_ns else c for c in found]
        return found, now_ns


def world(periods: int) -> World:
    """A market in which every hour has a higher high and a lower low than the wrong candle."""
    made = World(7, History(), periods, 60, CallLimits(1_000, wide=True), 1_000, cells=(180, 3_600), untruth=Untruth())
    market = {t: Candle(t, 50.0, 51.0, 49.0, 50.0, 1.0) for t in made.market}
    for number in range(0, periods, 60):
        open_ns = made.open_ns(number)
        market[open_ns] = Candle(open_ns, 50.0, 90.0, 10.0, 50.0, 1.0)
    made.__dict__["market"] = market
    return made


@pytest.mark.parametrize(
    "change",
    [
        lambda c: c._replace(high=52.0),
        lambda c: c._replace(low=48.0),
        lambda c: c._replace(open=50.5),
    ],
    ids=["high", "low", "open"],
)
@pytest.mark.parametrize("periods", [2_880, 3_060], ids=["all in one call", "all but an hour in a sample"])
def test_a_value_that_is_wrong_for_seconds_is_not_stored_although_its_hour_agrees(change: Change, periods: int) -> None:
    exchange, pages = Wrong(world(periods), change, 5.0), list[CandlePage]()

    async def run() -> list[object]:
        async def put(page: CandlePage) -> None:
            pages.append(page)

        return list(await exchange.run(exchange.world.job, put))

    assert not asyncio.run(run())
    assert {c.open_ns: c for page in pages for c in page.candles} == exchange.world.truth


def test_a_sample_costs_a_call() -> None:
    checked = replace(world(50_000), untruth=None)
    unchecked = replace(checked, cells=(3_600,))
    with_sample, without = fetch(checked, warm()), fetch(unchecked, warm())
    check_whole(with_sample)
    assert with_sample.exchange.calls == without.exchange.calls + 1


def test_all_of_a_short_range_is_looked_at_and_every_place_of_a_long_one_in_turn() -> None:
    assert sampled(minutes(0, 2_880), 3_600, 180, 1_000, 12_345) == minutes(0, 2_880)
    windows = [sampled(minutes(0, 60_000), 3_600, 180, 1_000, draw) for draw in range(5_000)]
    assert {window.end_ns - window.start_ns for window in windows} == {3_000 * 60 * SECOND_NS}
    seen = {(w.start_ns, w.end_ns) for w in windows}
    assert len(seen) == 951 and min(seen)[0] == minutes(0, 1).start_ns and max(seen)[1] == minutes(0, 60_000).end_ns


def test_an_absent_cell_and_an_answer_that_fails_are_no_objection() -> None:
    checked = CheckedCell(minutes(0, 60), ())
    sample = ValueSample(minutes(0, 60), 180, 1e-9)
    sample.add([])
    assert not sample.contradicts(checked)
    sample.add([Candle(minutes(0, 60).start_ns, 1.0, 1.0, 1.0, 1.0, 5.0)])
    assert sample.contradicts(checked), "a trade that no candle has"
    sample.add([Candle(minutes(0, 60).end_ns, 1.0, 1.0, 1.0, 1.0, 5.0)])
    assert not sample.contradicts(checked), "another cell"
