"""Frames of 5570 and 5571 by literal bytes, and broken input."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.common.messaging import event_frames
from services.common.messaging.event_frames import BadFrame
from services.gen.dexorder.events.v1 import user_events_pb2 as pb

EVENT = pb.UserEvent(user_id="a", event_id="e1", delivery=pb.DeliverySpec(priority=pb.CRITICAL))
BODY = b"\x0a\x01a\x12\x02e1\x32\x02\x08\x02"


def test_event_and_ack_bytes() -> None:
    assert event_frames.encode_event(EVENT) == [b"\x01", b"\x20" + BODY]
    assert event_frames.event_body([b"\x01", b"\x20" + BODY]) == BODY
    ack = pb.EventAck(event_id="e1", status=pb.QUEUED)
    assert event_frames.encode_ack(ack) == [b"\x01", b"\x21\x0a\x02e1\x10\x01"]
    assert event_frames.decode_ack([b"\x01", b"\x21\x0a\x02e1\x10\x01"]) == ack


def test_topic_ends_so_that_no_longer_id_matches_it() -> None:
    frames = event_frames.encode_published(EVENT)
    assert frames == [b"USER:a\x00", b"\x01", b"\x20" + BODY]
    assert event_frames.published_body(frames) == (b"USER:a\x00", BODY)
    assert not event_frames.topic("alice").startswith(event_frames.topic("a"))


@pytest.mark.parametrize(
    ("frames", "reason"),
    [
        ([b"\x01"], "frame_count"),
        ([b"\x01", b"\x20", b""], "frame_count"),
        ([b"\x02", b"\x20"], "version"),
        ([b"\x01", b""], "type"),
        ([b"\x01", b"\x21"], "type"),  # an ack, which only the gateway sends
    ],
)
def test_broken_frames_are_refused_with_the_reason(frames: list[bytes], reason: str) -> None:
    with pytest.raises(BadFrame) as refused:
        event_frames.event_body(frames)
    assert refused.value.reason == reason
    with pytest.raises(BadFrame):
        event_frames.published_body(frames)
    with pytest.raises(BadFrame) as refused:
        event_frames.published_body([b"USER:a\x00", *frames])
    assert refused.value.reason == reason


@given(st.lists(st.binary(max_size=40), max_size=4))
def test_no_bytes_raise_anything_else(frames: list[bytes]) -> None:
    for read in (event_frames.event_body, event_frames.published_body, event_frames.decode_ack):
        try:
            read(frames)
        except BadFrame:
            continue
