import datetime as dt
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dexorder.client.moments import Moment, moment_ns
from dexorder_common.model.errors import InvalidRequest
from dexorder_common.model.times import SECOND_NS, iso, parse_time

NOW_NS = parse_time("2024-05-06T07:08:09Z")


@pytest.mark.parametrize(
    ("moment", "expected"),
    [
        ("now", "2024-05-06T07:08:09Z"),
        ("-30d", "2024-04-06T07:08:09Z"),
        ("-2w", "2024-04-22T07:08:09Z"),
        ("-90m", "2024-05-06T05:38:09Z"),
        ("-1h", "2024-05-06T06:08:09Z"),
        ("-9s", "2024-05-06T07:08:00Z"),
        ("-1h30m", "2024-05-06T05:38:09Z"),
        ("now-1d", "2024-05-05T07:08:09Z"),
        ("now -1d", "2024-05-05T07:08:09Z"),
        ("today", "2024-05-06T00:00:00Z"),
        ("yesterday", "2024-05-05T00:00:00Z"),
        ("3 days ago", "2024-05-03T07:08:09Z"),
        ("1 hour ago", "2024-05-06T06:08:09Z"),
        ("90m ago", "2024-05-06T05:38:09Z"),
        ("2024-01", "2024-01-01T00:00:00Z"),
        (" 2024-01-31  12:00 ", "2024-01-31T12:00:00Z"),
        ("2024-01-31", "2024-01-31T00:00:00Z"),
        ("2024-01-31T12:00:00+02:00", "2024-01-31T10:00:00Z"),
        ("1706659200", "2024-01-31T00:00:00Z"),
        ("1706659200000", "2024-01-31T00:00:00Z"),
        ("1706659200000000000", "2024-01-31T00:00:00Z"),
        (1_706_659_200, "2024-01-31T00:00:00Z"),
        (1_706_659_200_000, "2024-01-31T00:00:00Z"),
        (1_706_659_200.5, "2024-01-31T00:00:00Z"),
        (dt.date(2024, 1, 31), "2024-01-31T00:00:00Z"),
        (dt.datetime(2024, 1, 31, 12), "2024-01-31T12:00:00Z"),
    ],
)
def test_times_as_people_write_them(moment: Moment, expected: str) -> None:
    assert iso(moment_ns(moment, "since", now_ns=NOW_NS)) == expected


@pytest.mark.parametrize(
    ("moment", "message"),
    [
        ("2024", "since 2024 is ambiguous; write 2024-01-01 for a date"),
        ("202401", "since 202401 is ambiguous; write 2024-01-01 for a date"),
        (20_240_131, "since 20240131 is ambiguous; write 2024-01-31 for a date"),
        ("86400", "since 86400 is ambiguous; write 1970-01-02T00:00:00Z for seconds since the epoch"),
        ("20240131120000", "since 20240131120000 is ambiguous; use now, -30d, 2024-01-31"),
        (-1, "since -1 is ambiguous; use now"),
        ("-30", "since '-30' is not a time; use now, -30d"),
        ("-1M", "since '-1M' is not a time; use now, -30d"),
        ("-1h30M", "since '-1h30M' is not a time; use now, -30d"),
        ("3 months ago", "since '3 months ago' is not a time; use now, -30d"),
        ("2024-13", "since '2024-13' is not a time; use now, -30d"),
        ("٣", "since '٣' is not a time; use now, -30d"),
        ("in 3 days", "since 'in 3 days' is not a time; use now, -30d"),
        (1.5, "since 1.5 is ambiguous; write 1970-01-01T00:00:01Z"),
        (float("nan"), "since nan is not a time"),
        (True, "since True is not a time"),
        (dt.timedelta(days=-30), r"since datetime.timedelta\(days=-30\) is not a time; use now, -30d"),
    ],
)
def test_an_ambiguous_time_is_refused_with_a_suggestion(moment: Any, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        moment_ns(moment, "since", now_ns=NOW_NS)


@given(st.integers(parse_time("1982-01-01"), parse_time("2165-01-01")))
def test_each_unit_means_the_same_time(time_ns: int) -> None:
    seconds = time_ns // SECOND_NS
    for number in (seconds, seconds * 1_000, seconds * SECOND_NS):
        assert moment_ns(number, "since", now_ns=NOW_NS) == moment_ns(str(number), "since", now_ns=NOW_NS)
        assert moment_ns(number, "since", now_ns=NOW_NS) == seconds * SECOND_NS
    assert moment_ns(time_ns, "since", now_ns=NOW_NS) == time_ns
