"""Meaning of coverage rows before and after a merge, period by period."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import replace
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.common.lake.coverage import CoverageRow, Order, Retraction
from services.common.model.instrument import Series
from services.common.model.periods import MONTH_SECONDS, next_open, open_times
from services.common.model.time_range import TimeRange, merge
from services.common.model.times import parse_time
from spark.maintenance import coverage_rows
from spark.maintenance.coverage_rows import adds_up, merge_rows

TICKER, OTHER = "BTC/USDT.BINANCE", "ETH/USDT.BINANCE"
START_NS = parse_time("2024-01-01")  # a Monday, and the first of a month
Meaning = dict[tuple[Series, int], bool]


def span(first: int, count: int, period_seconds: int = 60) -> TimeRange:
    return TimeRange(next_open(START_NS, period_seconds, first), next_open(START_NS, period_seconds, first + count))


def row(
    first: int,
    count: int,
    dispatch: int = 1,
    *,
    empty: Iterable[int] = (),
    period_seconds: int = 60,
    wrong: int = 0,
    ticker: str = TICKER,
    evidence: str = "page",
) -> CoverageRow:
    """A page of ``count`` periods from ``first``, of which those in ``empty`` are verified empty."""
    holes = [n for n in sorted(empty) if first <= n < first + count]
    parts = tuple(merge(span(n, 1, period_seconds) for n in holes))
    return CoverageRow(
        Series(ticker, period_seconds),
        span(first, count, period_seconds),
        dispatch,
        1_000 - dispatch,
        parts,
        committed_ns=dispatch + 100,
        rows=count - len(holes) + wrong,
        evidence=evidence,
    )


def retraction(first: int, count: int, at: int, *, period_seconds: int = 60, ticker: str = TICKER) -> Retraction:
    return Retraction(Series(ticker, period_seconds), span(first, count, period_seconds), Order(at, 0))


def meaning(found: Iterable[CoverageRow], retractions: Sequence[Retraction] = ()) -> Meaning:
    """Settled periods and whether each is verified empty; a literal transcription of the rules."""
    settled: Meaning = {}
    for one in found:
        for open_ns in open_times(one.span, one.series.period_seconds):
            if any(
                r.series == one.series and r.span.start_ns <= open_ns < r.span.end_ns and one.order < r.order
                for r in retractions
            ):
                continue
            key = one.series, open_ns
            hole = any(part.start_ns <= open_ns < part.end_ns for part in one.empty)
            settled[key] = settled.get(key, True) and hole
    return settled


# Small enough that rows and retractions meet in every way.
all_series = st.sampled_from([(TICKER, 60)] * 6 + [(TICKER, MONTH_SECONDS), (OTHER, 60)])
few_or_many = st.sampled_from([(4, 2), (8, 1), (50_000, 1_000)])


@st.composite
def a_row(draw: st.DrawFn) -> CoverageRow:
    ticker, period_seconds = draw(all_series)
    first, count = draw(st.integers(0, 9)), draw(st.integers(1, 5))
    empty = draw(st.sets(st.integers(first, first + count - 1), max_size=2))
    wrong = draw(st.sampled_from([0, 0, 0, 0, 0, 1]))
    evidence = draw(st.sampled_from(["page", "page", "page; trades", "merged 3 pages: page"]))
    return row(
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
    ticker, period_seconds = draw(all_series)
    first, count = draw(st.integers(0, 12)), draw(st.integers(1, 3))
    return retraction(first, count, draw(st.integers(1, 5)), period_seconds=period_seconds, ticker=ticker)


tables = st.lists(a_row(), min_size=2, max_size=8)
retracted = st.lists(a_retraction(), max_size=3)


@given(tables, retracted, few_or_many, st.randoms(use_true_random=False))
def test_a_merge_keeps_the_meaning_and_a_second_merge_changes_nothing(
    table: list[CoverageRow], retractions: list[Retraction], bounds: tuple[int, int], chance: random.Random
) -> None:
    with patch.multiple(coverage_rows, MAX_MERGED_PERIODS=bounds[0], MAX_MERGED_EMPTY=bounds[1]):
        merged = merge_rows(table, retractions)
        assert meaning(merged, retractions) == meaning(table, retractions)
        assert len(merged) <= len(table)
        assert merge_rows(merged, retractions) == merged
        shuffled = list(table)
        chance.shuffle(shuffled)
        chance.shuffle(retractions)
        assert merge_rows(shuffled, retractions) == merged


@given(tables, retracted, few_or_many)
def test_a_later_retraction_cancels_no_less(
    table: list[CoverageRow], retractions: list[Retraction], bounds: tuple[int, int]
) -> None:
    table = [one for one in table if adds_up(one)]  # decoding accepts no other page; such rows are not merged
    with patch.multiple(coverage_rows, MAX_MERGED_PERIODS=bounds[0], MAX_MERGED_EMPTY=bounds[1]):
        merged = merge_rows(table, retractions)
    for at in range(1, 6):  # of the whole range: a part of it has the same effect there
        later = [
            retraction(0, 20, at, period_seconds=p, ticker=t) for t in (TICKER, OTHER) for p in (60, MONTH_SECONDS)
        ]
        before, after = meaning(table, [*retractions, *later]), meaning(merged, [*retractions, *later])
        assert after.keys() <= before.keys(), "no cancelled claim holds again"
        assert all(before[key] for key, hole in after.items() if hole)


@given(tables, st.integers(0, 8))
def test_replayed_pages_add_no_meaning_and_no_rows(table: list[CoverageRow], again: int) -> None:
    table = [one for one in table if adds_up(one)]
    merged = merge_rows(table)
    replayed = [*merged, *(replace(one, committed_ns=900) for one in table[:again])]
    assert meaning(replayed) == meaning(table)
    assert len(merge_rows(replayed)) == len(merged)


@given(tables, retracted, few_or_many)
def test_a_merged_row_adds_up_within_its_bounds(
    table: list[CoverageRow], retractions: list[Retraction], bounds: tuple[int, int]
) -> None:
    with patch.multiple(coverage_rows, MAX_MERGED_PERIODS=bounds[0], MAX_MERGED_EMPTY=bounds[1]):
        merged = merge_rows(table, retractions)
    for one in set(merged) - set(table):
        assert adds_up(one)
        inside = [page for page in table if page.span.intersect(one.span)]
        assert one.committed_ns <= max(page.committed_ns for page in inside)
        assert one.order in {page.order for page in inside}
        if not any(one.span.start_ns >= page.span.start_ns and one.span.end_ns <= page.span.end_ns for page in inside):
            assert len(open_times(one.span, one.series.period_seconds)) <= bounds[0]
            assert len(one.empty) <= bounds[1]


def test_pages_that_touch_become_one_as_old_as_the_oldest() -> None:
    pages = [row(0, 10, 3, empty=[2, 9]), row(20, 5, 2), row(10, 10, 7, empty=[10, 11]), row(30, 5, 9)]
    assert merge_rows(pages) == [
        CoverageRow(
            Series(TICKER, 60),
            span(0, 25),
            dispatch=2,
            fetched_ns=998,
            committed_ns=107,
            rows=21,
            empty=(span(2, 1), span(9, 3)),
            evidence="merged 3 pages: page",
        ),
        pages[3],
    ]


def test_pages_are_counted_and_kinds_of_evidence_kept() -> None:
    first = merge_rows([row(0, 10), row(10, 10), row(20, 10, evidence="page; trades")])
    assert [one.evidence for one in first] == ["merged 3 pages: page; trades"]
    assert [one.evidence for one in merge_rows([*first, row(30, 10)])] == ["merged 4 pages: page; trades"]


def test_the_last_fetched_page_stands_for_its_range_and_an_older_one_for_the_rest() -> None:
    assert merge_rows([row(0, 10, 1), row(0, 20, 5)]) == [replace(row(0, 20, 5), evidence="merged 2 pages: page")], (
        "nothing is left of the older one"
    )
    (merged,) = merge_rows([row(0, 10, 1, empty=[0]), row(5, 10, 5, empty=[14])])
    assert (merged.dispatch, merged.rows, merged.empty) == (1, 13, (span(0, 1), span(14, 1)))


@pytest.mark.parametrize("empty_first", [True, False])
def test_a_candle_that_one_page_has_counted_is_never_called_empty(empty_first: bool) -> None:
    empty, full = row(0, 10, 1 if empty_first else 5, empty=[4]), row(0, 10, 5 if empty_first else 1)
    (merged,) = merge_rows([empty, full])
    assert (merged.rows, merged.empty) == (10, ())


def test_a_row_that_does_not_add_up_is_unchanged() -> None:
    doubtful = row(5, 10, 3, wrong=-1)
    assert merge_rows([row(0, 10), doubtful, row(10, 10)]) == sorted(
        [doubtful, replace(row(0, 20), evidence="merged 2 pages: page")]
    )
    assert merge_rows([doubtful], [retraction(0, 10, 9)]) == [doubtful]


def test_retracted_ranges_are_left_out_unless_they_were_fetched_again() -> None:
    pages = [row(n, 10, 1) for n in range(0, 100, 10)]
    retractions = [retraction(42, 3, 5)]
    left, right = merge_rows(pages, retractions)
    assert (left.span, right.span, left.rows, right.rows) == (span(0, 42), span(45, 55), 42, 55)
    found = merge_rows([left, right, row(42, 3, 6)], retractions)
    assert [(one.span, one.dispatch) for one in found] == [(span(0, 42), 1), (span(42, 3), 6), (span(45, 55), 1)], (
        "in one row with the older ones it would be retracted too"
    )
    assert merge_rows(pages[:1], [retraction(0, 10, 5)]) == [], "a page without a remaining claim"
    assert merge_rows(pages[:1], [retraction(0, 10, 1)]) == pages[:1], "as old as the page itself"
    assert merge_rows(pages[:1], [retraction(4, 2, 5)]) == pages[:1], "in parts it would be two rows"


def test_a_gap_is_never_closed() -> None:
    """A part of the older page is retracted and never fetched again; the newer pages beside it only touch the gap."""
    pages = [row(0, 10, 1), row(0, 4, 9), row(6, 4, 9)]
    assert [one.span for one in merge_rows(pages, [retraction(4, 2, 5)])] == [span(0, 4), span(6, 4)]
    assert merge_rows(pages[1:]) == pages[1:]


def test_a_retraction_of_part_of_a_period_cancels_all_of_it() -> None:
    half = TimeRange(span(3, 1).start_ns + 1, span(3, 1).end_ns - 1)
    merged = merge_rows([row(0, 4), row(0, 4, 2)], [Retraction(Series(TICKER, 60), half, Order(9, 0))])
    assert [one.span for one in merged] == [span(0, 3)]


def test_a_row_is_bounded() -> None:
    merged = merge_rows(row(n * 1_000, 1_000) for n in range(60))
    assert [one.rows for one in merged] == [50_000, 10_000]
    merged = merge_rows(row(n * 800, 800, empty=range(n * 800, n * 800 + 800, 2)) for n in range(5))
    assert [len(one.empty) for one in merged] == [800, 800, 400]
