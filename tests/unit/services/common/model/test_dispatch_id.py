import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dexorder_common.model.dispatch_id import (
    MAX_NUMBER,
    DispatchNumbers,
    TraceContext,
    new_dispatch_id,
    number_of,
    read_context,
    trace_of,
)
from dexorder_common.model.errors import InvalidRequest


@given(st.integers(1, MAX_NUMBER), st.text("0123456789abcdef", min_size=16, max_size=64))
def test_an_id_begins_with_its_number(number: int, token: str) -> None:
    assert number_of(new_dispatch_id(number, token)) == number


@pytest.mark.parametrize(
    "dispatch_id",
    [
        "",
        "6f1f0d9c4b3a4c1c8a6f2f2f2f2f2f2f",  # before numbers were issued
        "1",
        "1-",
        "-0123456789abcdef",
        "0-0123456789abcdef",
        "01-0123456789abcdef",
        "+1-0123456789abcdef",
        "1-0123456789abcde",
        "1-0123456789ABCDEF",
        "1-0123456789abcdef\n",
        "1-" + "0" * 65,
        "\u0661-0123456789abcdef",
        f"{MAX_NUMBER + 1}-0123456789abcdef",
        "9" * 5_000 + "-0123456789abcdef",
    ],
)
def test_any_other_id_has_no_number(dispatch_id: str) -> None:
    with pytest.raises(InvalidRequest, match="is not NUMBER-TOKEN"):
        number_of(dispatch_id)


@pytest.mark.parametrize(("number", "token"), [(0, "0" * 16), (MAX_NUMBER + 1, "0" * 16), (1, "0" * 15), (1, "guess")])
def test_no_other_id_is_made(number: int, token: str) -> None:
    with pytest.raises(InvalidRequest):
        new_dispatch_id(number, token)


digits = st.text("0123456789abcdef", min_size=16, max_size=16)
CONTEXT = TraceContext("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7")


@given(digits, digits, digits)
def test_the_id_of_a_dispatch_carries_a_context(first: str, second: str, span_id: str) -> None:
    context = read_context(first + second + span_id)
    valid = bool((first + second).strip("0") and span_id.strip("0"))
    assert context == (TraceContext(first + second, span_id) if valid else None)
    dispatch_id = DispatchNumbers().new_id(first + second + span_id)
    assert number_of(dispatch_id) == 2 and trace_of(dispatch_id) == context, "1 is left to a retraction"


def test_ids_with_a_context_cannot_be_guessed() -> None:
    numbers = DispatchNumbers()
    tokens = {numbers.new_id(CONTEXT.text).partition("-")[2] for _ in range(100)}
    assert len({token[:16] for token in tokens}) == 100
    assert {token[16:] for token in tokens} == {CONTEXT.text}


@pytest.mark.parametrize(
    "dispatch_id", ["", "1", "1-", "1-" + "a" * 16, "1-" + "a" * 63, "1-" + "a" * 65, "1-" + "g" * 64]
)
def test_other_ids_carry_none(dispatch_id: str) -> None:
    assert trace_of(dispatch_id) is None


def test_ids_of_earlier_versions_carry_none() -> None:
    assert trace_of(new_dispatch_id(7, "0123456789abcdef")) is None


def test_traceparent_is_that_of_w3c() -> None:
    assert CONTEXT.traceparent == "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def test_a_derived_span_is_the_same_everywhere_and_another_for_each_name_and_trace() -> None:
    # the literal value: two versions of the relay must agree on it
    assert CONTEXT.derived("r") == TraceContext(CONTEXT.trace_id, "0816b104fcb90f4a")
    assert len({CONTEXT.derived(name).span_id for name in ("r", "s", "")}) == 3
    assert CONTEXT._replace(trace_id="a" * 32).derived("r").span_id != CONTEXT.derived("r").span_id
    assert re.fullmatch("[0-9a-f]{16}", CONTEXT.derived("\u00fc \ud800".encode("utf-8", "replace").decode()).span_id)
