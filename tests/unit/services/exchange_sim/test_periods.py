from __future__ import annotations

import datetime as dt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dexorder_exchange_sim.periods import PERIODS, Period

times = st.integers(min_value=0, max_value=4_000_000_000)
periods = st.sampled_from(list(PERIODS.values()))


def at(text: str) -> int:
    return int(dt.datetime.fromisoformat(text).replace(tzinfo=dt.UTC).timestamp())


@pytest.mark.parametrize(
    ("name", "moment", "opened"),
    [
        ("1m", "2024-02-29T12:34:56", "2024-02-29T12:34:00"),
        ("8h", "2024-02-29T12:34:56", "2024-02-29T08:00:00"),
        ("1d", "2024-03-31T23:59:59", "2024-03-31T00:00:00"),
        ("3d", "2017-08-19T05:00:00", "2017-08-17T00:00:00"),
        ("1w", "2017-08-20T23:59:59", "2017-08-14T00:00:00"),
        ("1w", "2017-08-21T00:00:00", "2017-08-21T00:00:00"),
        ("1M", "2024-02-29T23:59:59", "2024-02-01T00:00:00"),
        ("1M", "2023-12-31T23:59:59", "2023-12-01T00:00:00"),
    ],
)
def test_candle_opens_where_the_exchange_says(name: str, moment: str, opened: str) -> None:
    period = PERIODS[name]
    assert period.open_s(period.index(at(moment))) == at(opened)


@given(periods, times)
def test_every_second_lies_in_exactly_one_candle(period: Period, time_s: int) -> None:
    index = period.index(time_s)
    assert period.open_s(index) <= time_s < period.open_s(index + 1)


@given(periods, st.lists(times, min_size=1, max_size=5))
def test_arrays_agree_with_single_values(period: Period, moments: list[int]) -> None:
    indexes = period.indexes(np.array(moments))
    assert indexes.tolist() == [period.index(moment) for moment in moments]
    assert period.opens_s(indexes).tolist() == [period.open_s(int(index)) for index in indexes]


@given(periods, st.integers(min_value=0, max_value=4_000_000_000_000))
def test_first_index_opens_at_or_after_the_time(period: Period, time_ms: int) -> None:
    index = period.first_index(time_ms)
    assert period.open_s(index) * 1000 >= time_ms > period.open_s(index - 1) * 1000


def test_only_dividing_periods_nest() -> None:
    def nest(coarse: str) -> list[str]:
        return [name for name, finer in PERIODS.items() if PERIODS[coarse].nests(finer)]

    assert nest("1s") == []
    assert nest("5m") == ["1s", "1m"]
    assert nest("8h") == ["1s", "1m", "3m", "5m", "15m", "30m", "1h", "2h", "4h"]
    assert nest("1w") == nest("1M") == nest("3d") == [*nest("1d"), "1d"]
