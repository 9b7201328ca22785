from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dexorder_common.model.dispatch_id import DispatchNumbers, new_dispatch_id, number_of, trace_of
from dexorder_common.model.trace import TraceContext, read_context

digits = st.text("0123456789abcdef", min_size=16, max_size=16)
CONTEXT = TraceContext("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7")


@given(digits, digits, digits)
def test_the_id_of_a_dispatch_carries_a_context(first: str, second: str, span_id: str) -> None:
    context = read_context(first + second + span_id)
    valid = bool((first + second).strip("0") and span_id.strip("0"))
    assert context == (TraceContext(first + second, span_id) if valid else None)
    dispatch_id = DispatchNumbers().new_id(first + second + span_id)
    assert number_of(dispatch_id) == 1 and trace_of(dispatch_id) == context


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
