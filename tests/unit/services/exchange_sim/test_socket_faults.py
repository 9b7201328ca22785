from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from dexorder_exchange_sim.faults import MESSAGE, FaultPlan, FaultRule, Strike
from dexorder_exchange_sim.socket_faults import GARBAGE, Close, Send, SendHalf, SocketOutbox, shuffled


def outbox(*messages: str, struck: int, kind: Any, **fields: Any) -> SocketOutbox:
    """Messages of one moment, of which one is struck."""
    box = SocketOutbox()
    for place, text in enumerate(messages):
        box.put(text, Strike(FaultRule(kind=kind, **fields)) if place == struck else None, now_s=100)
    return box


def sent(box: SocketOutbox, now_s: float) -> list[Any]:
    return [action.data if isinstance(action, Send) else action for action in box.due(now_s=now_s)]


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("ws_drop", ["one", "three"]),
        ("ws_double", ["one", "two!", "two!", "three"]),
        ("ws_cut", ["one", "tw", "three"]),
        ("ws_garbage", ["one", GARBAGE[0], "three"]),
        ("ws_close", ["one", Close(clean=True), "three"]),
        ("ws_abort", ["one", Close(clean=False), "three"]),
        ("ws_half", ["one", SendHalf("two!"), Close(clean=False), "three"]),
        ("ws_shuffle", ["one"]),
        ("ws_silence", ["one"]),
        ("ws_freeze", ["one"]),
        ("ws_lag", ["one"]),
    ],
)
def test_one_message_is_struck(kind: str, expected: list[Any]) -> None:
    assert sent(outbox("one", "two!", "three", struck=1, kind=kind), 100) == expected


def test_lag_keeps_the_order_of_all_behind_it() -> None:
    box = outbox("one", "two", "three", struck=1, kind="ws_lag", lag_s=7)
    assert sent(box, 106.9) == ["one"]
    box.put("four", None, now_s=106.9)
    assert sent(box, 107) == ["two", "three", "four"]
    box.put("five", None, now_s=108)
    assert sent(box, 108) == ["five"]


@pytest.mark.parametrize(("kind", "answers"), [("ws_silence", True), ("ws_freeze", False)])
def test_what_happens_in_a_silence_is_lost(kind: str, answers: bool) -> None:
    box = outbox("one", "two", "three", struck=1, kind=kind, hang_s=10)
    assert sent(box, 100) == ["one"] and box.answers(now_s=109.9) == answers
    box.put("four", None, now_s=109.9)
    box.put("five", None, now_s=110)
    assert sent(box, 110) == ["five"] and box.answers(now_s=110)


def test_a_shuffle_ends_when_no_message_follows() -> None:
    box = outbox("one", "two", struck=0, kind="ws_shuffle", size=5)
    assert sent(box, 100.9) == []
    assert sent(box, 101) == ["two", "one"]


@given(st.integers(2, 30), st.integers(0, 2**64 - 1))
def test_a_shuffle_changes_the_order(size: int, roll: int) -> None:
    order = shuffled(size, roll)
    assert sorted(order) == list(range(size)) != order
    assert order == shuffled(size, roll)


def test_rules_of_messages_and_of_requests_do_not_strike_each_other() -> None:
    plan = FaultPlan([FaultRule(kind="text", path="*"), FaultRule(kind="ws_drop")], seed=1)
    for path, kind in (("/api/v3/klines", "text"), (MESSAGE, "ws_drop")):
        strike = plan.pick(path, "BTCUSDT")
        assert strike is not None and strike.rule.kind == kind
    assert FaultPlan([FaultRule(kind="ws_drop", symbol="ETHUSDT")], seed=1).pick(MESSAGE, "BTCUSDT") is None
    with pytest.raises(ValidationError, match="path and replicas have no effect on ws_drop"):
        FaultRule(kind="ws_drop", path="*")


def test_an_edited_message_has_another_price() -> None:
    text = '{"e":"aggTrade","p":"9.50","q":"1.0"}'
    assert sent(outbox(text, text, struck=0, kind="ws_edited"), 100) == [text.replace('"9.5', '"1.5'), text]
