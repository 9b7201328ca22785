"""What a notebook and a prompt show of answers: a line, and a table that no text of an exchange can break."""

from __future__ import annotations

from typing import Any

from dexorder_common.model.coverage import SHOWN_ROWS, Coverage, CoverageKind, CoverageRange
from dexorder_common.model.coverage_days import coverage_days
from dexorder_common.model.instrument import InstrumentList, ListedInstrument
from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.times import SECOND_NS

HOUR = 3_600 * SECOND_NS


def covered(*spans: tuple[int, int], ticker: str = "BTC/USDT.SIM") -> Coverage:
    ranges = (CoverageRange(TimeRange(first * HOUR, end * HOUR), CoverageKind.ROWS) for first, end in spans)
    return Coverage(ticker, 3_600, tuple(ranges))


def html(value: Any) -> str:
    return str(value._repr_html_())


def test_coverage_is_a_line_and_a_table_with_its_holes() -> None:
    found = covered((0, 5), (6, 30))
    assert repr(found) == "Coverage of BTC/USDT.SIM 1h: 2 ranges from 1970-01-01T00:00:00Z to 1970-01-02T06:00:00Z"
    assert html(found).count("<tr>") == 4 and "<td>missing</td>" in html(found)
    assert repr(covered()).endswith("nothing is covered")
    many = covered(*((n, n + 1) for n in range(0, 200, 2)))
    assert html(many).count("<tr>") == SHOWN_ROWS + 1 and "149 more rows" in html(many)
    assert "<script>" not in html(covered((0, 1), ticker="<script>.SIM"))


def test_days_show_what_is_not_proven() -> None:
    days = coverage_days(covered((0, 24), (25, 48)), "1h", None, ())
    assert repr(days) == "CoverageDays of BTC/USDT.SIM 1h: 2 days: 1 proven, 1 not asked"
    assert "<td>1970-01-02</td>" in html(days) and "<td>1970-01-01</td>" not in html(days)


def test_a_list_of_instruments_is_a_line() -> None:
    markets = tuple(ListedInstrument(f"A{n}/USDT.SIM", n > 1) for n in range(5))
    assert repr(InstrumentList("SIM", markets, 0)) == "InstrumentList of SIM: 5 markets, 3 of them active"
