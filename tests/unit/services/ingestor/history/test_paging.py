from __future__ import annotations

from dexorder_common.model.periods import MONTH_SECONDS, split_by_periods
from dexorder_common.model.time_range import TimeRange, merge
from dexorder_common.model.times import parse_time
from tests.unit.services.ingestor.conftest import minutes


def test_pages_cover_the_span_in_order() -> None:
    pages = split_by_periods(minutes(5, 2500), 60, 1000)
    assert pages == [minutes(5, 1000), minutes(1005, 1000), minutes(2005, 500)]


def test_empty_span_has_no_page() -> None:
    assert split_by_periods(minutes(0, 0), 60, 1000) == []


def test_pages_of_months_keep_the_calendar() -> None:
    span = TimeRange(parse_time("2023-11-01"), parse_time("2024-04-01"))
    pages = split_by_periods(span, MONTH_SECONDS, 2)
    assert [p.end_ns for p in pages] == [parse_time(t) for t in ("2024-01-01", "2024-03-01", "2024-04-01")]
    assert merge(pages) == [span]
