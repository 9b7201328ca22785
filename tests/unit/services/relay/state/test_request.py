"""Refused requests and the texts of outcomes. test_relay.py checks the fields over the wire."""

from __future__ import annotations

from dexorder_common.model.history import RequestStatus
from dexorder_common.model.instrument import Series
from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.times import SECOND_NS
from dexorder_relay.state.compare import CoverageComparison
from dexorder_relay.state.request import decide, describe_missing, describe_wrong

MINUTE_NS = 60 * SECOND_NS


def minutes(start: int, end: int) -> TimeRange:
    return TimeRange(start * MINUTE_NS, end * MINUTE_NS)


def ended(
    missing: list[TimeRange], rows: int, errors: list[str] | None = None, wrong: str = ""
) -> tuple[RequestStatus, str]:
    outcome = decide(end_ns=0, completed_ns=0, row_count=rows, missing=missing, job_errors=errors or [], wrong=wrong)
    return outcome.status, outcome.error


def test_the_one_status() -> None:
    assert ended([], 3, ["an earlier worry"]) == (RequestStatus.OK, "")
    assert ended([], 0) == (RequestStatus.NOT_FOUND, "")
    gap = "missing [1970-01-01T00:01:00Z, 1970-01-01T00:02:00Z)"
    assert ended([minutes(1, 2)], 3) == (RequestStatus.ERROR, gap)
    assert ended([minutes(1, 2)], 0, ["no", "no", "", "why"]) == (RequestStatus.ERROR, f"no; why; {gap}")
    assert ended([minutes(1, 2)], 0, [f"{gap}: 403"]) == (RequestStatus.ERROR, f"{gap}: 403")  # not said twice


def test_long_lists_of_missing_ranges_are_cut_in_the_text() -> None:
    text = describe_missing([minutes(i * 2, i * 2 + 1) for i in range(60)])
    assert text.count("[") == 50 and text.endswith("and 10 more")


def test_rows_that_must_not_be_there_are_an_error_with_or_without_missing_ranges() -> None:
    found = CoverageComparison(
        unexpected=[minutes(3, 4)],
        duplicates=[minutes(7, 8)],
        surplus_rows=2,
        off_grid=[minutes(9, 10)],
        off_grid_rows=1,
    )
    text = describe_wrong(found, Series("BTC/USDT.SIM", 60))
    assert text.startswith(
        "trading.ohlc has rows that it must not have: 2 duplicate, 1 in ranges verified empty, 1 off"
    )
    assert text.count("[") == 3 and text.endswith("`dexorder verify BTC/USDT.SIM 1m --repair` removes them")
    assert ended([], 3, ["an earlier worry"], text) == (RequestStatus.ERROR, text)
    gap = "missing [1970-01-01T00:01:00Z, 1970-01-01T00:02:00Z)"
    assert ended([minutes(1, 2)], 3, ["why"], text) == (RequestStatus.ERROR, f"why; {text}; {gap}")
    assert describe_wrong(CoverageComparison(), Series("BTC/USDT.SIM", 60)) == ""
