"""Retracted coverage: the state and the two tables always agree."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from services.common.model.history import PageResult
from services.common.model.instrument import Series
from services.common.model.time_range import TimeRange, subtract
from services.relay.broker.leases import Leases
from services.relay.history import coverage, dispatches
from services.relay.history.job import RetryPolicy
from services.relay.history.state import HistoryState
from services.relay.store.schema import Batch
from tests.unit.services.relay.harness import at

SERIES = Series("BTC/USDT.SIM", 60)


def span(start: int, end: int) -> TimeRange:
    return TimeRange(at(start), at(end))


parts = st.tuples(st.integers(0, 30), st.integers(1, 12)).map(lambda p: span(p[0], p[0] + p[1]))
pages = st.tuples(st.just("page"), parts, st.integers(0, 100), parts)
taken = st.tuples(st.just("taken"), parts, st.just(0), parts)


@given(events=st.lists(pages | taken, max_size=20), order=st.randoms())
def test_the_board_says_what_the_two_tables_say(
    events: list[tuple[str, TimeRange, int, TimeRange]], order: object
) -> None:
    """Pages and retractions arrive in any order; a page is reported some time after its fetch, or twice."""
    live, ledger, retracted = new_state(), list[PageResult](), list[tuple[TimeRange, int]]()
    for now_ns, (what, part, ago, empty) in enumerate(events, start=1):
        if what == "taken":
            coverage.retract(live, SERIES, [part], now_ns, Batch())
            retracted.append((part, now_ns))
        else:
            ledger.append(PageResult("gone", SERIES, part, (empty,), None, max(now_ns - ago, 0)))
            for _ in range(1 + ago % 2):
                dispatches.report(live, ledger[-1:], [], Batch(), now_ns=0)
    order.shuffle(ledger)  # type: ignore[attr-defined]
    order.shuffle(retracted)  # type: ignore[attr-defined]
    again = new_state()
    for part, retracted_ns in retracted:
        coverage.retract(again, SERIES, [part], retracted_ns, Batch())
    for page in ledger:
        coverage.cover(again, SERIES, page.span, page.empty, page.fetched_ns, Batch())
    assert list(again.coverage[SERIES].covered) == list(live.coverage[SERIES].covered)
    assert list(again.coverage[SERIES].empty) == list(live.coverage[SERIES].empty)
    for part, retracted_ns in retracted:
        fresh = [page.span for page in ledger if page.fetched_ns >= retracted_ns]
        assert not subtract(live.coverage[SERIES].covered.within(part), fresh), "never more than was fetched since"
    assert again.retractions[SERIES].by_time() == live.retractions[SERIES].by_time()


@given(reported=st.lists(st.tuples(parts, parts), max_size=12))
def test_only_what_every_page_calls_empty_is_empty(reported: list[tuple[TimeRange, TimeRange]]) -> None:
    """A row stays in the table, whatever a page of a fenced dispatch claims before or after."""
    state = new_state()
    for number, (part, empty) in enumerate(reported):
        dispatches.report(state, [PageResult("gone", SERIES, part, (empty,), None, number)], [], Batch(), now_ns=0)
    rows = [row for part, empty in reported for row in subtract([part], [empty])]
    assert list(state.coverage[SERIES].empty) == subtract([part for part, _ in reported], rows)


def new_state() -> HistoryState:
    ids = itertools.count()
    leases = Leases(lease_ns=15, new_id=lambda: f"id{next(ids)}")
    return HistoryState(leases, RetryPolicy(3, 0), job_periods=10, page_periods=10)
