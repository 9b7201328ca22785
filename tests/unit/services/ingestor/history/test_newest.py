"""Absence of the newest candles."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from itertools import cycle
from typing import Any

import pytest

from dexorder_common.model.history import Dispatch
from dexorder_common.model.instrument import Series
from dexorder_common.model.page import Candle
from dexorder_common.model.periods import open_times
from dexorder_common.model.proof import Proof, ProofKind
from dexorder_common.model.time_range import TimeRange, merge
from dexorder_common.model.times import SECOND_NS
from dexorder_ingestor.history.newest import Newest
from dexorder_ingestor.history.paging import CandlePage
from tests.unit.services.ingestor.conftest import minutes
from tests.unit.services.ingestor.history.test_evidence import candle, opens
from tests.unit.services.ingestor.history.test_fetch import Exchange

END_NS = minutes(30, 0).start_ns


def page(*absent: int) -> CandlePage:
    candles = tuple(candle(t) for t in opens(*range(30)) if t not in opens(*absent))
    return CandlePage(minutes(0, 30), candles, tuple(merge(minutes(n, 1) for n in absent)), 0)


@pytest.mark.parametrize(
    ("name", "absent", "newest", "age_seconds", "settled"),
    [
        ("no hole", (), 31, 1, 30),
        ("old hole before a later candle", (25,), 30, 1, 30),
        ("young hole before a later candle", (28,), 29, 1, 28),
        ("the same, later", (28,), 30, 60, 30),
        ("no hole, nothing later", (), 29, 1, 29),
        ("no hole, nothing later, after the delay", (), 29, 120, 30),
        ("no hole, and the open candle", (), 30, 1, 30),
        ("no hole, and later candles of another answer", (), -30, 1, 29),
        ("the last candle", (29,), 28, 60, 29),
        ("the last candle, seen later candles", (29,), 31, 120, 30),
        ("the last candle, seen the next one", (29,), 30, 120, 30),
        ("a quiet market", (27, 28, 29), 26, 599, 29),
        ("a market quiet for long", (27, 28, 29), 26, 600, 30),
        ("the last minutes of a quiet market", tuple(range(10, 30)), 9, 1, 20),
        ("nothing at all", tuple(range(30)), 0, 1, 20),
    ],
)
def test_holes_that_count_as_absent(
    name: str, absent: tuple[int, ...], newest: int, age_seconds: int, settled: int
) -> None:
    known = Newest(60, delay_seconds=120, is_marked=False, now_ns=END_NS + age_seconds * SECOND_NS)
    candles = page(*absent).candles
    if newest < 0:
        known.note(candles)
        known.note([candle(t) for t in opens(-newest)])
    else:
        known.note([c for c in candles if c.open_ns < opens(newest)[0]] + [candle(t) for t in opens(newest)])
    assert known.settled_end_ns(page(*absent)) == opens(settled)[0]


def test_young_candle_is_closed_only_as_an_answer_with_a_later_one_has_it() -> None:
    """One replica has the end of the last minute, and the page is from one that is behind: half of the candle."""
    known = Newest(60, delay_seconds=120, is_marked=False, now_ns=END_NS + SECOND_NS)
    whole = page()
    half = replace(whole, candles=(*whole.candles[:-1], candle(opens(29)[0], close=1.0)))
    known.note([*whole.candles, candle(opens(30)[0], close=1.0)])
    assert known.settled_end_ns(whole) == opens(30)[0]
    assert known.settled_end_ns(half) == opens(29)[0]


def test_young_candle_of_a_minute_whose_trade_ids_have_no_gap_is_closed() -> None:
    known = Newest(60, delay_seconds=120, is_marked=False, now_ns=END_NS + SECOND_NS)
    known.note(page().candles)
    for first, settled in ((29, 30), (30, 29)):
        proof = Proof(minutes(first, 1), ProofKind.TRADE_IDS, 1, END_NS, END_NS)
        assert known.settled_end_ns(replace(page(), proofs=(proof,))) == opens(settled)[0]


class Late(Exchange):
    """Publishes each candle some seconds after its close, or answers as of some seconds ago."""

    def __init__(
        self, late_s: float = 0, absent: Collection[int] = (), *, behind_s: float = 0, is_open: bool = True, **kept: Any
    ) -> None:
        """Take the faults; if ``is_open``, the candle that is still open is shown."""
        self.late_ns = int(late_s * SECOND_NS)
        self.behind_ns = int(behind_s * SECOND_NS)
        self.is_open = is_open
        self.absent = opens(*absent)
        super().__init__(self.answer_late, now_ns=END_NS + 2 * SECOND_NS, **kept)

    def answer_late(self, window: TimeRange, skip: Collection[int]) -> list[Candle]:
        found, view_ns = [], self.clock_ns - self.behind_ns
        for t in open_times(window, 60):
            end_ns = t + 60 * SECOND_NS
            if end_ns + self.late_ns <= view_ns and t not in self.absent:
                found.append(candle(t))
            elif self.is_open and t < view_ns < end_ns:
                found.append(candle(t, close=1.0))
        return found


async def fetch(exchange: Late) -> tuple[list[int], list[TimeRange], list[TimeRange]]:
    """Return the numbers of the candles, the empty ranges and the missing ones of a job up to now."""
    pages, missing = await exchange.fetch(Dispatch("j1", "r1", Series("BTC/USDT.SIM", 60), minutes(0, 30)))
    assert all(c == candle(c.open_ns) for page in pages for c in page.candles)
    first_ns = opens(0)[0]
    numbers = [(c.open_ns - first_ns) // (60 * SECOND_NS) for page in pages for c in page.candles]
    assert all("not settled yet" in m.reason for m in missing)
    return numbers, [part for page in pages for part in page.empty], [m.span for m in missing]


@pytest.mark.parametrize("fault", [{"late_s": 3}, {"late_s": 8}, {"behind_s": 3}, {"behind_s": 8}])
async def test_newest_candle_is_waited_for(fault: dict[str, Any]) -> None:
    exchange = Late(**fault, close_wait_seconds=10)
    assert await fetch(exchange) == (list(range(30)), [], [])
    assert exchange.clock_ns <= END_NS + 12 * SECOND_NS


@pytest.mark.parametrize(("late_s", "found"), [(30, 28), (100, 28), (590, 20)])
async def test_later_ones_are_missing_and_never_empty(late_s: float, found: int) -> None:
    numbers, empty, missing = await fetch(Late(late_s, is_open=False, close_wait_seconds=10))
    assert (numbers, empty, missing) == (list(range(found)), [], [minutes(found, 30 - found)])


@pytest.mark.parametrize("behind_s", [30, 50])
async def test_half_finished_candle_is_missing_and_never_stored(behind_s: float) -> None:
    """`fetch` checks the values; two answers that agree would not help, as they come from the same replica's past."""
    numbers, empty, missing = await fetch(Late(behind_s=behind_s, close_wait_seconds=10))
    assert (numbers, empty, missing) == (list(range(29)), [], [minutes(29, 1)])


class TwoReplicas(Late):
    """Answers in turn from a replica that is current and from one that is behind."""

    def __init__(self, behind_s: float, *, first_is_behind: bool) -> None:
        super().__init__(behind_s=behind_s, close_wait_seconds=10)
        self.turns = cycle((self.behind_ns, 0) if first_is_behind else (0, self.behind_ns))

    def answer_late(self, window: TimeRange, skip: Collection[int]) -> list[Candle]:
        self.behind_ns = next(self.turns)
        return super().answer_late(window, skip)


@pytest.mark.parametrize("first_is_behind", [True, False])
@pytest.mark.parametrize("behind_s", [3, 30, 50, 90])
async def test_half_of_a_candle_from_a_replica_that_is_behind_is_never_stored(
    behind_s: float, first_is_behind: bool
) -> None:
    """The two contradict each other for as long as one is behind, so the candle is missing."""
    exchange, job = TwoReplicas(behind_s, first_is_behind=first_is_behind), minutes(0, 30)
    pages, missing = await exchange.fetch(Dispatch("j1", "r1", Series("BTC/USDT.SIM", 60), job))
    found = [c for page in pages for c in page.candles]
    assert found == [candle(t) for t in opens(*range(len(found)))] and len(found) >= 28
    assert [m.span for m in missing] == [minutes(len(found), 30 - len(found))]


async def test_only_the_hole_of_the_newest_candles_is_missing() -> None:
    numbers, empty, missing = await fetch(Late(absent=(10, 28)))
    assert (numbers, empty) == ([n for n in range(30) if n not in (10, 28)], [minutes(10, 1)])
    assert missing == [minutes(28, 1)]


async def test_candle_after_the_range_shows_that_its_end_is_quiet() -> None:
    exchange = Late(absent=(25, 26, 27, 28, 29))
    exchange.clock_ns = minutes(33, 0).start_ns
    numbers, empty, missing = await fetch(exchange)
    assert (numbers, empty, missing) == (list(range(25)), [minutes(25, 5)], [])
