import datetime as dt

import pytest

from dexorder.client.inputs import make_request, parse_period
from dexorder.client.moments import Moment
from dexorder.errors import RequestRefused
from dexorder_common.model.errors import InvalidRequest
from dexorder_common.model.times import iso, parse_time
from dexorder_common.rpc.history_messages import encode_request


@pytest.mark.parametrize(
    ("period", "since", "until", "expected"),
    [
        ("1h", "2024-01-01T00:59:59Z", "2024-01-01T03:30", ("2024-01-01T00:00:00Z", "2024-01-01T03:00:00Z", 3)),
        (3600, dt.date(2024, 1, 1), dt.datetime(2024, 1, 2), ("2024-01-01T00:00:00Z", "2024-01-02T00:00:00Z", 24)),
        ("1w", "2024-01-03", "2024-01-18", ("2024-01-01T00:00:00Z", "2024-01-15T00:00:00Z", 2)),
        ("1M", "2024-01-31", "2024-03-01", ("2024-01-01T00:00:00Z", "2024-03-01T00:00:00Z", 2)),
        ("60", "2024-01-01T02:00+02:00", "2024-01-01T00:05", ("2024-01-01T00:00:00Z", "2024-01-01T00:05:00Z", 5)),
    ],
)
def test_ends_are_rounded_down_to_the_grid(
    period: str | int, since: Moment, until: Moment, expected: tuple[str, str, int]
) -> None:
    request = make_request("id", "BTC/USDT.SIM", period, since, until)
    assert (iso(request.span.start_ns), iso(request.span.end_ns), request.max_candles) == expected


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"ticker": "BTCUSDT"}, "'BTCUSDT' is not SYMBOL.VENUE"),
        ({"period": "7m"}, "'7m' is not one of 1s, 1m"),
        ({"period": 61}, "61 is not one of"),
        ({"since": "soon"}, "since 'soon' is not a time; use now, -30d, 2024-01-31"),
        ({"since": "20240131"}, "since 20240131 is ambiguous; write 2024-01-31 for a date"),
        ({"until": "2023-12-31"}, "until 2023-12-31 is not after since 2024-01-01"),
        ({"until": "2024-01-01T00:30"}, "are in the same 1h candle"),
        ({"until": 2**64}, "ambiguous"),
        ({"limit": 0}, "limit 0"),
    ],
)
def test_invalid_value_is_named(changed: dict[str, object], message: str) -> None:
    good = {"ticker": "BTC/USDT.SIM", "period": "1h", "since": "2024-01-01", "until": "2024-01-02", "limit": None}
    with pytest.raises(RequestRefused, match=message):
        make_request("id", **{**good, **changed})  # type: ignore[arg-type]


def test_limit_bounds_the_expected_candles() -> None:
    assert make_request("id", "A/B.SIM", "1h", "2024-01-01", "2024-01-02", limit=5).max_candles == 5
    message = encode_request(make_request("id", "A/B.SIM", "1h", "2024-01-01", "2024-01-02"))
    assert not message.HasField("limit") and not message.HasField("client_id")


def test_the_end_is_that_of_the_last_closed_candle_by_default() -> None:
    now_ns = parse_time("2024-01-02T03:04:05Z")
    request = make_request("id", "BTC/USDT.SIM", "1h", "-2d", now_ns=now_ns)
    assert (iso(request.span.start_ns), iso(request.span.end_ns)) == ("2023-12-31T03:00:00Z", "2024-01-02T03:00:00Z")


def test_periods_by_name_and_number() -> None:
    assert parse_period("1m") == parse_period("60") == parse_period(60) == 60
    assert parse_period("1M") == 2_592_000
    with pytest.raises(InvalidRequest):
        parse_period("-60")
