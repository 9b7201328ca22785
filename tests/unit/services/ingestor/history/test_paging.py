from __future__ import annotations

import pytest

from services.common.model.periods import MONTH_SECONDS
from services.common.model.time_range import TimeRange, merge
from services.common.model.times import parse_time
from services.ingestor.history.paging import CallLimits, limits_for, plan_pages
from tests.unit.services.ingestor.conftest import minutes


def test_pages_cover_the_span_in_order() -> None:
    pages = plan_pages(minutes(5, 2500), 60, 1000)
    assert pages == [minutes(5, 1000), minutes(1005, 1000), minutes(2005, 500)]


def test_skipped_candle_splits_its_page_and_leaves_the_other_borders() -> None:
    pages = plan_pages(minutes(0, 2000), 60, 1000, skip=(minutes(300, 1),))
    assert pages == [minutes(0, 300), minutes(301, 699), minutes(1000, 1000)]


def test_empty_span_has_no_page() -> None:
    assert plan_pages(minutes(0, 0), 60, 1000) == []


def test_pages_of_months_keep_the_calendar() -> None:
    span = TimeRange(parse_time("2023-11-01"), parse_time("2024-04-01"))
    pages = plan_pages(span, MONTH_SECONDS, 2)
    assert [p.end_ns for p in pages] == [parse_time(t) for t in ("2024-01-01", "2024-03-01", "2024-04-01")]
    assert merge(pages) == [span]


@pytest.mark.parametrize(
    ("ccxt_id", "features", "limits"),
    [
        ("binance", None, CallLimits(1000, wide=True)),
        ("kraken", None, CallLimits(240, wide=True, names_symbol=True)),
        ("bybit", None, CallLimits(1000, names_symbol=True)),
        ("coinbase", {"spot": {"fetchOHLCV": {"limit": 9}}}, CallLimits(300)),
        ("gate", {"spot": {"fetchOHLCV": {"limit": 200}}}, CallLimits(200)),
        ("bitfinex", {"spot": {"fetchOHLCV": {"limit": 10_000}}}, CallLimits(1000)),
        (
            "kucoin",
            {"spot": {"fetchOHLCV": {"limit": 1500}}, "swap": {"linear": {"fetchOHLCV": {"limit": 500}}}},
            CallLimits(500),
        ),
        ("apex", {"spot": None, "swap": {"linear": {"fetchOHLCV": {"limit": 200}}}}, CallLimits(200)),
        ("new", {"spot": {"fetchOHLCV": None}}, CallLimits(500)),
        ("new", {"spot": None}, CallLimits(500)),
        ("new", None, CallLimits(500)),
    ],
)
def test_limits_of_a_call(ccxt_id: str, features: dict[str, object] | None, limits: CallLimits) -> None:
    assert limits_for(ccxt_id, features) == limits
