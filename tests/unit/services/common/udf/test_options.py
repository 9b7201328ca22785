"""Options: text and values against declared types, durations, and errors in the UDF's own names."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dexorder_udf.errors import UdfOptionError
from dexorder_udf.options import (
    Given,
    OptionValue,
    ValueType,
    check_options,
    parse_duration,
    split_assignments,
)

T = ValueType
DECLARED = {
    "size": (T.INT,),
    "field": (T.STRING,),
    "scale": (T.DOUBLE,),
    "on": (T.BOOL,),
    "every": (T.DURATION,),
    "range": (T.INT, T.DOUBLE),
    "flag": (),
}


@pytest.mark.parametrize(
    ("name", "given_value", "expected"),
    [
        ("size", "-12", (OptionValue(T.INT, -12),)),
        ("size", 2**63 - 1, (OptionValue(T.INT, 2**63 - 1),)),
        ("field", "10", (OptionValue(T.STRING, "10"),)),
        ("scale", "1e3", (OptionValue(T.DOUBLE, 1000.0),)),
        ("scale", 2, (OptionValue(T.DOUBLE, 2.0),)),
        ("on", "TRUE", (OptionValue(T.BOOL, True),)),
        ("on", False, (OptionValue(T.BOOL, False),)),
        ("every", "1h30m", (OptionValue(T.DURATION, 5400 * 10**9),)),
        ("range", ["1", 2.5], (OptionValue(T.INT, 1), OptionValue(T.DOUBLE, 2.5))),
        ("flag", [], ()),
    ],
)
def test_values_of_each_type(name: str, given_value: Given | list[Given], expected: tuple[OptionValue, ...]) -> None:
    assert check_options("f", DECLARED, {name: given_value}) == {name: expected}


@pytest.mark.parametrize(
    ("name", "given_value", "message"),
    [
        ("sise", 1, 'UDF "f": has no option "sise"; its options: every, field, flag, on, range, scale, size'),
        ("size", "1.5", 'UDF "f": option "size": \'1.5\' is not a whole number of 64 bits'),
        ("size", 2**63, f'UDF "f": option "size": {2**63} is not a whole number of 64 bits'),
        ("size", True, 'UDF "f": option "size": True is not a whole number of 64 bits'),
        ("on", 1, 'UDF "f": option "on": 1 is not true or false'),
        ("every", 10, 'UDF "f": option "every": 10 is not a duration such as 10s, 500ms or 1h30m'),
        ("every", "10", 'UDF "f": option "every": \'10\' is not a duration such as 10s, 500ms or 1h30m'),
        ("range", [1], 'UDF "f": option "range" takes 2 values (int, double), not 1'),
        ("flag", "x", 'UDF "f": option "flag" takes 0 values (no value), not 1'),
    ],
)
def test_wrong_values(name: str, given_value: Given | list[Given], message: str) -> None:
    with pytest.raises(UdfOptionError) as error:
        check_options("f", DECLARED, {name: given_value})
    assert str(error.value) == message


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1u", 1000),
        ("1µs", 1000),
        ("5ms", 5_000_000),
        ("-1w", -7 * 86400 * 10**9),
        ("1d2h", 26 * 3600 * 10**9),
        ("", None),
        ("1", None),
        ("1.5s", None),
        ("s", None),
        ("1y", None),
    ],
)
def test_durations(text: str, expected: int | None) -> None:
    assert parse_duration(text) == expected


def test_words_of_the_command_line() -> None:
    words = ["size=3", "range=1", "range=2", "flag", "field=a=b"]
    assert split_assignments(words) == {"size": ["3"], "range": ["1", "2"], "flag": [], "field": ["a=b"]}


@given(st.dictionaries(st.sampled_from(sorted(DECLARED)), st.one_of(st.text(max_size=5), st.integers(), st.floats())))
def test_any_value_is_checked_or_refused(options: dict[str, Given]) -> None:
    try:
        checked = check_options("f", DECLARED, options)
    except UdfOptionError:
        return
    assert {name: tuple(each.type for each in values) for name, values in checked.items()} == {
        name: DECLARED[name] for name in options
    }
