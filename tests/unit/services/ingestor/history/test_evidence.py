"""Proof and its price, against a model exchange that drops candles from its answers."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dexorder_common.model.page import Candle
from dexorder_common.model.periods import open_times, split_by_periods
from dexorder_common.model.time_range import TimeRange
from dexorder_ingestor.exchange.agreement import Agreement
from dexorder_ingestor.exchange.dialect import CallLimits
from dexorder_ingestor.history.evidence import CandleQuery, Evidence
from dexorder_ingestor.history.paging import CandlePage, page_periods
from tests.examples import few
from tests.unit.services.ingestor.conftest import minutes

Fault = Callable[[list[Candle]], list[Candle]]


def candle(open_ns: int, close: float = 1.5) -> Candle:
    return Candle(open_ns, 1.0, 2.0, 0.5, close, 10.0)


def opens(*numbers: int) -> list[int]:
    return [minutes(n, 0).start_ns for n in numbers]


def warm() -> Agreement:
    """Return the agreement for an exchange whose last thousand answers were true: two must agree."""
    rates = Agreement()
    rates.incomplete.note(true=1_000)
    rates.foreign.note(true=1_000)
    return rates


class Model:
    """An exchange that has exactly these minutes; the faults apply to its first answers, one each."""

    def __init__(self, present: Iterable[int], limits: CallLimits, faults: Iterable[Fault | None] = ()) -> None:
        self.present = sorted(opens(*present))
        self.limits = limits
        self.faults = list(faults)
        self.asks: list[CandleQuery] = []

    def answer(self, ask: CandleQuery) -> list[Candle]:
        if not self.limits.wide:
            assert ask.window.end_ns - ask.window.start_ns <= minutes(0, self.limits.candles).end_ns - opens(0)[0]
        self.asks.append(ask)
        inside = [candle(t) for t in self.present if ask.window.start_ns <= t < ask.window.end_ns]
        rows = inside[: self.limits.candles]
        fault = self.faults.pop(0) if self.faults else None
        return fault(rows) if fault else rows

    def settle(
        self,
        span: TimeRange,
        *,
        page: int,
        closed_end: int,
        hole_answers: int = 3,
        rates: Agreement | None = None,
        contradicts: bool = False,
        empty_job_answers: int = 0,
    ) -> list[CandlePage]:
        evidence = Evidence(
            span,
            60,
            self.limits,
            rates or warm(),
            closed_end_ns=minutes(closed_end, 0).start_ns,
            hole_answers=hole_answers,
            empty_job_answers=empty_job_answers,
        )
        settled = []
        for part in split_by_periods(span, 60, page_periods(page, self.limits)):
            asked = len(self.asks)
            while ask := evidence.next_query(part):
                assert len(self.asks) - asked < 100, f"no end of questions about {part}"
                said = evidence.add(ask.window, self.answer(ask), fetched_ns=len(self.asks))
                assert contradicts or said is None
            settled.append(evidence.settle(part))
            filled = [c.open_ns for c in settled[-1].candles] + [
                t for r in settled[-1].empty for t in open_times(r, 60)
            ]
            assert sorted(filled) == open_times(part, 60)
        return settled


@pytest.mark.parametrize("limits", [CallLimits(100, wide=True), CallLimits(100)])
@pytest.mark.parametrize("count", [60, 100, 250])
@pytest.mark.parametrize("faulty", range(6))
def test_last_candle_of_an_answer_needs_a_second_answer(limits: CallLimits, count: int, faulty: int) -> None:
    """It may be half-finished, also at the end of the job."""

    def half(rows: list[Candle]) -> list[Candle]:
        return [*rows[:-1], candle(rows[-1].open_ns, close=0.5)]

    model = Model(range(-500, 3000), limits, [None] * faulty + [half])
    settled = model.settle(minutes(0, count), page=100, closed_end=2500, contradicts=True)
    assert [c for page in settled for c in page.candles] == [candle(t) for t in opens(*range(count))]


def test_queries_are_counted_from_one_for_each_goal() -> None:
    """So that an exchange gets as many as the settings say, however many goals a page has."""
    evidence = Evidence(minutes(0, 10), 60, PLAIN, warm(), closed_end_ns=minutes(50, 0).start_ns, hole_answers=3)
    counts: list[int] = []
    while query := evidence.next_query(minutes(0, 10)):
        counts.append(evidence.queries_without_progress)
        evidence.add(query.window, [], fetched_ns=len(counts))
    assert counts == [1, 1, 2], "the own query of the chunk, then those that must agree"


def found(settled: list[CandlePage]) -> list[int]:
    return [c.open_ns for page in settled for c in page.candles]


WIDE, PLAIN = CallLimits(100, wide=True), CallLimits(100)
JOB = minutes(0, 2000)
EVERYWHERE = [n for n in range(-500, 3000) if n % 7 and n % 33]


@pytest.mark.parametrize("limits", [WIDE, PLAIN])
@pytest.mark.parametrize(
    ("name", "present", "most_calls"),
    [
        ("no hole", range(-500, 3000), 21),
        ("one hole", [n for n in range(-500, 3000) if n != 555], 22),
        ("one hole at a page's start", [n for n in range(-500, 3000) if n != 490], 22),
        ("one hole at a page's end", [n for n in range(-500, 3000) if n != 489], 23),
        ("one hole in the first and the last minute", [n for n in range(-500, 3000) if n not in (0, 1999)], 25),
        ("holes everywhere", EVERYWHERE, 47),
    ],
)
def test_calls_that_a_proof_costs(limits: CallLimits, name: str, present: Iterable[int], most_calls: int) -> None:
    model = Model(present, limits)
    settled = model.settle(minutes(0, 2000), page=100, closed_end=2500)
    assert found(settled) == opens(*(n for n in present if 0 <= n < 2000))
    assert len(model.asks) <= most_calls


@pytest.mark.parametrize(
    ("name", "present", "most_calls"),
    [
        ("nothing at all", [], 5),
        ("nothing before the listing", range(1500, 3000), 10),
        ("nothing after the delisting", range(-500, 500), 14),
        ("a long outage", [n for n in range(-500, 3000) if not 500 <= n < 1500], 14),
    ],
)
def test_long_empty_stretches_cost_few_calls_where_windows_may_be_wide(
    name: str, present: Iterable[int], most_calls: int
) -> None:
    model = Model(present, WIDE)
    settled = model.settle(minutes(0, 2000), page=100, closed_end=2500)
    assert found(settled) == opens(*(n for n in present if 0 <= n < 2000))
    assert len(model.asks) <= most_calls


@pytest.mark.parametrize(
    ("hole_answers", "empty_job_answers", "asked"), [(2, 2, 2), (3, 0, 3), (5, 5, 5), (3, 9, 9), (9, 3, 9)]
)
def test_span_without_neighbours_needs_spaced_answers(hole_answers: int, empty_job_answers: int, asked: int) -> None:
    model = Model([], WIDE)
    model.settle(
        minutes(0, 20), page=20, closed_end=2500, hole_answers=hole_answers, empty_job_answers=empty_job_answers
    )
    assert [ask.spaced for ask in model.asks] == [False, *[True] * (asked - 1)]


def test_empty_answers_near_known_candles_need_fewer_repeats() -> None:
    """The delisting is at 500: after known candles, fewer answers prove that there are no more."""
    model = Model(range(-500, 500), WIDE)
    model.settle(minutes(0, 2000), page=100, closed_end=2500, hole_answers=3, empty_job_answers=50)
    assert len(model.asks) < 50


def test_no_query_reaches_beyond_the_last_closed_candle() -> None:
    model = Model([n for n in range(-500, 150) if n % 7], WIDE)
    model.settle(minutes(0, 140), page=100, closed_end=140)
    assert max(ask.window.end_ns for ask in model.asks) == minutes(140, 0).start_ns


DROPS: dict[str, Fault] = {
    "everything": lambda rows: [],
    "first": lambda rows: rows[1:],
    "last": lambda rows: rows[:-1],
    "middle": lambda rows: rows[: len(rows) // 2 - 5] + rows[len(rows) // 2 + 5 :],
    "second half": lambda rows: rows[: len(rows) // 2],
    "every third": lambda rows: [row for n, row in enumerate(rows) if n % 3],
}


@pytest.mark.parametrize("present", [range(-500, 3000), EVERYWHERE], ids=["full", "holed"])
@pytest.mark.parametrize("turn", range(4))
@pytest.mark.parametrize("drop", DROPS)
def test_one_bad_answer_loses_nothing(drop: str, turn: int, present: Iterable[int]) -> None:
    model = Model(present, WIDE, [*[None] * turn, DROPS[drop]])
    settled = model.settle(minutes(0, 300), page=100, closed_end=2500)
    assert found(settled) == opens(*(n for n in present if 0 <= n < 300))


@settings(deadline=None, max_examples=few(60))
@given(
    present=st.sets(st.integers(-30, 150))
    | st.sets(st.integers(-30, 150), max_size=12).map(lambda holes: set(range(-30, 150)) - holes),
    limits=st.builds(CallLimits, st.integers(12, 40), wide=st.booleans()),
    page=st.integers(5, 60),
    dropped=st.lists(st.sets(st.integers(-30, 150)) | st.just(set(range(-30, 150))), max_size=6),
    closed=st.integers(100, 150),
)
def test_a_candle_is_never_lost_unless_two_answers_dropped_it(
    present: set[int], limits: CallLimits, page: int, dropped: list[set[int]], closed: int
) -> None:
    seen: set[int] = set()

    def drop_once(numbers: set[int]) -> Fault:
        def fault(rows: list[Candle]) -> list[Candle]:
            gone = (set(opens(*numbers)) & {c.open_ns for c in rows}) - seen
            seen.update(gone)
            return [c for c in rows if c.open_ns not in gone]

        return fault

    model = Model(present, limits, [drop_once(numbers) for numbers in dropped])
    settled = model.settle(minutes(0, 100), page=page, closed_end=closed)
    assert found(settled) == opens(*sorted(n for n in present if 0 <= n < 100))


def series(span: TimeRange, close: float = 1.5) -> list[Candle]:
    return [candle(t, close) for t in open_times(span, 60)]


def ask_all(evidence: Evidence, page: TimeRange, answers: Callable[[int, TimeRange], list[Candle]]) -> int:
    """Query until the page is settled; ``answers`` gets the number of the query and its window."""
    asked = 0
    while ask := evidence.next_query(page):
        evidence.add(ask.window, answers(asked, ask.window), fetched_ns=asked)
        asked += 1
        assert asked < 100
    return asked


@pytest.mark.parametrize("liars", [{0}, {0, 1}, {1}, {0, 1, 2}, {0, 2, 4}])
@pytest.mark.parametrize("span", [JOB, minutes(0, 60)], ids=["many pages", "one page"])
def test_answers_for_another_market_are_outvoted(liars: set[int], span: TimeRange) -> None:
    evidence = Evidence(span, 60, PLAIN, Agreement(), closed_end_ns=opens(2500)[0], hole_answers=3)
    page = minutes(0, 60)
    asked = ask_all(evidence, page, lambda n, window: series(window, 7.5 if n in liars else 1.5))
    assert evidence.settle(page).candles == tuple(series(page))
    assert asked >= 10 + 2 * len(liars), "a lead of ten at an exchange nobody knows yet"


def test_scattered_answers_for_another_market_count_together() -> None:
    """No two share a candle, so each is a series of its own; they are as many as the answers they deny."""
    evidence = Evidence(minutes(0, 60), 60, PLAIN, Agreement(), closed_end_ns=opens(2500)[0], hole_answers=3)
    page = minutes(0, 60)
    for n in range(12):
        evidence.add(page, series(page), fetched_ns=n)
        evidence.add(minutes(5 * n, 5), series(minutes(5 * n, 5), 7.5), fetched_ns=n)
    assert evidence.unproven(page) == [page]


def test_page_of_another_market_is_queried_again_and_reported() -> None:
    evidence = Evidence(JOB, 60, PLAIN, warm(), closed_end_ns=opens(2500)[0], hole_answers=3)
    first, second = minutes(0, 96), minutes(96, 96)
    ask_all(evidence, first, lambda n, window: series(window))
    evidence.settle(first)
    while ask := evidence.next_query(second):
        reason = evidence.add(ask.window, series(ask.window, 7.5), fetched_ns=1)
        assert reason is not None and "another series" in reason
        assert (again := evidence.next_query(second)) and again.window == ask.window
        evidence.add(ask.window, series(ask.window), fetched_ns=2)
    assert evidence.settle(second).candles == tuple(series(second))


def test_exchange_whose_answers_name_the_market_is_believed_at_once() -> None:
    limits = CallLimits(100, names_symbol=True)
    evidence = Evidence(minutes(0, 60), 60, limits, Agreement(), closed_end_ns=opens(2500)[0], hole_answers=3)
    assert ask_all(evidence, minutes(0, 60), lambda n, window: series(window)) == 1


@pytest.mark.parametrize("names_symbol", [False, True])
def test_many_empty_answers_deny_candles_unless_the_answer_named_the_market(names_symbol: bool) -> None:
    limits = CallLimits(100, names_symbol=names_symbol)
    evidence = Evidence(minutes(0, 60), 60, limits, Agreement(), closed_end_ns=opens(2500)[0], hole_answers=8)
    page = minutes(0, 60)
    ask_all(evidence, page, lambda n, window: series(window) if n == 0 else [])
    assert evidence.settle(page).candles == (tuple(series(page)) if names_symbol else ())


def test_half_of_the_answers_for_another_market_are_never_believed() -> None:
    evidence = Evidence(minutes(0, 60), 60, PLAIN, Agreement(), closed_end_ns=opens(2500)[0], hole_answers=3)
    page = minutes(0, 60)
    for n in range(50):
        ask = evidence.next_query(page)
        assert ask is not None
        evidence.add(ask.window, series(ask.window, 7.5 if n % 2 else 1.5), fetched_ns=n)
    assert evidence.unproven(page) == [page]


def test_answer_that_contradicts_a_published_candle_changes_nothing() -> None:
    evidence = Evidence(JOB, 60, PLAIN, warm(), closed_end_ns=opens(2500)[0], hole_answers=3)
    page, window = minutes(0, 98), minutes(90, 100)
    ask_all(evidence, page, lambda n, window: series(window))
    assert evidence.settle(page).candles == tuple(series(page))
    odd = [c if c.open_ns != opens(95)[0] else candle(c.open_ns, 1.6) for c in series(window)]
    reason = evidence.add(window, odd, fetched_ns=9)
    assert reason is not None
    assert "close=1.5" in reason
    following = minutes(98, 92)
    assert evidence.next_query(following) is None
    assert evidence.settle(following).candles == tuple(series(following))


def test_candle_on_which_answers_differ_is_settled_by_a_lead() -> None:
    evidence = Evidence(minutes(0, 60), 60, PLAIN, warm(), closed_end_ns=opens(2500)[0], hole_answers=3)
    page, odd = minutes(0, 60), opens(40)[0]

    def answer(n: int, window: TimeRange) -> list[Candle]:
        return [candle(c.open_ns, 1.6) if n == 0 and c.open_ns == odd else c for c in series(window)]

    assert ask_all(evidence, page, answer) >= 4, "one said 1.6, so three must say 1.5"
    assert evidence.settle(page).candles == tuple(series(page))


def test_avoided_candle_that_only_some_answers_have_counts_against_none() -> None:
    evidence = Evidence(JOB, 60, WIDE, warm(), closed_end_ns=minutes(2500, 0).start_ns, hole_answers=3)
    evidence.add(minutes(0, 90), [candle(t) for t in open_times(minutes(0, 50), 60)], fetched_ns=1)
    evidence.avoid(opens(40)[0])
    page = minutes(41, 49)
    queries = 0
    while ask := evidence.next_query(page):
        queries += 1
        absent = opens(40 if queries % 2 else 60, 60)
        evidence.add(ask.window, [candle(t) for t in open_times(ask.window, 60) if t not in absent], fetched_ns=1)
    assert queries <= 9, "the first answer was cut, so more than two must agree"
    assert evidence.settle(page).empty == (TimeRange(opens(60)[0], opens(61)[0]),)


def test_hole_is_unproven_while_a_series_apart_has_a_candle_in_it() -> None:
    # Nothing links candle 50 to the others. Six answers have it; enough lack it to prove a hole, were it unknown.
    evidence = Evidence(minutes(0, 60), 60, PLAIN, Agreement(), closed_end_ns=minutes(900, 0).start_ns, hole_answers=3)
    for turn in range(30):
        evidence.add(minutes(0, 20), [candle(t) for t in opens(5, 15)], fetched_ns=turn)
    for turn in range(6):
        evidence.add(minutes(40, 20), [candle(t) for t in opens(50)], fetched_ns=turn)
        evidence.add(minutes(40, 20), [], fetched_ns=turn)
    assert any(part.start_ns <= opens(50)[0] < part.end_ns for part in evidence.unproven(minutes(0, 60)))
