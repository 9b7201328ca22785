"""What sessions get, held against protobuf's own JSON."""

from __future__ import annotations

import json
from typing import Any

from google.protobuf import json_format
from hypothesis import given, settings
from hypothesis import strategies as st

from services.gateway.events.changes import Show
from services.gateway.events.checking import Published, read_published
from services.gateway.events.model import Event, EventKey, Message, Priority
from services.gateway.events.records import Informed, Replay
from services.gateway.events.shown import Opening, Shown, together
from services.gen.dexorder.events.v1 import event_service_pb2 as pb
from services.gen.dexorder.events.v1 import user_events_pb2 as events_pb

TEXT = st.text(st.characters(exclude_categories=["Cs"]))


def event(**fields: Any) -> Event:
    usual: dict[str, Any] = {
        "key": EventKey("local", "e1"), "user_id": "alice", "timestamp_ms": 1, "event_type": 1, "payload": b"{}",
        "priority": Priority.CRITICAL, "channels": (), "body": b"",
    }  # fmt: skip
    return Event(**(usual | fields))


def render(one: Event) -> Message:
    return Message("", "title", "body", one.priority, 0)


@settings(max_examples=50)
@given(
    TEXT, TEXT, TEXT, st.binary(), st.integers(0, 2**63 - 1), st.integers(-5, 120), st.integers(0, 2**53), st.booleans()
)
def test_both_forms_say_the_same_and_are_protobufs_own(
    user: str, event_id: str, text: str, payload: bytes, sequence: int, kind: int, timestamp: int, settled: bool
) -> None:
    one = event(key=EventKey("box", event_id), user_id=user, payload=payload, event_type=kind, timestamp_ms=timestamp)
    message = Message("", text, text[::-1], one.priority, 0)
    shown = Shown("box", one, lambda _: message, sequence=sequence, settled=settled)
    wire = pb.SubscribeResponse.FromString(shown.wire)
    said = json_format.MessageToDict(wire, always_print_fields_with_no_presence=True)
    assert json.loads(shown.text) | {"events": []} == said
    assert (wire.event.event.payload, wire.event.event.event_type, wire.event.event.timestamp) == (
        payload, kind, timestamp
    )  # fmt: skip
    assert (wire.event.sequence, wire.event.container, wire.event.settled) == (sequence, "box", settled)
    assert (wire.event.title, wire.event.body) == (text, text[::-1])


def test_an_event_is_rendered_and_serialized_once_for_all_sessions() -> None:
    calls = []

    def render(one: Event) -> Message:
        calls.append(one)
        return Message("", "title", "", one.priority, 0)

    shown = Shown("local", event(), render)
    assert not calls
    assert shown.text is shown.text
    assert shown.wire is shown.wire
    assert len(calls) == 1


def test_an_informational_event_has_no_place_and_loses_its_channels() -> None:
    body = events_pb.UserEvent(
        user_id="alice", event_id="i1", timestamp=5, event_type=events_pb.STRATEGY_LOG, payload=b"[]",
        delivery=events_pb.DeliverySpec(channels=[events_pb.ChannelPreference(channel=events_pb.WEB)]),
    )  # fmt: skip
    published = read_published(body.SerializeToString())
    assert isinstance(published, Published)
    shown = Shown.informed(
        Informed("alice", "box", published.event), lambda one: Message("", one.priority.name, "", one.priority, 0)
    )
    body.delivery.ClearField("channels")
    assert pb.SubscribeResponse.FromString(shown.wire).event == pb.SessionEvent(
        container="box", event=body, title="INFORMATIONAL"
    )
    assert pb.SubscribeResponse.FromString(shown.part).events == [pb.SessionEvent(container="box", event=body)]


@given(st.lists(st.one_of(st.none(), st.integers(0, 600_000)), max_size=12), st.integers(1, 5))
def test_events_that_come_together_are_all_there_in_order_and_not_too_many(sizes: list[int | None], most: int) -> None:
    opening = Opening("e", 0, 0)
    items = [
        opening if size is None else Shown("box", event(payload=b"x" * size), render, sequence=number + 1, settled=True)
        for number, size in enumerate(sizes)
    ]
    answers = list(together(items, most))
    told: list[pb.SubscribeResponse | int] = []
    for answer in answers:
        response = pb.SubscribeResponse.FromString(answer)
        assert len(response.events) <= most and (len(answer) <= 1 << 20 or len(response.events) == 1)
        assert not any(each.title or each.body for each in response.events)
        assert response.events or answer == opening.wire
        told += [each.sequence for each in response.events] or [response]
    alone = [pb.SubscribeResponse.FromString(item.wire) for item in items]
    assert told == [each.event.sequence if each.HasField("event") else each for each in alone]


def test_a_session_is_not_told_of_a_place_after_what_still_comes() -> None:
    waiting = tuple(Show("alice", sequence, event()) for sequence in (5, 9))
    assert Opening.of(Replay("e", 20, False, waiting), 0).place == ("e", 4)
    assert Opening.of(Replay("e", 20, False, ()), 0).place == ("e", 20)
    assert Opening.of(Replay("e", 3, False, waiting), 0).place == ("e", 3)
    opened = pb.SubscribeResponse.FromString(Opening.of(Replay("e", 3, True, waiting), 7_999_999).wire)
    assert opened == pb.SubscribeResponse(reset=pb.Opened(cursor=pb.Cursor(epoch="e", sequence=3), expires_at=7))
