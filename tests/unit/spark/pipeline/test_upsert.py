from hypothesis import given
from hypothesis import strategies as st

from dexorder_common.model.instrument import Series
from dexorder_common.model.time_range import TimeRange
from dexorder_spark.pipeline.ranges import KeyRange, ScanRange, overlap, scan_ranges
from dexorder_spark.pipeline.upsert import merge_condition
from dexorder_spark.tables.ohlc import CANDLES
from tests.fakes.pages import TICKER, span

spans = st.builds(lambda a, n: TimeRange(a, a + n), st.integers(0, 50), st.integers(1, 20))
pages = st.lists(
    st.builds(KeyRange, st.builds(Series, st.sampled_from(["A.X", "B.X", "C.Y"]), st.sampled_from([60, 300])), spans),
    max_size=12,
)


@given(pages, st.integers(1, 8))
def test_scan_ranges_contain_every_key_and_are_few(some: list[KeyRange], limit: int) -> None:
    found = scan_ranges(some, limit)
    for one in some:
        assert any(
            one.series[0] in scan.first_values and scan.other_values == one.series[1:] and scan.span.contains(one.span)
            for scan in found
        )
    assert len(found) <= max(limit, len({one.series[1:] for one in some}))


def test_adjacent_pages_are_one_exact_range() -> None:
    run = [KeyRange((TICKER, 60), span(n * 10, 10)) for n in (2, 0, 1)]
    assert scan_ranges(run) == [ScanRange((TICKER,), (60,), span(0, 30))]


@given(pages)
def test_overlap_is_two_pages_with_a_common_key(some: list[KeyRange]) -> None:
    pairs = [(a, b) for i, a in enumerate(some) for b in some[:i] if a.series == b.series]
    assert overlap(some) == any(a.span.intersect(b.span) for a, b in pairs)


def test_text_of_a_ticker_cannot_leave_its_quotes() -> None:
    condition = merge_condition(CANDLES, [ScanRange(("A'\\ OR 1=1.X",), (60,), span(0, 1))])
    assert r"t.ticker IN ('A\'\\ OR 1=1.X')" in condition
    assert "TIMESTAMP '2024-01-31 23:30:00+00:00'" in condition
