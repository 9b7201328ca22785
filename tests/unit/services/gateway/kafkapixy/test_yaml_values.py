"""Go's durations."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dexorder_gateway.kafkapixy.yaml_values import parse_duration

UNITS_NS = {"ns": 1, "us": 10**3, "µs": 10**3, "ms": 10**6, "s": 10**9, "m": 60 * 10**9, "h": 3_600 * 10**9}


def as_go_prints(ns: int) -> str:
    """Return what ``time.Duration.String`` returns: fractions of seconds, below a second of the largest unit."""
    if ns == 0:
        return "0s"
    if abs(ns) < 10**9:
        unit, size = next((u, s) for u, s in (("ms", 10**6), ("µs", 10**3), ("ns", 1)) if abs(ns) >= s)
        whole, rest = divmod(abs(ns), size)
        return ("-" if ns < 0 else "") + fraction(whole, rest, size) + unit
    minutes, rest_ns = divmod(abs(ns), 60 * 10**9)
    hours, minutes = divmod(minutes, 60)
    seconds = fraction(*divmod(rest_ns, 10**9), 10**9) + "s"
    before = f"{hours}h{minutes}m" if hours else f"{minutes}m" if minutes else ""
    return ("-" if ns < 0 else "") + before + seconds


def fraction(whole: int, rest: int, size: int) -> str:
    digits = str(rest).rjust(len(str(size)) - 1, "0").rstrip("0")
    return f"{whole}.{digits}" if digits else str(whole)


@given(st.integers(-(2**63) + 1, 2**63 - 1))
def test_durations_printed_by_go_are_parsed(ns: int) -> None:
    assert parse_duration(as_go_prints(ns)) == ns


@given(st.lists(st.tuples(st.integers(0, 10**6), st.sampled_from(sorted(UNITS_NS))), min_size=1, max_size=5))
def test_terms_add_up_in_any_order_and_number(terms: list[tuple[int, str]]) -> None:
    text = "".join(f"{number}{unit}" for number, unit in terms)
    total_ns = sum(number * UNITS_NS[unit] for number, unit in terms)
    if total_ns >= 2**63:  # more than Go's Duration holds: 1,000,000 hours and three terms more are enough
        with pytest.raises(ValueError, match="longer than"):
            parse_duration(text)
        return
    assert parse_duration(text) == total_ns
    assert parse_duration(f"-{text}") == -parse_duration(f"+{text}")


def test_terms_whose_sum_is_over_292_years_are_refused() -> None:
    assert parse_duration("1000000h1000000h") == 2 * 10**6 * UNITS_NS["h"]
    with pytest.raises(ValueError, match="longer than"):
        parse_duration("1000000h1000000h1000000h")


@given(st.text(alphabet="0123456789.+-hmsnuµ e_x", max_size=8))
def test_any_text_is_parsed_or_refused(text: str) -> None:
    try:
        parse_duration(text)
    except ValueError as error:
        assert repr(text) in str(error)
    else:
        assert text.lstrip("+-") == "0" or text[-1] in "smh"


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("0", 0),
        ("-0", 0),
        ("500ms", 500 * 10**6),
        ("1m30s", 90 * 10**9),
        ("1.5h", 5_400 * 10**9),
        ("5m", 300 * 10**9),
        (".5s", 5 * 10**8),
        ("1.s", 10**9),
        ("1μs", 1_000),
        ("0.0000000019s", 1),
        ("2h45m0.5s", 9_900_500_000_000),
    ],
)
def test_durations(text: str, ns: int) -> None:
    assert parse_duration(text) == ns


@pytest.mark.parametrize(
    "text",
    [
        "",
        "+",
        "-",
        "1",
        "300",
        "s",
        ".",
        ".s",
        "1 s",
        " 1s",
        "1s ",
        "1S",
        "1d",
        "1s500",
        "--1s",
        "1e3s",
        "1_0s",
        "٣s",
        "9999999h",
    ],
)
def test_text_that_is_not_a_duration(text: str) -> None:
    with pytest.raises(ValueError, match=r"duration"):
        parse_duration(text)
