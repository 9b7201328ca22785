"""Validation of events: fields that are omitted, unknown or out of range, and the texts of refusals."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dexorder_common.model.user_events import MAX_ID_CHARACTERS, Channel, Preference, Priority
from dexorder_gateway.events.event_codec import EventRefusal, payload_problem, read_event
from dexorder_gateway.events.model import EventKey
from dexorder_protos.dexorder.events.v1 import user_events_pb2 as pb
from tests.unit.services.gateway.events.samples import body, event, user_event

LIMIT = 65_536


def test_event_is_read_as_it_was_sent() -> None:
    sent = body(channels=[(0, False), (2, True)])
    read = read_event("c", sent)
    assert not isinstance(read, EventRefusal)
    assert (read.key, read.user_id, read.event_type, read.timestamp_ms) == (
        EventKey("c", "e1"),
        "alice",
        1,
        1_700_000_000_000,
    )
    assert (read.priority, read.payload, read.body) == (Priority.NORMAL, b'{"order_id": "o1"}', sent)
    assert read.channels == (Preference(Channel.ACTIVE_SESSION), Preference(Channel.TELEGRAM, True))


def test_unknown_types_are_kept_and_unknown_priorities_are_critical() -> None:
    assert event(event_type=99).event_type == 99
    assert event(priority=7).priority is Priority.CRITICAL and event(priority=-1).priority is Priority.CRITICAL
    assert event(channels=[(42, False), (3, False)]).channels == (Preference(Channel.EMAIL),)
    assert event(channels=[]).channels == ()
    duplicates = event(channels=[(2, False), (3, False), (2, True), (2, False), (3, False)]).channels
    assert duplicates == (Preference(Channel.TELEGRAM), Preference(Channel.EMAIL), Preference(Channel.TELEGRAM, True))


def without(field: str) -> bytes:
    message = user_event()
    message.ClearField(field)  # type: ignore[arg-type]
    return message.SerializeToString()


@pytest.mark.parametrize(
    ("sent", "event_id", "reason"),
    [
        (b"", "", "event_id is missing"),
        (b"\xff\xff", "", "the event does not parse"),
        (b"\x0a\x02\xff\xfe", "", "the event does not parse"),
        (without("event_id"), "", "event_id is missing"),
        (without("user_id"), "e1", "user_id is missing"),
        (without("delivery"), "e1", "delivery is missing"),
        (body(user_id="a\x00b"), "e1", r"user_id has the unprintable character '\x00'"),
        (body("e\n"), "e\n", r"event_id has the unprintable character '\n'"),
        (body("e" * 257), "e" * 256, "event_id is longer than 256 characters"),
        (body(user_id="u" * 257), "e1", "user_id is longer than 256 characters"),
        (body(channels=[(42, False), (77, True)]), "e1", "no usable channel"),
        (body(channels=[(2, False)] * 65), "e1", "more than 64 channels"),
    ],
)
def test_an_event_is_refused_with_its_id_and_the_reason(sent: bytes, event_id: str, reason: str) -> None:
    refused = read_event("c", sent)
    assert isinstance(refused, EventRefusal)
    assert (refused.event_id, refused.reason) == (event_id, reason)


def problem(payload: bytes) -> str:
    found = payload_problem("e1", event(payload=payload).payload, LIMIT)
    return found.reason if found else ""


@pytest.mark.parametrize(
    "payload", [b"", b"{}", b"null", b'{"a": [1]}', b'{"a":' * 32 + b"1" + b"}" * 32, b'"' + b"x" * (LIMIT - 2) + b'"']
)
def test_plain_json_is_accepted(payload: bytes) -> None:
    assert problem(payload) == ""


@pytest.mark.parametrize(
    "payload",
    [
        b" ",
        b"{",
        b"\xff\xfe",
        b"not json",
        b'{"a": NaN}',
        b'{"a": Infinity}',
        b'{"a": 1, "a": 2}',
        b'{"a": 1} x',
        b"[" * 33 + b"]" * 33,
        b'{"a":' * 33 + b"1" + b"}" * 33,
        b"1e400",
    ],
)
def test_other_payloads_are_refused(payload: bytes) -> None:
    assert problem(payload) == "invalid payload"


def test_payload_size_is_exact() -> None:
    assert problem(b'"' + b"x" * (LIMIT - 1) + b'"') == "payload too large"
    assert problem(b"x" * (LIMIT + 1)) == "payload too large"


@given(st.binary(max_size=60))
def test_no_bytes_raise_and_an_accepted_event_is_complete(sent: bytes) -> None:
    read = read_event("c", sent)
    if isinstance(read, EventRefusal):
        assert read.reason and len(read.event_id) <= MAX_ID_CHARACTERS
    else:
        given_event = pb.UserEvent.FromString(sent)
        assert read.key.event_id and read.user_id and given_event.HasField("delivery")
