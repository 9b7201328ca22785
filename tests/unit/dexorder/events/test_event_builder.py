import json
from typing import Any

import pytest
from hypothesis import given, strategies

from dexorder.events import Channel, EventRefused, Priority
from dexorder.events.event_builder import build_event, payload_json
from dexorder_protos.dexorder.events.v1 import user_events_pb2 as pb

CYCLE: dict[str, Any] = {}
CYCLE["cycle"] = CYCLE
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
    return build_event(**given | changes)


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
def test_a_payload_survives_the_round_trip(payload: dict[str, Any]) -> None:
    assert json.loads(payload_json(payload)) == payload


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"payload": {"price": float("nan")}}, "payload can't be converted to JSON: Out of range float"),
        ({"payload": {"price": object()}}, "payload can't be converted to JSON: Object of type object"),
        ({"payload": {1: "a", "1": "b"}}, "the key 1 is not text"),
        ({"payload": {"a": ["\ud800"]}}, "payload can't be converted to JSON: 'utf-8' codec"),
        ({"payload": [1]}, "payload is a list; a dict or a payload message is accepted"),
        ({"payload": {"in": {"in": NESTED}}}, "nested deeper than 32"),
        ({"payload": {"text": "x" * 90}}, "payload has 101 bytes; at most 100 are allowed"),
        ({"payload": CYCLE}, "payload is nested deeper than 32 levels"),
        ({"user_id": ""}, "user_id is missing"),
        ({"user_id": "a\x00"}, r"user_id has the unprintable character '\\x00'"),
        ({"user_id": "a" * 257}, "user_id is longer than 256 characters"),
        ({"payload": {"n": 10**400}}, "payload is not JSON: number is infinity when parsed as double"),
        ({"event_id": ""}, "event_id is missing"),
        ({"event_id": "\ud800"}, r"event_id has the unprintable character '\\ud800'"),
        ({"timestamp_ms": -1}, "timestamp_ms -1"),
        ({"event_type": "NOTHING"}, "event_type 'NOTHING' is not one of ORDER_PLACED"),
        ({"event_type": -1}, "event_type -1 is out of range"),
        ({"priority": "URGENT"}, "priority 'URGENT' is not one of INFORMATIONAL, NORMAL, CRITICAL"),
        ({"priority": 7}, "priority 7 is not one of"),
        ({"channels": ["FAX"]}, "channel 'FAX' is not one of ACTIVE_SESSION"),
    ],
)
def test_an_event_that_the_gateway_would_refuse_is_refused_here(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(EventRefused, match=says):
        made(**changes)


def test_the_deepest_and_largest_payloads_are_accepted() -> None:
    assert made(payload=NESTED, max_payload_bytes=10_000).payload.count(b"{") == 32
    assert len(made(payload={"text": "x" * 89}).payload) == 100


def test_a_payload_message_keeps_its_field_names() -> None:
    payload = pb.OrderEventPayload(order_id="17", fill_price="1.50", timestamp=5)
    sent = json.loads(made(payload=payload, channels=[Channel.EMAIL, "PUSH"]).payload)
    assert sent == {"order_id": "17", "fill_price": "1.50", "timestamp": "5"}
