"""Kafka records as source.v1 messages, and offsets back. Pure; the only place that builds ReadResponse."""

from __future__ import annotations

import base64
from collections.abc import Iterable
from typing import Any, Protocol

from google.protobuf.empty_pb2 import Empty
from google.protobuf.timestamp_pb2 import Timestamp

from services.gen.source.v1 import source_pb2 as pb
from services.udsource import replay

BASE64 = "base64:"


class KafkaRecord(Protocol):
    """What we use of a confluent-kafka message."""

    def partition(self) -> int | None: ...  # noqa: D102
    def offset(self) -> int | None: ...  # noqa: D102
    def timestamp(self) -> tuple[int, int]: ...  # noqa: D102
    def key(self) -> bytes | None: ...  # noqa: D102
    def value(self) -> bytes | None: ...  # noqa: D102
    def headers(self) -> Any: ...  # noqa: D102 - a list of (str, bytes | None), or None


_MORE = pb.ReadResponse.Status(eot=False, code=pb.ReadResponse.Status.SUCCESS)

READ_GREETING = pb.ReadResponse(handshake=pb.Handshake(sot=True), status=_MORE)
END_OF_BATCH = pb.ReadResponse(status=pb.ReadResponse.Status(eot=True, code=pb.ReadResponse.Status.SUCCESS))
END_OF_RANGE = pb.ReadResponse(
    status=pb.ReadResponse.Status(eot=True, code=pb.ReadResponse.Status.SUCCESS, msg=replay.COMPLETE)
)
ACKED = pb.AckResponse(result=pb.AckResponse.Result(success=Empty()))
ACK_GREETING = pb.AckResponse(handshake=pb.Handshake(sot=True), result=ACKED.result)
NACKED = pb.NackResponse(result=pb.NackResponse.Result(success=Empty()))


def failed_batch(reason: str) -> pb.ReadResponse:
    """The end of a batch for which Kafka could not be read."""
    status = pb.ReadResponse.Status
    return pb.ReadResponse(status=status(eot=True, code=status.FAILURE, error=status.OTHER, msg=reason))


def as_text(value: bytes) -> str:
    """Bytes as a proto string: UTF-8 as it is, anything else as ``base64:`` and its base64.

    UTF-8 that itself starts with ``base64:`` is encoded too, so that the prefix always means what it says.
    """
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return BASE64 + base64.b64encode(value).decode()
    return BASE64 + base64.b64encode(value).decode() if text.startswith(BASE64) else text


def to_response(record: KafkaRecord) -> pb.ReadResponse:
    """One record. A null key is no key, a null value or header is an empty one; of equal header names the last wins.

    A record without a timestamp gets 1970: Numaflow dies of a missing event time, and now would differ in a replay.
    """
    timestamp_ms = max(0, record.timestamp()[1])
    key, headers = record.key(), record.headers()
    response = pb.ReadResponse(
        result=pb.ReadResponse.Result(
            payload=record.value() or b"",
            offset=pb.Offset(offset=b"%d" % (record.offset() or 0), partition_id=record.partition() or 0),
            event_time=Timestamp(seconds=timestamp_ms // 1000, nanos=timestamp_ms % 1000 * 1_000_000),
            keys=() if key is None else (as_text(key),),
        ),
        status=_MORE,
    )
    if headers:
        target = response.result.headers
        for name, value in headers:
            target[name] = as_text(value or b"")
    return response


def to_pairs(offsets: Iterable[pb.Offset]) -> list[tuple[int, int]]:
    """(partition, offset) of each.

    Raises:
        InvalidRequest: An offset is not a decimal number.
    """
    return [(o.partition_id, replay.parse_number("offset", o.offset)) for o in offsets]
