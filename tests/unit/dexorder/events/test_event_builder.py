import json
from typing import Any

import pytest
from hypothesis import given, strategies

from dexorder.events import Channel, EventRefused, Priority
from dexorder.events.event_builder import compose, payload_json
from services.gen.dexorder.events.v1 import user_events_pb2 as pb

NESTED: Any = {}
for _ in range(31):
    NESTED = {"in": NESTED}


def made(**changes: Any) -> pb.UserEvent:
    given: dict[str, Any] = {
        "user_id": "alice",
        "event_type": "ORDER_FILLED",
        "payload": {},
        "priority": Priority.NORMAL,
        "channels": (),
        "event_id": "e",
        "timestamp_ms": 1,
        "max_payload_bytes": 100,
    }
    return compose(**given | changes)


JSON = strategies.recursive(
    strategies.none()
    | strategies.booleans()
    | strategies.integers()
    | strategies.text("aé\x00\u2028😀", max_size=4)
    | strategies.floats(allow_nan=False, allow_infinity=False),
    lambda inner: (
        strategies.lists(inner, max_size=3) | strategies.dictionaries(strategies.text("xy"), inner, max_size=3)
    ),
)


@given(strategies.dictionaries(strategies.text("ab"), JSON, max_size=3))
def test_a_payload_is_read_back_as_it_was(payload: dict[str, Any]) -> None:
    assert json.loads(payload_json(payload)) == payload


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"payload": {"price": float("nan")}}, "can't be JSON: Out of range float"),
        ({"payload": {"price": object()}}, "can't be JSON: Object of type object"),
        ({"payload": {1: "a", "1": "b"}}, "the key 1 is no text"),
        ({"payload": {"a": ["\ud800"]}}, "can't be JSON: 'utf-8' codec"),
        ({"payload": [1]}, "the payload is a list and must be a dict"),
        ({"payload": {"in": {"in": NESTED}}}, "nested deeper than 32"),
        ({"payload": {"text": "x" * 90}}, "has 101 bytes and may have 100"),
        ({"user_id": ""}, "user_id '' is empty"),
        ({"user_id": "a\x00"}, "has a NUL"),
        ({"user_id": "a" * 257}, "more than 256 characters"),
        ({"payload": {"n": 10**400}}, "beyond what a double"),
        ({"event_id": ""}, "event_id '' is empty"),
        ({"event_id": "\ud800"}, "can't be UTF-8"),
        ({"timestamp_ms": -1}, "timestamp_ms -1"),
        ({"event_type": "NOTHING"}, "event_type 'NOTHING' is none of ORDER_PLACED"),
        ({"event_type": -1}, "event_type -1 is out of range"),
        ({"priority": "URGENT"}, "priority 'URGENT' is none of INFORMATIONAL, NORMAL, CRITICAL"),
        ({"priority": 7}, "priority 7 is none"),
        ({"channels": ["FAX"]}, "channel 'FAX' is none of ACTIVE_SESSION"),
    ],
)
def test_what_the_gateway_would_refuse_is_refused_before(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(EventRefused, match=says):
        made(**changes)


def test_the_deepest_and_the_largest_that_may_be() -> None:
    assert made(payload=NESTED, max_payload_bytes=10_000).payload.count(b"{") == 32
    assert len(made(payload={"text": "x" * 89}).payload) == 100


def test_a_payload_message_is_said_in_its_own_names() -> None:
    payload = pb.OrderEventPayload(order_id="17", fill_price="1.50", timestamp=5)
    sent = json.loads(made(payload=payload, channels=[Channel.EMAIL, "PUSH"]).payload)
    assert sent == {"order_id": "17", "fill_price": "1.50", "timestamp": "5"}
