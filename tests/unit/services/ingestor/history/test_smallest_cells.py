"""The smallest cells as the checksums of a range for which one call brings them, and when they are of no use."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

import pytest

from dexorder_common.model.page import Candle
from dexorder_common.model.proof import ProofKind
from dexorder_common.model.time_range import TimeRange
from dexorder_ingestor.exchange.dialect import CallLimits
from dexorder_ingestor.exchange.failures import ExchangeFailure
from dexorder_ingestor.history.paging import CandlePage
from tests.unit.services.ingestor.history.simulated.exchange import Exchange
from tests.unit.services.ingestor.history.simulated.jobs import Outcome, check_whole
from tests.unit.services.ingestor.history.simulated.world import History, World
from tests.unit.services.ingestor.history.test_evidence import warm


def short(history: History, periods: int, call: CallLimits) -> World:
    return World(7, history, periods, 60, call, page=1_000, cells=(300, 900, 3_600, 14_400))


class Cells(Exchange):
    """An exchange whose smallest cells are wrong, all of them or after some, or not answered."""

    def __init__(self, world: World, fault: str) -> None:
        super().__init__(world)
        self.agreement, self._fault = warm(), fault
        self.periods: list[int] = []

    async def candles(
        self, symbol: str, timeframe: str, period_seconds: int, window: TimeRange, skip: Collection[int] = ()
    ) -> tuple[list[Candle], int]:
        self.periods.append(period_seconds)
        found, now_ns = await super().candles(symbol, timeframe, period_seconds, window, skip)
        if period_seconds != 300 or not self._fault:
            return found, now_ns
        if self._fault == "fails":
            raise ExchangeFailure("no answer")
        first = 100 if self._fault == "later" else 0
        return [*found[:first], *(c._replace(volume=c.volume * 2) for c in found[first:])], now_ns


@pytest.mark.parametrize(
    ("history", "periods", "expected"),
    [
        (History(), 1_440, [300, 60, 60]),
        (History(outages=((601, 3),)), 1_440, [300, 60, 60]),
        (History(outages=((600, 5),)), 1_440, [300, 3_600, 60, 60]),
        (History(), 6_000, [300, 3_600]),
    ],
    ids=["whole", "minutes are absent", "a cell is absent", "more cells than a call"],
)
def test_the_smallest_cells_prove_a_short_range_unless_one_is_absent(
    history: History, periods: int, expected: list[int]
) -> None:
    exchange, outcome = run_cells(short(history, periods, CallLimits(1_000, wide=True)), "")
    check_whole(outcome)
    if periods == 1_440:
        assert exchange.periods == expected
    else:
        assert exchange.periods[0] == 3_600 and 300 in exchange.periods, "hours, and the sample"
    assert {proof.kind for page in outcome.pages for proof in page.proofs} == {ProofKind.CHECKSUM}


@pytest.mark.parametrize("fault", ["fails", "wrong", "later"])
def test_smallest_cells_that_are_of_no_use_leave_a_short_range_to_the_larger_ones(fault: str) -> None:
    exchange, outcome = run_cells(short(History(), 1_440, CallLimits(1_000, wide=True)), fault)
    check_whole(outcome)
    assert 3_600 in exchange.periods or fault == "later"
    assert ProofKind.CHECKSUM in {proof.kind for page in outcome.pages for proof in page.proofs}


def run_cells(job: World, fault: str) -> tuple[Cells, Outcome]:
    exchange = Cells(job, fault)
    outcome = Outcome(job, exchange)

    async def put(page: CandlePage) -> None:
        outcome.pages.append(page)

    outcome.missing = list(asyncio.run(exchange.run(job.job, put)))
    return exchange, outcome
