"""Refused requests and the texts of outcomes. test_relay.py checks the fields over the wire."""

from __future__ import annotations

from services.common.model.history import RequestStatus
from services.common.model.time_range import TimeRange
from services.common.model.times import SECOND_NS
from services.relay.history.outcome import make_reading
from services.relay.history.request import decide, describe_missing
from services.relay.history.table_reader import RowCount

MINUTE_NS = 60 * SECOND_NS


def minutes(start: int, end: int) -> TimeRange:
    return TimeRange(start * MINUTE_NS, end * MINUTE_NS)


def ended(missing: list[TimeRange], rows: int, errors: list[str] | None = None) -> tuple[RequestStatus, str]:
    outcome = decide(
        end_ns=0,
        missing=missing,
        job_errors=errors or [],
        row_count=rows,
        empty_periods=0,
        snapshot_id=None,
        completed_ns=0,
    )
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


def test_finding_is_cut_to_the_range_that_is_answered() -> None:
    missing, empty = [minutes(2, 4), minutes(8, 9)], [minutes(0, 1), minutes(5, 7)]
    finding = make_reading(minutes(0, 6), missing, empty, RowCount(1, None, 5, [minutes(1, 2), minutes(7, 8)]))
    assert (finding.missing, finding.empty) == ([minutes(2, 4)], [minutes(0, 1), minutes(5, 6)])
    assert finding.lost == [minutes(4, 5)]  # six minutes, two missing, two empty: of two rows one is there
