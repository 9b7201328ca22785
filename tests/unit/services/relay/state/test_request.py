"""Refused requests and the texts of outcomes. test_relay.py checks the fields over the wire."""

from __future__ import annotations

from contextlib import nullcontext

import pytest

from dexorder_common.model.datasets import TICKERS, TRADES
from dexorder_common.model.errors import InvalidRequest
from dexorder_common.model.history import HistoryRequest, RequestStatus
from dexorder_common.model.instrument import Series
from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.times import MAX_TIME_NS, SECOND_NS
from dexorder_relay.state.compare import CoverageComparison
from dexorder_relay.state.request import (
    MAX_ID_LENGTH,
    check,
    check_exchange,
    check_part,
    check_rows,
    decide,
    describe_missing,
    describe_wrong,
)

MINUTE_NS = 60 * SECOND_NS


def minutes(start: int, end: int) -> TimeRange:
    return TimeRange(start * MINUTE_NS, end * MINUTE_NS)


def ended(
    missing: list[TimeRange], rows: int, errors: list[str] | None = None, wrong: str = ""
) -> tuple[RequestStatus, str]:
    outcome = decide(end_ns=0, completed_ns=0, row_count=rows, missing=missing, job_errors=errors or [], wrong=wrong)
    return outcome.status, outcome.error


VENUES = ("SIM", "KRAKEN")


@pytest.mark.parametrize(
    ("request_id", "exchange", "client_id", "refusal"),
    [
        ("r", "SIM", "", ""),
        ("r", "SIM", "me", ""),
        ("r", "NOWHERE", "me", "exchange 'NOWHERE' is not known"),
        ("", "SIM", "me", "request_id '' has 0 characters"),
        ("r", "SIM", "a\nb", "client_id .* has a control character"),
    ],
)
def test_request_of_a_whole_exchange_names_a_known_one(
    request_id: str, exchange: str, client_id: str, refusal: str
) -> None:
    request = HistoryRequest.of_exchange(request_id, exchange, TICKERS, client_id)
    with pytest.raises(InvalidRequest, match=refusal) if refusal else nullcontext():
        check_exchange(request, VENUES)


@pytest.mark.parametrize(
    ("request_id", "client_id", "refusal"),
    [
        ("r" * MAX_ID_LENGTH, "c" * MAX_ID_LENGTH, ""),
        ("r" * (MAX_ID_LENGTH + 1), "", f"request_id .* has {MAX_ID_LENGTH + 1} characters"),
        ("r", "c" * (MAX_ID_LENGTH + 1), f"client_id .* has {MAX_ID_LENGTH + 1} characters"),
        ("r", "a\nb", "client_id .* has a control character"),
    ],
)
def test_ids_of_a_request_for_candles(request_id: str, client_id: str, refusal: str) -> None:
    request = HistoryRequest(request_id, "BTC/USDT.SIM", 0, MINUTE_NS, 60, client_id=client_id)
    with pytest.raises(InvalidRequest, match=refusal) if refusal else nullcontext():
        check(request, VENUES, max_periods=1)


def test_stored_rows_without_periods_have_no_grid_and_a_known_exchange() -> None:
    trades, snapshots = Series("BTC/USDT.SIM", dataset=TRADES), Series.whole_exchange("SIM", TICKERS)
    for series in (trades, snapshots):
        assert check_rows(series, 7, 11, VENUES) == TimeRange(7, 11)
        assert check_rows(series, None, None, VENUES) == TimeRange(0, MAX_TIME_NS)
    assert check_rows(Series("BTC/USDT.SIM", 60), MINUTE_NS, 2 * MINUTE_NS, VENUES) == minutes(1, 2)
    with pytest.raises(InvalidRequest, match="grid"):
        check_rows(Series("BTC/USDT.SIM", 60), 7, 2 * MINUTE_NS, VENUES)
    for unknown in (Series("BTC/USDT.NOWHERE", dataset=TRADES), Series.whole_exchange("NOWHERE", TICKERS)):
        with pytest.raises(InvalidRequest, match="exchange 'NOWHERE' is not known"):
            check_rows(unknown, None, None, VENUES)


def test_a_part_of_a_dataset_without_periods_has_no_grid_and_other_periods_are_checked() -> None:
    assert check_part(Series("BTC/USDT.SIM", dataset=TRADES), 1, None, {"SIM"}, without_periods=True) == TimeRange(
        1, MAX_TIME_NS
    )
    with pytest.raises(InvalidRequest, match="period"):
        check_part(Series("BTC/USDT.SIM", 61), None, None, {"SIM"}, without_periods=True)


def test_request_beyond_the_quota_of_periods_is_refused_with_its_range() -> None:
    request = HistoryRequest("r", "BTC/USDT.SIM", 0, 100 * MINUTE_NS, 60)
    check(request, VENUES, max_periods=100)
    refusal = r"end_time 1970-01-01T01:40:00Z makes 100 periods from 1970-01-01T00:00:00Z; at most 99 are allowed"
    with pytest.raises(InvalidRequest, match=refusal):
        check(request, VENUES, max_periods=99)


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
