"""Messages of the UDF protocol to and from bytes: the only place where the given protobuf messages are used.

Points and batches have the same field numbers in Request and Response, so one encoding serves host and agent, and the
bytes of a mirrored point can be passed on as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from google.protobuf.message import DecodeError, Message

from services.common.udf.errors import ProtocolError
from services.common.udf.framing import encode_varint, frame, shown, text_hint
from services.common.udf.options import OptionValue, ValueType
from services.common.udf.points import Batch, Point
from services.common.udf.session import Edge, Kind
from services.gen.udf import udf_pb2 as pb

POINT_TAG = bytes((Kind.POINT << 3 & 127 | 2 | 128, Kind.POINT >> 4))
BEGIN_TAG = bytes((Kind.BEGIN << 3 & 127 | 2 | 128, Kind.BEGIN >> 4))
END_TAG = bytes((Kind.END << 3 & 127 | 2 | 128, Kind.END >> 4))
"""Field tags of the data messages in Request and Response."""
FIRST_BYTES = frozenset((each << 3 & 127 | 2) | (128 if each > 15 else 0) for each in Kind)
"""First bytes of a Response: the tags of its fields."""

_VALUE_FIELDS = {
    ValueType.BOOL: "boolValue",
    ValueType.INT: "intValue",
    ValueType.DOUBLE: "doubleValue",
    ValueType.STRING: "stringValue",
    ValueType.DURATION: "durationValue",
}


@dataclass(frozen=True)
class UdfInfo:
    """What a UDF says about itself.

    Attributes:
        wants: Edge of its input.
        provides: Edge of its output.
        options: Types of the values of each option.
    """

    wants: Edge
    provides: Edge
    options: Mapping[str, tuple[ValueType, ...]]


def encode_request(request: Message, kind: Kind) -> bytes:
    """Return the frame of a management request or response, given the message of its field ``kind``."""
    body = request.SerializeToString()
    return frame(encode_varint(kind << 3 | 2) + encode_varint(len(body)) + body)


def info_request() -> bytes:
    """Return the frame that asks for the info."""
    return encode_request(pb.InfoRequest(), Kind.INFO)


def init_request(options: Mapping[str, tuple[OptionValue, ...]], task: str, node: str) -> bytes:
    """Return the frame that initialises a UDF; sent without options, too."""
    request = pb.InitRequest(taskID=task, nodeID=node)
    for name, values in options.items():
        option = request.options.add(name=name)
        for each in values:
            setattr(option.values.add(type=pb.ValueType.ValueType(each.type)), _VALUE_FIELDS[each.type], each.value)
    return encode_request(request, Kind.INIT)


def keepalive_request(time_ns: int) -> bytes:
    """Return the frame that asks for a sign of life."""
    return encode_request(pb.KeepaliveRequest(time=time_ns), Kind.KEEPALIVE)


def snapshot_request() -> bytes:
    """Return the frame that asks for the state."""
    return encode_request(pb.SnapshotRequest(), Kind.SNAPSHOT)


def restore_request(snapshot: bytes) -> bytes:
    """Return the frame that gives back a state."""
    return encode_request(pb.RestoreRequest(snapshot=snapshot), Kind.RESTORE)


def decode_response(body: bytes) -> pb.Response:
    """Return the message of a response frame.

    Raises:
        ProtocolError: It is not a Response, or one without content.
    """
    try:
        response = pb.Response.FromString(body)
    except DecodeError:
        raise ProtocolError(f"bytes are not a message ({shown(body)}){text_hint(body)}") from None
    if response.WhichOneof("message") is None:
        raise ProtocolError(
            f"a message has no content ({shown(body)}){text_hint(body)}" if body else "a message is empty"
        )
    return response


def decode_request(body: bytes) -> pb.Request:
    """Return the message of a request frame.

    Raises:
        ProtocolError: It is not a Request, or one without content.
    """
    try:
        request = pb.Request.FromString(body)
    except DecodeError:
        raise ProtocolError(f"bytes are not a message ({shown(body)})") from None
    if request.WhichOneof("message") is None:
        raise ProtocolError("a message has no content")
    return request


def read_info(info: pb.InfoResponse) -> UdfInfo:
    """Return an info in our own types.

    Raises:
        ProtocolError: It has an edge or a type that the protocol does not know.
    """
    try:
        options = {name: tuple(ValueType(each) for each in option.valueTypes) for name, option in info.options.items()}
        return UdfInfo(Edge(info.wants), Edge(info.provides), options)
    except ValueError as error:
        raise ProtocolError(f"its info has an unknown edge or option type: {error}") from None


def encode_points(points: Iterable[Point | Batch]) -> list[bytes]:
    """Return the frames of points and batches, several for each batch.

    Raises:
        ValueError: A value does not fit in the message; names the field and the value.
    """
    frames: list[bytes] = []
    for each in points:
        if isinstance(each, Batch):
            frames += _batch_frames(each)
        else:
            frames.append(_point_frame(_point_message(each)))
    return frames


def join_frames(frames: Iterable[bytes], chunk_bytes: int) -> list[bytes]:
    """Join frames to chunks of about this size, each of which ends with a frame."""
    chunks: list[bytes] = []
    part: list[bytes] = []
    size = 0
    for each in frames:
        part.append(each)
        size += len(each)
        if size >= chunk_bytes:
            chunks.append(b"".join(part))
            part, size = [], 0
    if part:
        chunks.append(b"".join(part))
    return chunks


def decode_point(message: pb.Point) -> Point:
    """Return a point; if a field name has values of several types: bool before double, int and string."""
    fields: dict[str, bool | int | float | str] = {}
    if message.fieldsString:
        fields.update(message.fieldsString)
    if message.fieldsInt:
        fields.update(message.fieldsInt)
    fields.update(message.fieldsDouble)
    if message.fieldsBool:
        fields.update(message.fieldsBool)
    return Point(
        message.time,
        dict(message.tags),
        fields,
        message.name,
        tuple(message.dimensions),
        message.byName,
        message.database,
        message.retentionPolicy,
    )


def decode_batch(begin: pb.BeginBatch, points: Sequence[Point], end: pb.EndBatch) -> Batch:
    """Return a batch. Its name, tags and time are those of its end, as Kapacitor takes them."""
    return Batch(points, end.name, dict(end.tags), end.tmax, begin.byName)


def _point_message(point: Point) -> pb.Point:
    message = pb.Point(
        time=_int64("time_ns", point.time_ns),
        name=point.name,
        database=point.database,
        retentionPolicy=point.retention_policy,
        group=point.group,
        dimensions=point.dimensions,
        tags=point.tags,
        byName=point.by_name,
    )
    _set_fields(message, point)
    return message


def _set_fields(message: pb.Point, point: Point) -> None:
    for name, value in point.fields.items():
        kind = type(value)
        if kind is float:
            message.fieldsDouble[name] = value  # type: ignore[assignment]
        elif kind is bool:
            message.fieldsBool[name] = value  # type: ignore[assignment]
        elif kind is int:
            message.fieldsInt[name] = _int64(name, value)  # type: ignore[arg-type]
        elif kind is str:
            message.fieldsString[name] = value  # type: ignore[assignment]
        else:
            raise ValueError(f"field {name}: {value!r} is not a bool, int, float or str")


def _point_frame(message: pb.Point) -> bytes:
    body = message.SerializeToString()
    return frame(POINT_TAG + encode_varint(len(body)) + body)


def _batch_frames(batch: Batch) -> list[bytes]:
    group = batch.group
    name, tags = batch.name, batch.tags
    begin = pb.BeginBatch(name=name, group=group, tags=tags, size=len(batch.points), byName=batch.by_name)
    frames = [encode_request(begin, Kind.BEGIN)]
    for each in batch.points:
        message = pb.Point(time=_int64("time_ns", each.time_ns), group=group, tags=each.tags)
        _set_fields(message, each)
        frames.append(_point_frame(message))
    end = pb.EndBatch(name=name, group=group, tmax=_int64("tmax_ns", batch.tmax_ns), tags=tags, byName=batch.by_name)
    frames.append(encode_request(end, Kind.END))
    return frames


def _int64(name: str, value: int) -> int:
    if not -(2**63) <= value < 2**63:
        raise ValueError(f"{name}: {value} does not fit in 64 bits")
    return value
