"""Frames of port 5567, after the ROUTER's identity: ``[0x01][type byte + protobuf]``. Pure.

Other ports give other meanings to the same type bytes; this table is 5567's alone (docs/protocol.md).
"""

from __future__ import annotations

from collections.abc import Sequence

from google.protobuf.message import DecodeError

from services.common.errors import InvalidRequest
from services.gen.dexorder.ingest.v1 import ingest_pb2 as pb

VERSION = b"\x01"
Frame = pb.WorkerReady | pb.WorkComplete | pb.WorkHeartbeat | pb.WorkReject | pb.DataRequest | pb.WorkStop

TYPES: dict[int, type[Frame]] = {
    0x20: pb.WorkerReady,  # ingestor -> relay
    0x21: pb.WorkComplete,  # ingestor -> relay
    0x22: pb.WorkHeartbeat,  # ingestor -> relay
    0x23: pb.WorkReject,  # ingestor -> relay
    0x24: pb.DataRequest,  # relay -> ingestor
    0x25: pb.WorkStop,  # relay -> ingestor
}
FROM_INGESTOR = (pb.WorkerReady, pb.WorkComplete, pb.WorkHeartbeat, pb.WorkReject)
FROM_RELAY = (pb.DataRequest, pb.WorkStop)
_TYPE_OF = {message: number for number, message in TYPES.items()}


class BadFrame(InvalidRequest):
    """Frames that are no message; ``reason`` is one of frame_count, version, type, undecodable."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(text)
        self.reason = reason


def encode(message: Frame) -> list[bytes]:
    """The two frames of a message."""
    return [VERSION, bytes([_TYPE_OF[type(message)]]) + message.SerializeToString()]


def decode(frames: Sequence[bytes]) -> Frame:
    """The message in two frames (identity already taken off).

    Raises:
        BadFrame: Another frame count, version or type, or bytes that do not parse; drop and count it.
    """
    if len(frames) != 2:
        raise BadFrame("frame_count", f"{len(frames)} frames where version and message were expected")
    version, body = frames
    if version != VERSION:
        raise BadFrame("version", f"protocol version {version[:8].hex() or 'empty'} is not 01")
    if not body or body[0] not in TYPES:
        raise BadFrame("type", f"message type {body[:1].hex() or 'missing'} is none of 20-25")
    try:
        return TYPES[body[0]].FromString(body[1:])
    except DecodeError as error:
        raise BadFrame("undecodable", f"message of type {body[0]:02x} does not parse: {error}") from error
