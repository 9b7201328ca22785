"""Messages of the UDF protocol to and from bytes: the only place where the given protobuf messages are used.

Points and batches have the same field numbers in Request and Response, so one encoding serves host and agent, and the
bytes of a mirrored point can be passed on as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import TypeVar, cast

from google.protobuf.message import DecodeError, Message

from dexorder_protos.udf import udf_pb2 as pb
from dexorder_udf.errors import ProtocolError
from dexorder_udf.framing import encode_varint, frame, shown, text_hint
from dexorder_udf.options import MOST_OUTPUTS, OptionValue, ValueType
from dexorder_udf.point_writer import PointWriter, int64
from dexorder_udf.points import Batch, Point, Value
from dexorder_udf.session import Edge, MessageKind

FIRST_BYTES = frozenset((each << 3 & 127 | 2) | (128 if each > 15 else 0) for each in MessageKind)
"""First bytes of a Response: the tags of its fields."""

TIMERS, OUTPUT = "dexorder:timers", "dexorder:output:"
"""Options of an info that are never set: it wants marks of the settled time; the type of a field of its output.

The protocol lacks another place for them, and a host that does not know them ignores them.
"""
_MOST_CONSTANTS = 10_000
_KINDS = {each.name.lower(): each for each in MessageKind}
_KINDS_OF = {
    field.message_type.name: MessageKind(field.number)
    for each in (pb.Request, pb.Response)
    for field in each.DESCRIPTOR.fields
    if field.message_type
}
M = TypeVar("M", pb.Request, pb.Response)
_VALUE_FIELDS = {
    ValueType.BOOL: "boolValue",
    ValueType.INT: "intValue",
    ValueType.DOUBLE: "doubleValue",
    ValueType.STRING: "stringValue",
    ValueType.DURATION: "durationValue",
}


@dataclass(frozen=True)
class UdfInfo:
    """Description that a UDF gives of itself.

    Attributes:
        wants: Edge of its input.
        provides: Edge of its output.
        options: Types of the values of each option.
        has_timers: It wants marks of the settled time.
        outputs: Types of the fields of its output, if it declares them; empty if not.
    """

    wants: Edge
    provides: Edge
    options: Mapping[str, tuple[ValueType, ...]]
    has_timers: bool = False
    outputs: Mapping[str, ValueType] = field(default_factory=dict)


def encode_message(message: Message) -> bytes:
    """Return the frame of a management request or response, or of the start or end of a batch."""
    body = message.SerializeToString()
    return frame(encode_varint(_KINDS_OF[message.DESCRIPTOR.name] << 3 | 2) + encode_varint(len(body)) + body)


def init_request(options: Mapping[str, tuple[OptionValue, ...]], task: str, node: str) -> bytes:
    """Return the frame that initialises a UDF; sent without options, too."""
    request = pb.InitRequest(taskID=task, nodeID=node)
    for name, values in options.items():
        option = request.options.add(name=name)
        for each in values:
            setattr(option.values.add(type=pb.ValueType.ValueType(each.type)), _VALUE_FIELDS[each.type], each.value)
    return encode_message(request)


def decode_response(body: bytes) -> pb.Response:
    """Return the message of a response frame; ProtocolError if it is not a Response, or one without content."""
    return _decode(pb.Response, body)


def decode_request(body: bytes) -> pb.Request:
    """Return the message of a request frame; ProtocolError if it is not a Request, or one without content."""
    return _decode(pb.Request, body)


def _decode(kind: type[M], body: bytes) -> M:
    try:
        message = kind.FromString(body)
    except DecodeError:
        raise ProtocolError(f"bytes are not a message ({shown(body)}){text_hint(body)}") from None
    if message.WhichOneof("message") is None:
        raise ProtocolError(
            f"a message has no content ({shown(body)}){text_hint(body)}" if body else "a message is empty"
        )
    return message


def read_info(info: pb.InfoResponse) -> UdfInfo:
    """Return an info in our own types.

    Raises:
        ProtocolError: It has an edge or a type that the protocol does not know.
    """
    try:
        options = {name: tuple(ValueType(each) for each in option.valueTypes) for name, option in info.options.items()}
        outputs = {name.removeprefix(OUTPUT): options.pop(name) for name in [*options] if name.startswith(OUTPUT)}
        has_timers = options.pop(TIMERS, None) is not None
        is_wrong = any(len(name) > MOST_OUTPUTS or len(types) != 1 for name, types in outputs.items())
        if is_wrong or len(outputs) > MOST_OUTPUTS:
            raise ProtocolError(f"its info declares outputs that are not {MOST_OUTPUTS} short names with a type")
        columns = {name: types[0] for name, types in outputs.items()}
        return UdfInfo(Edge(info.wants), Edge(info.provides), options, has_timers, columns)
    except ValueError as error:
        raise ProtocolError(f"its info has an unknown edge or option type: {error}") from None


def encode_points(points: Iterable[Point | Batch]) -> list[bytes]:
    """Return the frames of points and batches, several for each batch.

    Raises:
        ValueError: A value does not fit in the message; names the field and the value.
    """
    writer = PointWriter()
    for is_batch, run in groupby(points, lambda each: isinstance(each, Batch)):
        if is_batch:
            for each in run:
                write(writer, each)
        else:
            alone = cast("list[Point]", list(run))
            writer.add_points(alone, [_constants.of_point(each) for each in alone])
    return writer.take()


def write(writer: PointWriter, item: Point | Batch) -> None:
    """Add a point or a batch; see `encode_points` for the error."""
    if isinstance(item, Batch):
        _write_batch(writer, item)
    else:
        writer.add(item.time_ns, item.fields, _constants.of_point(item))


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


def kind_of(message: pb.Request | pb.Response) -> MessageKind:
    """Return the kind of a message that has content."""
    return _KINDS[message.WhichOneof("message") or ""]


def decode_point(message: pb.Point) -> Point:
    """Return a point; if a field name has values of several types: bool before double, int and string."""
    tags = message.tags
    return Point(
        message.time,
        {name: tags[name] for name in tags},
        _fields(message),
        message.name,
        tuple(message.dimensions),
        message.byName,
        message.database,
        message.retentionPolicy,
    )


def decode_batch_point(message: pb.Point) -> Point:
    """Return a point of a batch, which has the name and the group of the batch."""
    tags = message.tags
    return Point(message.time, {name: tags[name] for name in tags}, _fields(message))


def _fields(message: pb.Point) -> dict[str, Value]:
    # A comprehension over a map of protobuf takes two thirds of the time of dict(map).
    doubles = message.fieldsDouble
    fields: dict[str, Value] = {name: doubles[name] for name in doubles}
    for others in (message.fieldsInt, message.fieldsString):
        for name in others:
            if name not in fields:
                fields[name] = others[name]
    if message.fieldsBool:
        fields.update(message.fieldsBool)
    return fields


def decode_batch(begin: pb.BeginBatch, points: Sequence[Point], end: pb.EndBatch) -> Batch:
    """Return a batch. Its name, tags and time are taken from its end, like in Kapacitor."""
    return Batch(points, end.name, dict(end.tags), end.tmax, begin.byName)


class _Constants:
    """Encoded parts of points that are the same for many: name, tags and group. Bounded."""

    def __init__(self) -> None:
        self._known: dict[tuple[object, ...], bytes] = {}

    def of_point(self, point: Point) -> bytes:
        key = (
            point.name,
            point.dimensions,
            tuple(point.tags.items()),
            point.by_name,
            point.database,
            point.retention_policy,
        )
        found = self._known.get(key)
        return found if found is not None else self._keep(key, _constant_part(point))

    def of_batch_point(self, group: str, tags: Mapping[str, str]) -> bytes:
        key = (group, tuple(tags.items()))
        found = self._known.get(key)
        return found if found is not None else self._keep(key, pb.Point(group=group, tags=tags).SerializeToString())

    def _keep(self, key: tuple[object, ...], encoded: bytes) -> bytes:
        if len(self._known) >= _MOST_CONSTANTS:
            self._known.clear()
        self._known[key] = encoded
        return encoded


_constants = _Constants()


def _constant_part(point: Point) -> bytes:
    return pb.Point(
        name=point.name,
        database=point.database,
        retentionPolicy=point.retention_policy,
        group=point.group,
        dimensions=point.dimensions,
        tags=point.tags,
        byName=point.by_name,
    ).SerializeToString()


def _write_batch(writer: PointWriter, batch: Batch) -> None:
    group, name, tags = batch.group, batch.name, batch.tags
    begin = pb.BeginBatch(name=name, group=group, tags=tags, size=len(batch.points), byName=batch.by_name)
    writer.add_frame(encode_message(begin))
    all_tags = [each.tags for each in batch.points]
    if all_tags and all_tags.count(all_tags[0]) == len(all_tags):
        constants = [_constants.of_batch_point(group, all_tags[0])] * len(all_tags)
    else:
        constants = [_constants.of_batch_point(group, each) for each in all_tags]
    writer.add_points(batch.points, constants)
    end = pb.EndBatch(name=name, group=group, tmax=int64("tmax_ns", batch.tmax_ns), tags=tags, byName=batch.by_name)
    writer.add_frame(encode_message(end))
