"""Records that count: the rule as a table."""

from __future__ import annotations

import re

import pytest

from dexorder_common.model.history import IssuedDispatch
from dexorder_common.model.instrument import Series
from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.times import SECOND_NS
from dexorder_spark.records.admission import MAX_AHEAD_NS, refusal
from tests.fakes.pages import TICKER, dispatch_id, span

SERIES = Series(TICKER, 60)
ISSUED = {dispatch_id(5): IssuedDispatch(dispatch_id(5), SERIES, span(10, 20))}
NOW_NS = span(30, 1).start_ns


def why(
    job: str = dispatch_id(5),
    series: Series = SERIES,
    part: TimeRange | None = None,
    *,
    is_page: bool = True,
    now_ns: int = NOW_NS,
) -> tuple[str, bool] | None:
    found = refusal(job, series, part or span(10, 20), ISSUED, is_page=is_page, now_ns=now_ns)
    return None if found is None else (found.reason, found.is_issued)


@pytest.mark.parametrize("is_page", [True, False])
@pytest.mark.parametrize("part", [span(10, 20), span(10, 1), span(29, 1)])
def test_records_inside_an_issued_dispatch_count(part: TimeRange, is_page: bool) -> None:
    assert why(part=part, is_page=is_page) is None


@pytest.mark.parametrize("is_page", [True, False])
@pytest.mark.parametrize(
    ("given", "text", "is_issued"),
    [
        ({"job": dispatch_id(6)}, "was not issued", False),
        ({"job": dispatch_id(5, "ETH/USDT.BINANCE")}, "was not issued", False),  # the number alone is not enough
        ({"series": Series(TICKER, 300)}, "series .* is not", True),
        ({"series": Series("ETH/USDT.BINANCE", 60)}, "series .* is not", True),
        ({"part": span(9, 2)}, "is outside", True),
        ({"part": span(29, 2)}, "is outside", True),
        ({"part": span(40, 2)}, "is outside", True),
        ({"part": TimeRange(0, 2**63 - 1)}, "is outside", True),
    ],
)
def test_other_records_do_not(given: dict[str, object], text: str, is_issued: bool, is_page: bool) -> None:
    found = why(**given, is_page=is_page)  # type: ignore[arg-type]
    assert found is not None and found[1] is is_issued
    assert re.search(text, found[0])


@pytest.mark.parametrize("period_seconds", [0, 1, 60])
def test_a_realtime_dispatch_settles_trades_and_candles_of_its_ticker_alone(period_seconds: int) -> None:
    realtime = IssuedDispatch(dispatch_id(7), Series(TICKER, 0), TimeRange(0, 2**63 - 1), is_realtime=True)
    given = {"issued": {dispatch_id(7): realtime}, "is_page": True, "now_ns": NOW_NS}
    assert refusal(dispatch_id(7), Series(TICKER, period_seconds), span(10, 1), **given) is None  # type: ignore[arg-type]
    other = refusal(dispatch_id(7), Series("ETH/USDT.BINANCE", period_seconds), span(10, 1), **given)  # type: ignore[arg-type]
    assert other is not None and other.is_issued


def test_a_page_may_end_two_minutes_ahead_and_a_final_anywhere_in_its_dispatch() -> None:
    end_ns = span(10, 20).end_ns
    assert why(now_ns=end_ns - MAX_AHEAD_NS) is None
    found = why(now_ns=end_ns - MAX_AHEAD_NS - 1)
    assert found is not None and "ends in the future" in found[0] and found[1]
    assert why(now_ns=SECOND_NS, is_page=False) is None, "its dispatch may be of a range that has not passed yet"
