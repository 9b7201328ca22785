"""Frames of sessions, compared with protobuf's own encodings."""

from __future__ import annotations

import json
from typing import Any

import pytest
from google.protobuf import json_format
from hypothesis import given, settings
from hypothesis import strategies as st

from dexorder_common.model.user_events import Priority
from dexorder_gateway.events.delivery.changes import SessionEvent
from dexorder_gateway.events.event_codec import Published, read_event, read_published
from dexorder_gateway.events.model import Event, EventKey, EventMessage
from dexorder_gateway.events.sessions.session_frames import (
    EventFrame,
    OpenedFrame,
    field_head,
    join_frames,
    serialized_field,
)
from dexorder_gateway.events.store.event_log import Replay
from dexorder_protos.dexorder.events.v1 import event_service_pb2 as pb
from dexorder_protos.dexorder.events.v1 import user_events_pb2 as events_pb

TEXT = st.text(st.characters(exclude_categories=["Cs"]))


def sent(**fields: Any) -> events_pb.UserEvent:
    usual: dict[str, Any] = {
        "user_id": "alice",
        "event_id": "e1",
        "timestamp": 1,
        "event_type": 1,
        "payload": b"{}",
        "delivery": events_pb.DeliverySpec(priority=events_pb.CRITICAL),
    }
    return events_pb.UserEvent(**(usual | fields))


def kept(event: events_pb.UserEvent, sequence: int = 1, *, settled: bool = False) -> SessionEvent:
    read = read_event("box", event.SerializeToString())
    assert isinstance(read, Event)
    return SessionEvent(event.user_id, sequence, read, settled=settled)


def render(one: Event) -> EventMessage:
    return EventMessage("", "title", "body", one.priority, 0)


CHANNELS = st.lists(
    st.builds(events_pb.ChannelPreference, channel=st.integers(0, 8), only_if_active=st.booleans()), max_size=3
)


@settings(max_examples=50)
@given(
    TEXT,
    TEXT,
    st.binary(),
    st.integers(0, 2**63 - 1),
    st.integers(-5, 120),
    st.integers(0, 2**53),
    st.booleans(),
    st.integers(-1, 5),
    CHANNELS,
)
def test_all_forms_are_equal_to_protobufs_own(
    user: str,
    text: str,
    payload: bytes,
    sequence: int,
    kind: int,
    timestamp: int,
    settled: bool,
    priority: int,
    channels: list[events_pb.ChannelPreference],
) -> None:
    delivery = events_pb.DeliverySpec(priority=priority, channels=channels)  # type: ignore[arg-type]
    event = sent(user_id=user, payload=payload, event_type=kind, timestamp=timestamp, delivery=delivery)
    read = Event(EventKey("box", "e1"), user, timestamp, kind, payload, Priority.NORMAL, (), b"")
    message = EventMessage("", text, text[::-1], Priority.NORMAL, 0)
    shown = EventFrame(
        "box", event.SerializeToString(), lambda _: message, event=read, sequence=sequence, settled=settled
    )
    untold = pb.SessionEvent(sequence=sequence, container="box", event=event, settled=settled)
    assert pb.WatchEventsResponse.FromString(shown.part).events == [untold]
    told = pb.SessionEvent(title=text, body=text[::-1])
    told.MergeFrom(untold)
    wire = pb.WatchEventsResponse.FromString(shown.wire)
    assert wire.event == told
    said = json_format.MessageToDict(wire, always_print_fields_with_no_presence=True)
    assert json.loads(shown.text) | {"events": []} == said


def test_an_event_is_rendered_and_serialized_once_for_all_sessions() -> None:
    calls = []

    def render(one: Event) -> EventMessage:
        calls.append(one)
        return EventMessage("", "title", "", one.priority, 0)

    shown = EventFrame.stored(kept(sent()), render)
    assert not calls
    assert shown.text is shown.text
    assert shown.wire is shown.wire
    assert len(calls) == 1


@pytest.mark.parametrize("payload", [b"", b"{}", b"[1]"])
@pytest.mark.parametrize("fast", [True, False])
def test_sessions_receive_the_bytes_that_were_sent_and_always_a_payload(fast: bool, payload: bytes) -> None:
    channels = [events_pb.ChannelPreference(channel=events_pb.WEB)]
    event = sent(payload=payload, delivery=events_pb.DeliverySpec(channels=channels))
    if fast:
        published = read_published(event.SerializeToString())
        assert isinstance(published, Published) and published.payload == (payload or b"{}")
        shown, sequence = EventFrame("box", published.body, render), 0
    else:
        shown, sequence = EventFrame.stored(kept(event), render), 1
    event.payload = payload or b"{}"
    expected = pb.SessionEvent(sequence=sequence, container="box", event=event)
    assert pb.WatchEventsResponse.FromString(shown.part).events == [expected]
    expected.title = "title"
    expected.body = "body"
    assert pb.WatchEventsResponse.FromString(shown.wire).event == expected


@given(st.lists(st.one_of(st.none(), st.integers(0, 600_000)), max_size=12), st.integers(1, 5))
def test_joined_frames_hold_all_events_in_order_up_to_the_limit(sizes: list[int | None], most: int) -> None:
    opening = OpenedFrame("e", 0, 0)
    items = [
        opening
        if size is None
        else EventFrame.stored(kept(sent(payload=b"x" * size), number + 1, settled=True), render)
        for number, size in enumerate(sizes)
    ]
    answers = list(join_frames(items, most))
    told: list[pb.WatchEventsResponse | int] = []
    for answer in answers:
        response = pb.WatchEventsResponse.FromString(answer)
        assert len(response.events) <= most and (len(answer) <= 1 << 20 or len(response.events) == 1)
        assert not any(each.title or each.body for each in response.events)
        assert response.events or answer == opening.wire
        told += [each.sequence for each in response.events] or [response]
    alone = [pb.WatchEventsResponse.FromString(pending.wire) for pending in items]
    assert told == [each.event.sequence if each.HasField("event") else each for each in alone]


def test_the_opening_cursor_is_that_of_the_replay() -> None:
    waiting = tuple(kept(sent(), sequence) for sequence in (5, 9))
    assert OpenedFrame.of(Replay("e", 3, False, waiting), 0).place == ("e", 3)
    opened = pb.WatchEventsResponse.FromString(OpenedFrame.of(Replay("e", 3, True, waiting), 7_999_999).wire)
    assert opened == pb.WatchEventsResponse(reset=pb.Opened(cursor=pb.Cursor(epoch="e", sequence=3), expires_ms=7))


@pytest.mark.parametrize(
    ("number", "size", "head"),
    [
        (1, 0, b"\x0a\x00"),
        (4, 1, b"\x22\x01"),
        (15, 127, b"\x7a\x7f"),
        (16, 128, b"\x82\x01\x80\x01"),
        (4, 16_383, b"\x22\xff\x7f"),
        (4, 16_384, b"\x22\x80\x80\x01"),
    ],
)
def test_head_of_a_field(number: int, size: int, head: bytes) -> None:
    assert field_head(number, size) == head
    assert serialized_field(number, b"x" * size) == head + b"x" * size


@given(TEXT, st.integers(0, 40_000))
def test_fields_equal_those_of_protobuf(title: str, size: int) -> None:
    parts = serialized_field(4, title.encode()) + serialized_field(5, b"x" * size)
    assert pb.SessionEvent.FromString(parts) == pb.SessionEvent(title=title, body="x" * size)
