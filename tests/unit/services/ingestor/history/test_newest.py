"""Absence of the newest candles."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, cast

import pytest

from services.common.model.instrument import Instrument
from services.common.model.page import Candle
from services.common.model.periods import open_times
from services.common.model.time_range import TimeRange, merge
from services.common.model.times import SECOND_NS
from services.ingestor.broker.slots import Dispatch
from services.ingestor.history.fetch import Fetcher
from services.ingestor.history.newest import settled_end_ns
from services.ingestor.history.paging import Page
from tests.unit.services.ingestor.conftest import minutes
from tests.unit.services.ingestor.history.test_evidence import candle, opens
from tests.unit.services.ingestor.history.test_fetch import Exchange

END_NS = minutes(30, 0).start_ns


def page(*absent: int) -> Page:
    candles = tuple(candle(t) for t in opens(*range(30)) if t not in opens(*absent))
    return Page(minutes(0, 30), candles, tuple(merge(minutes(n, 1) for n in absent)), 0)


@pytest.mark.parametrize(
    ("name", "absent", "newest", "age_seconds", "settled"),
    [
        ("no hole", (), 29, 1, 30),
        ("old hole before a later candle", (25,), 29, 1, 30),
        ("young hole before a later candle", (28,), 29, 1, 28),
        ("the same, later", (28,), 29, 60, 30),
        ("the last candle", (29,), 28, 60, 29),
        ("the last candle, seen later candles", (29,), 31, 120, 30),
        ("a quiet market", (27, 28, 29), 26, 599, 29),
        ("a market quiet for long", (27, 28, 29), 26, 600, 30),
        ("the last minutes of a quiet market", tuple(range(10, 30)), 9, 1, 20),
        ("nothing at all", tuple(range(30)), 0, 1, 20),
    ],
)
def test_holes_that_count_as_absent(
    name: str, absent: tuple[int, ...], newest: int, age_seconds: int, settled: int
) -> None:
    end_ns = settled_end_ns(
        page(*absent),
        60,
        newest_ns=opens(newest)[0],
        now_ns=END_NS + age_seconds * SECOND_NS,
        delay_seconds=120,
    )
    assert end_ns == opens(settled)[0]


class Late(Exchange):
    """Publishes each candle some seconds after its close."""

    def __init__(self, late_seconds: float, absent: Collection[int], **settings: Any) -> None:
        self.late_ns = int(late_seconds * SECOND_NS)
        self.absent = opens(*absent)
        super().__init__(self.answer_late, now_ns=END_NS + 2 * SECOND_NS, settings=settings)

    def answer_late(self, window: TimeRange, skip: Collection[int]) -> list[Candle]:
        found = [t for t in open_times(window, 60) if t + 60 * SECOND_NS + self.late_ns <= self.clock_ns]
        return [candle(t) for t in found if t not in self.absent]


async def fetch(exchange: Late) -> tuple[list[int], list[TimeRange], list[TimeRange]]:
    """Return the numbers of the candles, the empty ranges and the missing ones of a job up to now."""
    pages: list[Page] = []

    async def put(page: Page) -> None:
        pages.append(page)

    job = Dispatch("j1", "r1", Instrument("BTC/USDT", "SIM"), minutes(0, 30), 60)
    missing = await Fetcher(job, cast(Any, exchange), cast(Any, exchange), exchange.agreement).run(put)
    first_ns = opens(0)[0]
    numbers = [(c.open_ns - first_ns) // (60 * SECOND_NS) for page in pages for c in page.candles]
    assert all("not settled yet" in m.reason for m in missing)
    return numbers, [part for page in pages for part in page.empty], [m.span for m in missing]


@pytest.mark.parametrize("late_seconds", [3, 5, 8])
async def test_late_candle_is_waited_for(late_seconds: float) -> None:
    exchange = Late(late_seconds, (), close_wait_seconds=10)
    assert await fetch(exchange) == (list(range(30)), [], [])
    assert exchange.clock_ns <= END_NS + 12 * SECOND_NS


@pytest.mark.parametrize(("late_seconds", "found"), [(30, 29), (100, 28), (590, 20)])
async def test_later_ones_are_missing_and_never_empty(late_seconds: float, found: int) -> None:
    numbers, empty, missing = await fetch(Late(late_seconds, (), close_wait_seconds=10))
    assert (numbers, empty, missing) == (list(range(found)), [], [minutes(found, 30 - found)])


async def test_only_the_hole_of_the_newest_candles_is_missing() -> None:
    numbers, empty, missing = await fetch(Late(0, (10, 28)))
    assert (numbers, empty) == ([n for n in range(30) if n not in (10, 28)], [minutes(10, 1)])
    assert missing == [minutes(28, 1)]


async def test_candle_after_the_range_shows_that_its_end_is_quiet() -> None:
    exchange = Late(0, (25, 26, 27, 28, 29))
    exchange.clock_ns = minutes(33, 0).start_ns
    numbers, empty, missing = await fetch(exchange)
    assert (numbers, empty, missing) == (list(range(25)), [minutes(25, 5)], [])
