"""Messages of source.v1: records as bytes, offsets, and the handshake that opens a stream.

Only this module builds a ReadResponse. A record is assembled by hand, field by field, because a protobuf object for
each one would cost as much as reading it from Kafka:

    ReadResponse  0a len Result  12 00                    result 1; status 2, all defaults: no eot, SUCCESS
    Result        0a len payload                          payload 1
                  12 len (0a len offset  10 partition)    offset 2: its digits 1, partition_id 2
                  1a len (08 seconds  10 nanos)           event_time 3
                  22 len key                              keys 4
                  2a len (0a len name  12 len value) ...  headers 5, one entry each

Lengths and numbers are varints. A default (empty, or 0) takes no byte, except in a header's entry, as in protobuf.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, Protocol

from google.protobuf.empty_pb2 import Empty

from dexorder_common.kafka.client_options import WithHeaders, headers_of
from dexorder_common.model.errors import InvalidRequest
from dexorder_protos.source.v1 import source_pb2 as pb
from dexorder_udsource import replay

BASE64 = b"base64:"


class SourceRecord(WithHeaders, Protocol):
    """Methods of a confluent-kafka message that are used here."""

    def timestamp(self) -> tuple[int, int]: ...  # noqa: D102
    def key(self) -> bytes | None: ...  # noqa: D102
    def value(self) -> bytes | None: ...  # noqa: D102


_MORE = pb.ReadResponse.Status(eot=False, code=pb.ReadResponse.Status.SUCCESS)
_MORE_FIELD = pb.ReadResponse(status=_MORE).SerializeToString()


def _end(**status: Any) -> bytes:
    return pb.ReadResponse(status=pb.ReadResponse.Status(eot=True, **status)).SerializeToString()


READ_GREETING = pb.ReadResponse(handshake=pb.Handshake(sot=True), status=_MORE).SerializeToString()
END_OF_BATCH = _end()
END_OF_RANGE = _end(msg=replay.COMPLETE)
ACKED = pb.AckResponse(result=pb.AckResponse.Result(success=Empty()))
ACK_GREETING = pb.AckResponse(handshake=pb.Handshake(sot=True), result=ACKED.result)
NACKED = pb.NackResponse(result=pb.NackResponse.Result(success=Empty()))


def failed_batch(reason: str) -> bytes:
    """Return the end of a batch for which Kafka could not be read."""
    return _end(code=pb.ReadResponse.Status.FAILURE, error=pb.ReadResponse.Status.OTHER, msg=reason)


def as_text(value: bytes) -> bytes:
    """Return bytes for a proto string: UTF-8 unchanged, anything else as ``base64:`` and its base64.

    UTF-8 that starts with ``base64:`` is encoded too, so that the prefix is unambiguous.
    """
    try:
        value.decode()
    except UnicodeDecodeError:
        return BASE64 + base64.b64encode(value)
    return BASE64 + base64.b64encode(value) if value.startswith(BASE64) else value


def encode_record(record: SourceRecord) -> bytes:
    """Return the ReadResponse of a record.

    A null key gives no key, a null value or header an empty one. The last of several headers of one name wins. A record
    without a timestamp gets 1970: Numaflow crashes without an event time, and the current time would differ in a
    replay.
    """
    value, key, headers = record.value() or b"", record.key(), headers_of(record)
    digits = b"%d" % (record.offset() or 0)
    partition = _partition(record.partition() or 0)
    # Both are shorter than 128 bytes, so one byte holds their length.
    rest = b"\x12%c\x0a%c%b%b%b" % (
        2 + len(digits) + len(partition),
        len(digits),
        digits,
        partition,
        _event_time(max(0, record.timestamp()[1])),
    )
    if key is not None:
        rest += _short_key(key) if len(key) <= _SHORT_KEY else _key(key)
    if headers:
        for name, data in dict(headers).items():
            entry = b"".join((*_field(b"\x0a", name.encode()), *_field(b"\x12", as_text(data or b""))))
            rest = b"".join((rest, *_field(b"\x2a", entry)))
    if not value:
        return b"".join((b"\x0a", _varint(len(rest)), rest, _MORE_FIELD))
    size = _varint(len(value))
    whole = 1 + len(size) + len(value) + len(rest)
    return b"".join((b"\x0a", _varint(whole), b"\x0a", size, value, rest, _MORE_FIELD))


def _key(key: bytes) -> bytes:
    return b"".join(_field(b"\x22", as_text(key)))


_SHORT_KEY = 64
_short_key = lru_cache(maxsize=4_096)(_key)  # most topics have few keys: a market, a user


def _field(tag: bytes, data: bytes) -> tuple[bytes, bytes, bytes]:
    return tag, _varint(len(data)), data


@lru_cache(maxsize=1_024)
def _partition(number: int) -> bytes:
    return b"\x10" + _varint(number) if number else b""


@lru_cache(maxsize=4_096)  # records produced together share a millisecond
def _event_time(time_ms: int) -> bytes:
    seconds, rest_ms = divmod(time_ms, 1_000)
    body = b"\x08" + _varint(seconds) if seconds else b""
    body += b"\x10" + _varint(rest_ms * 1_000_000) if rest_ms else b""
    return b"".join(_field(b"\x1a", body))


def _long_varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


_SHORT_VARINTS = tuple(_long_varint(number) for number in range(1 << 14))
"""Varints of at most two bytes, which nearly every length is."""


def _varint(number: int) -> bytes:
    return _SHORT_VARINTS[number] if number < 1 << 14 else _long_varint(number)


def to_pairs(offsets: Iterable[pb.Offset]) -> list[tuple[int, int]]:
    """Return the (partition, offset) pair of each offset.

    Raises:
        InvalidRequest: An offset is not a decimal number below 2**63.
    """
    return [(o.partition_id, replay.parse_number("offset", o.offset)) for o in offsets]


class Handshake:
    """State of one stream of ReadFn or AckFn.

        state      message of the client   next
        OPENED     handshake with sot      GREETED
        GREETED    request                 GREETED

    Any other message is an error, which ends the stream. The client waits for the server's handshake before it sends
    requests. The caller sends the answers to both.
    """

    def __init__(self) -> None:
        self.greeted = False
        """Whether the handshake was received; every message after it is a request."""

    def receive(self, *, handshake: bool, sot: bool, request: bool) -> None:
        """Take the next message of the client, given which of these parts and flags it has.

        Raises:
            InvalidRequest: The protocol does not allow this message next.
        """
        if handshake and request:
            raise InvalidRequest("a message must have either a handshake or a request, not both")
        if not self.greeted and not (handshake and sot):
            raise InvalidRequest("the first message must be a handshake with sot = true")
        if self.greeted and handshake:
            raise InvalidRequest("duplicate handshake: the stream is open already")
        if self.greeted and not request:
            raise InvalidRequest("the message has neither a handshake nor a request")
        self.greeted = True
