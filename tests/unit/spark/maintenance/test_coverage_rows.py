"""What the ledger says before and after, period by period."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import replace
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.common.model.periods import MONTH_SECONDS, next_open, open_times
from services.common.model.time_range import TimeRange, merge
from services.common.model.times import parse_time
from spark.maintenance import coverage_rows
from spark.maintenance.coverage_rows import CoverageRow, Retraction, merge_rows

TICKER, OTHER = "BTC/USDT.BINANCE", "ETH/USDT.BINANCE"
START_NS = parse_time("2024-01-01")  # a Monday, and the first of a month
Said = dict[tuple[str, int, int], bool]


def span(first: int, count: int, period_seconds: int = 60) -> TimeRange:
    return TimeRange(next_open(START_NS, period_seconds, first), next_open(START_NS, period_seconds, first + count))


def line(
    first: int,
    count: int,
    fetched: int = 1,
    *,
    empty: Iterable[int] = (),
    period_seconds: int = 60,
    wrong: int = 0,
    ticker: str = TICKER,
    evidence: str = "page",
) -> CoverageRow:
    """A page of the periods ``first`` and on, of which those in ``empty`` are verified empty."""
    holes = [n for n in sorted(empty) if first <= n < first + count]
    parts = tuple(merge(span(n, 1, period_seconds) for n in holes))
    return CoverageRow(
        ticker,
        period_seconds,
        span(first, count, period_seconds),
        fetched,
        fetched + 100,
        count - len(holes) + wrong,
        parts,
        evidence,
    )


def taken(first: int, count: int, at: int, *, period_seconds: int = 60, ticker: str = TICKER) -> Retraction:
    return Retraction(ticker, period_seconds, span(first, count, period_seconds), at)


def says(found: Iterable[CoverageRow], retractions: Sequence[Retraction] = ()) -> Said:
    """Each settled period, and whether it is verified empty; word for word what the rules are."""
    said: Said = {}
    for one in found:
        for open_ns in open_times(one.span, one.period_seconds):
            if any(
                (r.ticker, r.period_seconds) == (one.ticker, one.period_seconds)
                and r.span.start_ns <= open_ns < r.span.end_ns
                and one.fetched_ns < r.retracted_ns
                for r in retractions
            ):
                continue
            key = one.ticker, one.period_seconds, open_ns
            hole = any(part.start_ns <= open_ns < part.end_ns for part in one.empty)
            said[key] = said.get(key, True) and hole
    return said


# Small enough that lines and retractions meet in every way.
markets = st.sampled_from([(TICKER, 60)] * 6 + [(TICKER, MONTH_SECONDS), (OTHER, 60)])
few_or_many = st.sampled_from([(4, 2), (8, 1), (50_000, 1_000)])


@st.composite
def a_line(draw: st.DrawFn) -> CoverageRow:
    ticker, period_seconds = draw(markets)
    first, count = draw(st.integers(0, 9)), draw(st.integers(1, 5))
    empty = draw(st.sets(st.integers(first, first + count - 1), max_size=2))
    wrong = draw(st.sampled_from([0, 0, 0, 0, 0, 1]))
    evidence = draw(st.sampled_from(["page", "page", "page; trades", "merged 3 pages: page"]))
    return line(
        first,
        count,
        draw(st.integers(1, 4)),
        empty=empty,
        period_seconds=period_seconds,
        wrong=wrong,
        ticker=ticker,
        evidence=evidence,
    )


@st.composite
def a_retraction(draw: st.DrawFn) -> Retraction:
    ticker, period_seconds = draw(markets)
    first, count = draw(st.integers(0, 12)), draw(st.integers(1, 3))
    return taken(first, count, draw(st.integers(1, 5)), period_seconds=period_seconds, ticker=ticker)


ledgers = st.lists(a_line(), min_size=2, max_size=8)
retracted = st.lists(a_retraction(), max_size=3)


@given(ledgers, retracted, few_or_many, st.randoms(use_true_random=False))
def test_merging_changes_nothing_that_is_said_and_is_done_once_for_all(
    ledger: list[CoverageRow], retractions: list[Retraction], bounds: tuple[int, int], chance: random.Random
) -> None:
    with patch.multiple(coverage_rows, MAX_MERGED_PERIODS=bounds[0], MAX_MERGED_EMPTY=bounds[1]):
        merged = merge_rows(ledger, retractions)
        assert says(merged, retractions) == says(ledger, retractions)
        assert len(merged) <= len(ledger)
        assert merge_rows(merged, retractions) == merged
        shuffled = list(ledger)
        chance.shuffle(shuffled)
        chance.shuffle(retractions)
        assert merge_rows(shuffled, retractions) == merged


@given(ledgers, retracted, few_or_many)
def test_a_retraction_that_becomes_known_later_takes_no_less(
    ledger: list[CoverageRow], retractions: list[Retraction], bounds: tuple[int, int]
) -> None:
    ledger = [one for one in ledger if one.adds_up()]  # decoding lets no other page through; such lines are left alone
    with patch.multiple(coverage_rows, MAX_MERGED_PERIODS=bounds[0], MAX_MERGED_EMPTY=bounds[1]):
        merged = merge_rows(ledger, retractions)
    for at in range(1, 6):  # of everything: of a part it does the same there
        later = [taken(0, 20, at, period_seconds=p, ticker=t) for t in (TICKER, OTHER) for p in (60, MONTH_SECONDS)]
        before, after = says(ledger, [*retractions, *later]), says(merged, [*retractions, *later])
        assert after.keys() <= before.keys(), "nothing comes to life again"
        assert all(before[key] for key, hole in after.items() if hole)


@given(ledgers, st.integers(0, 8))
def test_pages_that_come_again_say_nothing_new_and_leave_no_pile(ledger: list[CoverageRow], again: int) -> None:
    ledger = [one for one in ledger if one.adds_up()]
    merged = merge_rows(ledger)
    replayed = [*merged, *(replace(one, committed_ns=900) for one in ledger[:again])]
    assert says(replayed) == says(ledger)
    assert len(merge_rows(replayed)) == len(merged)


@given(ledgers, retracted, few_or_many)
def test_a_merged_line_adds_up_within_its_bounds(
    ledger: list[CoverageRow], retractions: list[Retraction], bounds: tuple[int, int]
) -> None:
    with patch.multiple(coverage_rows, MAX_MERGED_PERIODS=bounds[0], MAX_MERGED_EMPTY=bounds[1]):
        merged = merge_rows(ledger, retractions)
    for one in set(merged) - set(ledger):
        assert one.adds_up()
        inside = [page for page in ledger if page.span.intersect(one.span)]
        assert one.committed_ns <= max(page.committed_ns for page in inside)
        assert one.fetched_ns in {page.fetched_ns for page in inside}
        if not any(one.span.start_ns >= page.span.start_ns and one.span.end_ns <= page.span.end_ns for page in inside):
            assert len(open_times(one.span, one.period_seconds)) <= bounds[0]
            assert len(one.empty) <= bounds[1]


def test_pages_that_touch_become_one_as_old_as_the_oldest() -> None:
    pages = [line(0, 10, 3, empty=[2, 9]), line(20, 5, 2), line(10, 10, 7, empty=[10, 11]), line(30, 5, 9)]
    assert merge_rows(pages) == [
        CoverageRow(
            TICKER,
            60,
            span(0, 25),
            fetched_ns=2,
            committed_ns=107,
            rows=21,
            empty=(span(2, 1), span(9, 3)),
            evidence="merged 3 pages: page",
        ),
        pages[3],
    ]


def test_pages_are_counted_and_kinds_of_evidence_kept() -> None:
    first = merge_rows([line(0, 10), line(10, 10), line(20, 10, evidence="page; trades")])
    assert [one.evidence for one in first] == ["merged 3 pages: page; trades"]
    assert [one.evidence for one in merge_rows([*first, line(30, 10)])] == ["merged 4 pages: page; trades"]


def test_the_page_fetched_last_stands_for_its_range_and_an_older_one_only_for_the_rest() -> None:
    assert merge_rows([line(0, 10, 1), line(0, 20, 5)]) == [replace(line(0, 20, 5), evidence="merged 2 pages: page")], (
        "nothing is left of the older one"
    )
    (merged,) = merge_rows([line(0, 10, 1, empty=[0]), line(5, 10, 5, empty=[14])])
    assert (merged.fetched_ns, merged.rows, merged.empty) == (1, 13, (span(0, 1), span(14, 1)))


@pytest.mark.parametrize("empty_first", [True, False])
def test_a_row_that_one_page_has_counted_is_never_called_empty(empty_first: bool) -> None:
    empty, full = line(0, 10, 1 if empty_first else 5, empty=[4]), line(0, 10, 5 if empty_first else 1)
    (merged,) = merge_rows([empty, full])
    assert (merged.rows, merged.empty) == (10, ())


def test_a_line_that_does_not_add_up_stays_as_it_is() -> None:
    doubtful = line(5, 10, 3, wrong=-1)
    assert merge_rows([line(0, 10), doubtful, line(10, 10)]) == sorted(
        [doubtful, replace(line(0, 20), evidence="merged 2 pages: page")]
    )
    assert merge_rows([doubtful], [taken(0, 10, 9)]) == [doubtful]


def test_what_was_taken_back_is_left_out_and_what_was_fetched_again_is_not() -> None:
    pages = [line(n, 10, 1) for n in range(0, 100, 10)]
    retractions = [taken(42, 3, 5)]
    left, right = merge_rows(pages, retractions)
    assert (left.span, right.span, left.rows, right.rows) == (span(0, 42), span(45, 55), 42, 55)
    found = merge_rows([left, right, line(42, 3, 6)], retractions)
    assert [(one.span, one.fetched_ns) for one in found] == [(span(0, 42), 1), (span(42, 3), 6), (span(45, 55), 1)], (
        "in one line with the older ones it would be taken back too"
    )
    assert merge_rows(pages[:1], [taken(0, 10, 5)]) == [], "a page that claims nothing any more"
    assert merge_rows(pages[:1], [taken(0, 10, 1)]) == pages[:1], "as old as the page itself"
    assert merge_rows(pages[:1], [taken(4, 2, 5)]) == pages[:1], "in parts it would be two lines"


def test_a_gap_is_never_closed() -> None:
    """Taken back of the older page, and never fetched again; the newer ones beside it touch only the gap."""
    pages = [line(0, 10, 1), line(0, 4, 9), line(6, 4, 9)]
    assert [one.span for one in merge_rows(pages, [taken(4, 2, 5)])] == [span(0, 4), span(6, 4)]
    assert merge_rows(pages[1:]) == pages[1:]


def test_part_of_a_period_taken_back_is_all_of_it() -> None:
    half = TimeRange(span(3, 1).start_ns + 1, span(3, 1).end_ns - 1)
    merged = merge_rows([line(0, 4), line(0, 4, 2)], [Retraction(TICKER, 60, half, 9)])
    assert [one.span for one in merged] == [span(0, 3)]


def test_a_line_is_bounded() -> None:
    merged = merge_rows(line(n * 1_000, 1_000) for n in range(60))
    assert [one.rows for one in merged] == [50_000, 10_000]
    merged = merge_rows(line(n * 800, 800, empty=range(n * 800, n * 800 + 800, 2)) for n in range(5))
    assert [len(one.empty) for one in merged] == [800, 800, 400]
