"""What a page claims after retractions; and that the board and the two tables never differ in it."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.common.market import TimeRange, merge, subtract
from services.relay.board import Board
from services.relay.dispatch import Dispatcher
from services.relay.model import Market, PageResult
from services.relay.retractions import Retractions
from services.relay.schema import Batch
from tests.unit.services.relay.harness import at

MARKET = Market("BTC/USDT.SIM", 60)


def span(start: int, end: int) -> TimeRange:
    return TimeRange(at(start), at(end))


def minutes(ranges: list[TimeRange]) -> list[tuple[int, int]]:
    return [((r.start_ns - at(0)) // 60_000_000_000, (r.end_ns - at(0)) // 60_000_000_000) for r in ranges]


@pytest.mark.parametrize(
    ("made", "fetched_ns", "claimed"),
    [
        ([], 0, [(0, 10)]),
        ([(2, 4, 5)], 4, [(0, 2), (4, 10)]),
        ([(2, 4, 5)], 5, [(0, 10)]),  # fetched at that time is not fetched before it
        ([(2, 4, 5)], 6, [(0, 10)]),
        ([(20, 30, 5)], 0, [(0, 10)]),
        ([(0, 10, 5)], 4, []),
        ([(0, 6, 5), (4, 10, 9)], 7, [(0, 4)]),
        ([(4, 10, 9), (0, 6, 5)], 7, [(0, 4)]),  # whatever order they are read in
        ([(0, 10, 9), (4, 6, 5)], 7, []),
        ([(4, 6, 5), (0, 10, 9)], 9, [(0, 10)]),
        ([(0, 10, 5), (4, 6, 9)], 7, [(0, 4), (6, 10)]),
    ],
)
def test_a_page_claims_nothing_inside_a_later_retraction(
    made: list[tuple[int, int, int]], fetched_ns: int, claimed: list[tuple[int, int]]
) -> None:
    retractions = Retractions()
    for start, end, retracted_ns in made:
        retractions.add(span(start, end), retracted_ns)
    assert minutes(retractions.claimed(span(0, 10), fetched_ns)) == claimed
    both = [*retractions.claimed(span(0, 10), fetched_ns), *retractions.taken(span(0, 10), fetched_ns)]
    assert merge(both) == [span(0, 10)]
    assert retractions.latest_ns == max((each[2] for each in made), default=0)


parts = st.tuples(st.integers(0, 30), st.integers(1, 12)).map(lambda p: span(p[0], p[0] + p[1]))
pages = st.tuples(st.just("page"), parts, st.integers(0, 100), parts)
taken = st.tuples(st.just("taken"), parts, st.just(0), parts)


@given(events=st.lists(pages | taken, max_size=20), order=st.randoms())
def test_the_board_says_what_the_two_tables_say(
    events: list[tuple[str, TimeRange, int, TimeRange]], order: object
) -> None:
    """However pages and retractions came; a page is reported some time after it was fetched, or twice."""
    live, ledger, retracted = new_board(), list[PageResult](), list[tuple[TimeRange, int]]()
    for now_ns, (what, part, ago, empty) in enumerate(events, start=1):
        if what == "taken":
            live.retract(MARKET, [part], now_ns, Batch())
            retracted.append((part, now_ns))
        else:
            ledger.append(PageResult("gone", MARKET, part, (empty,), None, max(now_ns - ago, 0)))
            for _ in range(1 + ago % 2):
                live.report(None, ledger[-1:], [], Batch(), now_ns=0)
    order.shuffle(ledger)  # type: ignore[attr-defined]
    order.shuffle(retracted)  # type: ignore[attr-defined]
    again = new_board()
    for part, retracted_ns in retracted:
        again.retract(MARKET, [part], retracted_ns, Batch())
    for page in ledger:
        again.cover(MARKET, page.span, page.empty, page.fetched_ns, Batch())
    assert list(again.coverage[MARKET].covered) == list(live.coverage[MARKET].covered)
    assert list(again.coverage[MARKET].empty) == list(live.coverage[MARKET].empty)
    for part, retracted_ns in retracted:
        fresh = [page.span for page in ledger if page.fetched_ns >= retracted_ns]
        assert not subtract(live.coverage[MARKET].covered.within(part), fresh), "never more than was fetched since"
    assert again.retractions[MARKET].made() == live.retractions[MARKET].made()


def new_board() -> Board:
    ids = itertools.count()
    dispatcher = Dispatcher(lease_ns=15, most_attempts=3, backoff_ns=0, new_id=lambda: f"id{next(ids)}")
    return Board(dispatcher, job_periods=10, page_periods=10)
