"""Frames of user events, on both ports ``[0x01][type byte + protobuf]`` (docs/gateway-events.md). Pure.

5570, container -> gateway: the topic ``USER:`` + user_id + NUL before them; the NUL keeps `a` from hearing `alice`, as
ZMQ matches topics by their beginning. 5571: container -> gateway UserEvent, gateway -> container EventAck, after the
ROUTER's identity.
"""

from __future__ import annotations

from collections.abc import Sequence

from services.common.messaging.frames import VERSION as VERSION
from services.common.messaging.frames import BadFrame as BadFrame
from services.common.messaging.frames import FrameCodec
from services.gen.dexorder.events.v1 import user_events_pb2 as pb

_EVENTS: FrameCodec[pb.UserEvent] = FrameCodec({0x20: pb.UserEvent})
_ACKS: FrameCodec[pb.EventAck] = FrameCodec({0x21: pb.EventAck})
_TOPIC, _END = b"USER:", b"\x00"

encode_event = _EVENTS.encode
encode_ack = _ACKS.encode
decode_ack = _ACKS.decode


def topic(user_id: str) -> bytes:
    """What to subscribe to for the events of a user, and of no other whose id begins alike."""
    return _TOPIC + user_id.encode() + _END


def encode_published(event: pb.UserEvent) -> list[bytes]:
    """The three frames of an event on 5570."""
    return [topic(event.user_id), *_EVENTS.encode(event)]


def event_body(frames: Sequence[bytes]) -> bytes:
    """The UserEvent of two frames, not parsed.

    Raises:
        BadFrame: Another frame count, version or type.
    """
    _EVENTS.check(frames)
    return frames[1][1:]


def published_body(frames: Sequence[bytes]) -> tuple[bytes, bytes]:
    """Topic and UserEvent, not parsed, of the three frames on 5570.

    Raises:
        BadFrame: Another frame count, version or type.
    """
    if len(frames) != 3:
        raise BadFrame("frame_count", f"{len(frames)} frames where topic, version and message were expected")
    named, version, message = frames
    _EVENTS.check((version, message))
    return named, message[1:]
