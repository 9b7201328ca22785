"""Points of a batch that are decoded together, and become objects when they are looked at.

The messages of points, one after the other, are one message with a repeated field; its number is the number of a point
in a request. Parsing it once takes a fraction of the time of parsing each point and making objects of its values; most
functions read one or two fields of a batch, see `Batch.column`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, overload

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from dexorder_protos.udf import udf_pb2 as pb
from dexorder_udf import messages
from dexorder_udf.framing import encode_varint
from dexorder_udf.point_writer import POINT_TAG
from dexorder_udf.points import Point, Value
from dexorder_udf.session import MessageKind


class _Heads(dict[int, bytes]):
    """Bytes before a point in a message of some size; all agents and hosts write the same."""

    def __missing__(self, size: int) -> bytes:
        heads = (POINT_TAG + encode_varint(max(0, size - len(POINT_TAG) - length)) for length in (1, 2, 3, 4, 5))
        fitting = (each for each in heads if len(each) + _size_in(each) == size)
        found = next(fitting, b"\0")  # which no message starts with
        if len(self) < _MOST_HEADS:
            self[size] = found
        return found


def _size_in(head: bytes) -> int:
    return sum((each & 127) << 7 * place for place, each in enumerate(head[len(POINT_TAG) :]))


_MOST_HEADS = 10_000
_heads = _Heads()


def points_from(bodies: Sequence[bytes], first: int) -> int:
    """Return the place of the first message, from one on, that is not exactly a point."""
    place, heads = first, _heads
    for place in range(first, len(bodies)):
        body = bodies[place]
        if not body.startswith(heads[len(body)]):
            return place
    return len(bodies)


def point_body(point: pb.Point) -> bytes:
    """Return the message of a point, as `points_from` knows it."""
    body = point.SerializeToString()
    return POINT_TAG + encode_varint(len(body)) + body


def _type_of_points() -> Any:
    file = descriptor_pb2.FileDescriptorProto(name="dexorder/udf/points.proto", syntax="proto3")
    file.dependency.append(pb.DESCRIPTOR.name)
    field = file.message_type.add(name="DexorderUdfPoints").field.add(name="points", number=MessageKind.POINT)
    field.label, field.type = field.LABEL_REPEATED, field.TYPE_MESSAGE
    field.type_name = f".{pb.Point.DESCRIPTOR.full_name}"
    pool = descriptor_pool.Default()
    pool.AddSerializedFile(file.SerializeToString())
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("DexorderUdfPoints"))


_Points = _type_of_points()


class BatchPoints(Sequence[Point]):
    """Points of a batch. Each is the same object whenever it is looked at, and may be changed."""

    def __init__(self, bodies: Sequence[bytes]) -> None:
        """Parse the messages of points.

        Raises:
            ProtocolError: One of them is not a message.
        """
        try:
            self._messages: Sequence[pb.Point] = _Points.FromString(b"".join(bodies)).points
        except DecodeError:
            for each in bodies:
                messages.decode_request(each)
            raise
        self._made: dict[int, Point] = {}

    def column(self, name: str) -> list[Value | None]:
        """Return the values of a field in the order of the points; None where a point does not have it."""
        found: list[Value | None] = [each.fieldsDouble.get(name) for each in self._messages]
        if self._made or None in found or any(each.fieldsBool for each in self._messages):
            return [self._value(place, name) for place in range(len(found))]
        return found

    def _value(self, place: int, name: str) -> Value | None:
        made = self._made.get(place)
        if made is not None:
            return made.fields.get(name)
        message = self._messages[place]
        for fields in (message.fieldsBool, message.fieldsDouble, message.fieldsInt, message.fieldsString):
            if name in fields:
                value: Value = fields[name]
                return value
        return None

    def _at(self, place: int) -> Point:
        found = self._made.get(place)
        if found is None:
            found = self._made[place] = messages.decode_batch_point(self._messages[place])
        return found

    def __len__(self) -> int:
        return len(self._messages)

    @overload
    def __getitem__(self, place: int) -> Point: ...
    @overload
    def __getitem__(self, place: slice) -> list[Point]: ...
    def __getitem__(self, place: int | slice) -> Point | list[Point]:
        places = range(len(self._messages))[place]
        return self._at(places) if isinstance(places, int) else [self._at(each) for each in places]

    def __iter__(self) -> Iterator[Point]:
        return map(self._at, range(len(self._messages)))

    def __eq__(self, other: object) -> bool:
        return [*self] == [*other] if isinstance(other, Sequence) else NotImplemented

    def __add__(self, other: Sequence[Point]) -> list[Point]:
        return [*self, *other]

    def __radd__(self, other: Sequence[Point]) -> list[Point]:
        return [*other, *self]

    def __repr__(self) -> str:
        return repr([*self])
