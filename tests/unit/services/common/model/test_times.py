"""Times and their text."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dexorder_common.model.times import (
    MAX_TIME_NS,
    SECOND_NS,
    from_datetime,
    iso_microseconds,
    parse_time,
    to_datetime,
)


def ns(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()) * SECOND_NS


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2024-01-31", "2024-01-31T00:00:00"),
        ("2024-01-31T12:00:00Z", "2024-01-31T12:00:00"),
        ("2024-01-31T12:00:00+02:00", "2024-01-31T10:00:00"),
    ],
)
def test_time_without_a_zone_is_utc(text: str, expected: str) -> None:
    assert parse_time(text) == ns(expected)


@given(st.integers(0, MAX_TIME_NS))
def test_datetimes_keep_whole_microseconds(time_ns: int) -> None:
    moment = to_datetime(time_ns)
    assert from_datetime(moment) == time_ns // 1_000 * 1_000
    assert parse_time(iso_microseconds(time_ns)) == from_datetime(moment)
    assert datetime.fromisoformat(iso_microseconds(time_ns, " ")) == moment
