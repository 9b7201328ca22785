"""Frames of each ZeroMQ port: ``[0x01][type byte + protobuf]`` behind the port's own identity or topic.

A port gives the type bytes its own meaning, so each has its own table (docs/protocol.md, docs/gateway-events.md).

5567  relay, ROUTER     ingestor -> relay  0x20 WorkerReady, 0x21 WorkComplete, 0x22 WorkHeartbeat, 0x23 WorkReject
                        relay -> ingestor  0x24 DataRequest, 0x25 WorkStop
5570  gateway, SUB      container -> gateway  topic, then 0x20 UserEvent
5571  gateway, ROUTER   container -> gateway  0x20 UserEvent
                        gateway -> container  0x21 EventAck

A topic is ``USER:`` + user_id + NUL. ZMQ matches topics by their start; the NUL keeps `a` from receiving `alice`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Generic, TypeVar

from google.protobuf.message import DecodeError, Message

from dexorder_common.model.errors import InvalidRequest
from dexorder_protos.dexorder.events.v1 import user_events_pb2
from dexorder_protos.dexorder.ingest.v1 import ingest_pb2

VERSION = b"\x01"
M = TypeVar("M", bound=Message)


class BadFrame(InvalidRequest):
    """Frames that are not a message; ``reason`` is frame_count, version, type or undecodable."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason


class FrameCodec(Generic[M]):
    """Codec of the messages of one port."""

    def __init__(self, types: Mapping[int, type[M]]) -> None:
        """Take the message class of each type byte."""
        self._types = dict(types)
        self._type_of = {message: bytes([number]) for number, message in types.items()}
        self._span = f"{min(types):02x}-{max(types):02x}" if len(types) > 1 else f"{min(types):02x}"

    @property
    def names(self) -> list[str]:
        """Names of the messages."""
        return [message.DESCRIPTOR.name for message in self._types.values()]

    def encode(self, message: M) -> list[bytes]:
        """Return the two frames of a message."""
        return [VERSION, self._type_of[type(message)] + message.SerializeToString()]

    def check(self, frames: Sequence[bytes]) -> type[M]:
        """Return the class of the message in two frames (identity or topic already removed) without parsing it.

        Raises:
            BadFrame: The frame count, the version or the type is wrong.
        """
        if len(frames) != 2:
            raise BadFrame("frame_count", f"{len(frames)} frames where version and message were expected")
        version, body = frames
        if version != VERSION:
            raise BadFrame("version", f"protocol version {version[:8].hex() or 'empty'} is not 01")
        if not body or body[0] not in self._types:
            raise BadFrame("type", f"message type {body[:1].hex() or 'missing'} is not in {self._span}")
        return self._types[body[0]]

    def decode(self, frames: Sequence[bytes]) -> M:
        """Return the message in two frames (identity or topic already removed).

        Raises:
            BadFrame: As `check`, or the bytes do not parse. The receiver drops and counts the message.
        """
        kind = self.check(frames)
        try:
            return kind.FromString(frames[1][1:])
        except DecodeError as error:
            number = frames[1][0]
            raise BadFrame("undecodable", f"message of type {number:02x} does not parse: {error}") from error


WorkFrame = (
    ingest_pb2.WorkerReady
    | ingest_pb2.WorkComplete
    | ingest_pb2.WorkHeartbeat
    | ingest_pb2.WorkReject
    | ingest_pb2.DataRequest
    | ingest_pb2.WorkStop
)
FROM_INGESTOR = (ingest_pb2.WorkerReady, ingest_pb2.WorkComplete, ingest_pb2.WorkHeartbeat, ingest_pb2.WorkReject)
FROM_RELAY = (ingest_pb2.DataRequest, ingest_pb2.WorkStop)
_WORK: FrameCodec[WorkFrame] = FrameCodec(dict(enumerate((*FROM_INGESTOR, *FROM_RELAY), start=0x20)))
_EVENTS: FrameCodec[user_events_pb2.UserEvent] = FrameCodec({0x20: user_events_pb2.UserEvent})
_ACKS: FrameCodec[user_events_pb2.EventAck] = FrameCodec({0x21: user_events_pb2.EventAck})
PORTS: Mapping[int, tuple[FrameCodec[Any], ...]] = {5567: (_WORK,), 5570: (_EVENTS,), 5571: (_EVENTS, _ACKS)}
"""Codecs of each port."""

encode_work = _WORK.encode
decode_work = _WORK.decode
encode_event = _EVENTS.encode
encode_ack = _ACKS.encode
decode_ack = _ACKS.decode


def topic(user_id: str) -> bytes:
    """Return the topic of a user's events, which no other user's topic starts with."""
    return b"USER:" + user_id.encode() + b"\x00"


def event_body(frames: Sequence[bytes]) -> bytes:
    """Return the unparsed UserEvent of two frames.

    Raises:
        BadFrame: The frame count, the version or the type is wrong.
    """
    _EVENTS.check(frames)
    return frames[1][1:]


def published_body(frames: Sequence[bytes]) -> tuple[bytes, bytes]:
    """Return the topic and the unparsed UserEvent of the three frames on 5570.

    Raises:
        BadFrame: The frame count, the version or the type is wrong.
    """
    if len(frames) != 3:
        raise BadFrame("frame_count", f"{len(frames)} frames where topic, version and message were expected")
    name, version, message = frames
    _EVENTS.check((version, message))
    return name, message[1:]
