"""Every given type as text, and nothing that a payload can hold makes it fail or plays tricks."""

from __future__ import annotations

import json
from typing import Any

import pytest
from google.protobuf import json_format
from hypothesis import given
from hypothesis import strategies as st

from dexorder_common.model.user_events import Priority
from dexorder_gateway.events.channels.rendering import render
from dexorder_gateway.events.model import Event, EventKey, EventMessage
from dexorder_protos.dexorder.events.v1 import user_events_pb2 as pb

AT_MS = 1_700_000_000_000
TIMES = ("timestamp", "completed_at", "start_time", "end_time")
UNTOLD = {*TIMES, "annotation_data", "win_rate", "max_drawdown"}
"""Told in another form, or drawn rather than told."""
OF_TYPE: dict[str, Any] = {
    "ORDER": pb.OrderEventPayload,
    "ALERT": pb.AlertEventPayload,
    "POSITION": pb.PositionEventPayload,
    "WORKSPACE": pb.WorkspaceEventPayload,
    "CHART": pb.WorkspaceEventPayload,
    "INDICATOR": pb.WorkspaceEventPayload,
    "STRATEGY": pb.StrategyEventPayload,
    "BACKTEST": pb.BacktestEventPayload,
}


def filled(kind: Any) -> Any:
    """Return a payload with a different value in each field."""
    special = {"win_rate": "0.625", "max_drawdown": "0.08"} | dict.fromkeys(TIMES, AT_MS)
    fields = {
        field.name: 40 + field.number if field.type == field.TYPE_INT32 else f"a value of {field.name}"
        for field in kind.DESCRIPTOR.fields
    }
    return kind(**(fields | {name: value for name, value in special.items() if name in fields}))


def event(event_type: int, payload: bytes) -> Event:
    key = EventKey("alice-bot", "e-1")
    return Event(key, "alice", AT_MS, event_type, payload, Priority.NORMAL, (), b"")


def told(event_type: int, payload: object) -> EventMessage:
    return render(event(event_type, json.dumps(payload).encode()), link_url="")


@pytest.mark.parametrize("name", [name for name in pb.EventType.keys() if name.split("_")[0] in OF_TYPE])  # noqa: SIM118
@pytest.mark.parametrize("own_names", [True, False])
def test_every_field_of_every_payload_is_told(name: str, own_names: bool) -> None:
    payload = filled(OF_TYPE[name.split("_")[0]])
    written = json_format.MessageToJson(payload, preserving_proto_field_name=own_names).encode()
    message = render(event(pb.EventType.Value(name), written), link_url="https://dexorder.test/")
    words = name.replace("_", " ").split()
    assert message.title.split()[0] == words[0].capitalize()
    fields = {field.name: str(value) for field, value in payload.ListFields() if field.name not in UNTOLD}
    if name.startswith("BACKTEST"):
        assert "Share won: 62.5 %" in message.body and "Largest drawdown: 8 %" in message.body
        assert "From: 2023-11-14 22:13:20 UTC" in message.body
        del fields["strategy_id"]  # its name is
    missing = {field: value for field, value in fields.items() if value not in message.body}
    assert not missing
    assert not [line for line in message.body.splitlines()[:-2] if line[0].islower()], "a field that no form knows"
    assert message.body.endswith("2023-11-14 22:13:20 UTC\nhttps://dexorder.test/")


@pytest.mark.parametrize("event_type", pb.EventType.values())
def test_no_given_type_is_told_as_unknown(event_type: int) -> None:
    assert "type" not in told(event_type, {}).title


def test_an_order_reads_like_this() -> None:
    message = told(pb.ORDER_FILLED, {"symbol": "BTC/USDT", "side": "buy", "quantity": "0.5", "fill_price": "64000.1"})
    assert message.title == "Order filled: buy 0.5 BTC/USDT"
    assert message.body == ("Market: BTC/USDT\nSide: buy\nQuantity: 0.5\nFill price: 64000.1\n2023-11-14 22:13:20 UTC")


def test_an_unknown_type_and_an_unexpected_payload_are_told_as_they_came() -> None:
    message = told(99, {"depth": 3, "ok": True, "none": None, "list": [1, "a"]})
    assert message.title == "Event of type 99"
    assert message.body.splitlines()[:3] == ["depth: 3", "ok: yes", 'list: [1, "a"]']
    assert told(pb.ORDER_FILLED, ["x"]).body.splitlines()[0] == '["x"]'
    assert told(pb.ORDER_FILLED, {"other": "x"}).body.splitlines()[0] == "other: x"
    assert render(event(1, b"\xff not JSON"), link_url="").title == "Order filled"


def test_fields_that_a_form_does_not_know_follow_those_it_knows() -> None:
    sent = {"my_extra": "x", "symbol": "BTC/USDT", "none": None, "triggeredPrice": "9", "alert_id": "", "depth": [1, 2]}
    lines = told(pb.ALERT_TRIGGERED, sent).body.splitlines()
    assert lines == ["Market: BTC/USDT", "Price: 9", "my_extra: x", "depth: [1, 2]", "2023-11-14 22:13:20 UTC"]
    assert told(pb.ALERT_TRIGGERED, {"symbol": "BTC"} | {f"x{n}": n for n in range(99)}).body.count("\nx") == 40
    assert len(told(pb.ALERT_TRIGGERED, {f"x{n}": "y" * 499 for n in range(9)}).body) < 1600


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("0.10", "0.1"),
        ("-3", "-3"),
        ("1e400", '{"n": 1e400}'),
        ("18446744073709551617", "18446744073709551617"),
        ("9223372036854775809", "9223372036854775809"),
        ("1e22", "1e+22"),
        ("[1e22,2]", "[1e+22, 2]"),
        ('"00000000000000000000\\n1"', "00000000000000000000 1"),
        ("true", "yes"),
        ('{"a":{"ü":[]}}', '{"a": {"ü": []}}'),
    ],
)
def test_values_are_told_as_they_came(written: str, said: str) -> None:
    message = render(event(99, f'{{"n": {written}}}'.encode()), link_url="")
    assert message.body.splitlines()[0].removeprefix("n: ") == said


def test_a_reference_is_of_the_key_alone() -> None:
    one = render(event(1, b"{}"), link_url="")
    assert one.reference == render(event(2, b"[]"), link_url="").reference
    others = [EventKey("alice-bot", "e-2"), EventKey("alice-bo", "te-1"), EventKey("bob-bot", "e-1")]
    references = {render(event(1, b"{}")._replace(key=key), link_url="").reference for key in others}
    assert len(references | {one.reference}) == 4
    assert len(one.reference) == 32 and set(one.reference) <= set("0123456789abcdef")


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"null",
        b"[" * 100_000,
        b"1" * 5000,
        b'{"win_rate": 1e-999999999}',
        b'{"win_rate": NaN}',
        b'{"symbol": "\\ud800"}',
        b'{"start_time": 1e300, "end_time": "-99999999999999999999"}',
        b'{"a": "\\u202e\\n\\r"}',
    ],
)
@pytest.mark.parametrize("event_type", [1, 10, 44, 99])
def test_nothing_odd_makes_it_fail(payload: bytes, event_type: int) -> None:
    check(render(event(event_type, payload), link_url=""))


def test_a_title_is_one_short_line() -> None:
    message = told(1, {"symbol": "BTC\r\nBcc: x@y.z\n" + "x" * 5000})
    check(message)
    assert "Bcc" in message.title


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner) | st.dictionaries(st.text() | st.sampled_from(["symbol", "winRate", "end_time"]), inner)
    ),
    max_leaves=20,
)


@given(JSON, st.sampled_from([*pb.EventType.values(), 99, -1]), st.integers(-(2**63), 2**63 - 1))
def test_any_json_becomes_clean_text(payload: object, event_type: int, timestamp_ms: int) -> None:
    made = event(event_type, json.dumps(payload).encode())._replace(timestamp_ms=timestamp_ms)
    check(render(made, link_url=""))


def check(message: EventMessage) -> None:
    message.title.encode()
    assert message.title and "\n" not in message.title and "\r" not in message.title and len(message.title) <= 200
    assert len(message.body) < 12_000
    assert all(character == "\n" or character >= " " for character in message.body)
    assert "\u202e" not in message.body + message.title
    message.body.encode()
