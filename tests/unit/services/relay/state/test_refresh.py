"""Claims of candles that a refresh did not find, against a naive rule for each minute and against the two tables."""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from dexorder_common.lake.coverage import Order
from dexorder_common.model.dispatch_id import number_of
from dexorder_common.model.history import PageResult
from dexorder_common.model.time_range import TimeRange
from dexorder_relay.state import coverage
from dexorder_relay.state.changes import Changes
from dexorder_relay.state.history import HistoryState
from tests.fakes.pages import dispatch_id
from tests.unit.services.relay.harness import SERIES, Driver, at, history_state, span

MINUTES, FIRST = 8, 50


class Page(NamedTuple):
    """A committed page; ``number`` is that of its dispatch, None for the refresh's own."""

    number: int | None
    start: int
    end: int
    empty: frozenset[int]

    @property
    def candles(self) -> set[int]:
        return {*range(self.start, self.end)} - self.empty

    def result(self, own: str) -> PageResult:
        spans = [span(minute, minute + 1) for minute in sorted(self.empty) if self.start <= minute < self.end]
        name = own if self.number is None else dispatch_id(self.number)
        return PageResult(name, SERIES, span(self.start, self.end), tuple(spans))


numbers = st.one_of(st.none(), st.integers(1, FIRST - 2), st.integers(FIRST + 1, 99))
bounds = st.lists(st.integers(0, MINUTES), min_size=2, max_size=2, unique=True).map(sorted)
minutes = st.frozensets(st.integers(0, MINUTES - 1))
pages = st.builds(lambda number, ends, empty: Page(number, ends[0], ends[1], empty), numbers, bounds, minutes)


@given(before=st.lists(pages, max_size=4), after=st.lists(pages, max_size=6))
def test_a_candle_is_gone_if_only_older_dispatches_have_it(before: list[Page], after: list[Page]) -> None:
    d = Driver(history_state(FIRST))
    known = [page for page in before if page.number is not None and page.number < FIRST]
    d.report([page.result("") for page in known])
    d.accept("r", 0, MINUTES, refresh=True)
    (dispatch,) = d.dispatch()
    (job,) = d.state.jobs.values()
    assert number_of(dispatch.dispatch_id) == job.first_dispatch == FIRST
    for page in after:
        d.report([page.result(dispatch.dispatch_id)])
    known += after

    def has(minute: int, *, older: bool) -> bool:
        wanted = [page for page in known if (page.number is not None and page.number < FIRST) == older]
        return any(minute in page.candles for page in wanted)

    own = {minute for page in after if page.number is None for minute in range(page.start, page.end)}
    gone = [minute for minute in sorted(own) if has(minute, older=True) and not has(minute, older=False)]
    found = d.state.vanished(job)
    assert [m for m in range(MINUTES) if any(part.contains(span(m, m + 1)) for part in found)] == gone
    covered, _ = claims(d.state)
    order = Order(FIRST - 1, at(1_000))
    coverage.replace(d.state, job, found, order, d.changes)
    assert claims(d.state)[0] == covered, "it counts throughout"
    assert d.state.vanished(job) == []
    assert claims(d.state) == claims(rebuilt(known, found, order)), "as a relay without its database reads it"


def claims(state: HistoryState) -> tuple[list[TimeRange], list[TimeRange]]:
    return state.claims(SERIES, span(0, MINUTES))


def rebuilt(known: list[Page], retracted: list[TimeRange], order: Order) -> HistoryState:
    state, changes = history_state(), Changes()
    for part in retracted:
        state.retractions[SERIES].add(part, order)
    for page in known:
        result = page.result(dispatch_id(FIRST))
        number = Order(number_of(result.dispatch_id), at(2_000))
        coverage.cover(state, SERIES, result.span, result.empty, number, changes)
    return state
