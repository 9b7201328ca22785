"""Points to frames, many at a time.

Points one after another usually have the same names of fields. Such a run is encoded by columns: the bytes that are the
same in all of its messages are copied, and numpy puts times and doubles between them. Short runs, those in which a
field has values of several types, and a client without numpy use a protobuf message for each point, which takes twice
the time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

try:
    import numpy as np
except ModuleNotFoundError:
    np = None  # type: ignore[assignment]

from dexorder_protos.udf import udf_pb2 as pb
from dexorder_udf.framing import MAX_VARINT_BYTES, encode_varint
from dexorder_udf.points import Point, Value
from dexorder_udf.session import MessageKind

POINT_TAG = encode_varint(MessageKind.POINT << 3 | 2)
_TIME_TAG = b"\x08"
_TIME_BYTES = 9
_FIRST_TIME_NS = 1 << 7 * (_TIME_BYTES - 1)
"""Times from 1972 on have varints of nine bytes."""
_DOUBLES, _INTS, _STRINGS, _BOOLS = b"\x42", b"\x4a", b"\x52", b"\x62"
"""Tags of an entry of each map of fields."""
_SHORTEST_RUN, _LONGEST_RUN = 16, 4_096
Column = tuple[Value, ...]
_INT64 = range(-(2**63), 2**63)


class PointWriter:
    """Frames of points and other frames, in the order in which they are added."""

    def __init__(self) -> None:
        self._frames: list[bytes] = []
        self._names: tuple[str, ...] = ()
        self._run: list[tuple[int, Column, bytes]] = []

    def add(self, time_ns: int, fields: Mapping[str, Value], constant: bytes) -> None:
        """Add a point, with the values that it has now.

        Args:
            time_ns: Its time.
            fields: Its fields.
            constant: The rest of its message: name, tags and group.
        """
        names = tuple(fields)
        if names != self._names or len(self._run) >= _LONGEST_RUN:
            self._end_run()
            self._names = names
        self._run.append((time_ns, tuple(fields.values()), constant))

    def add_points(self, points: Sequence[Point], constants: Sequence[bytes]) -> None:
        """Add points; see `add`."""
        names = set(map(tuple, [each.fields for each in points]))
        if len(names) == 1:
            self._end_run()
            columns = list(zip(*[each.fields.values() for each in points], strict=True))
            self._write([each.time_ns for each in points], names.pop(), columns, constants)
        else:
            for each, constant in zip(points, constants, strict=True):
                self.add(each.time_ns, each.fields, constant)

    def add_frame(self, frame: bytes) -> None:
        """Add a frame."""
        self._end_run()
        self._frames.append(frame)

    def take(self) -> list[bytes]:
        """Return the frames, and forget them.

        Raises:
            ValueError: A value does not fit in the message; names the field and the value.
        """
        self._end_run()
        frames, self._frames = self._frames, []
        return frames

    def _end_run(self) -> None:
        if self._run:
            times, rows, constants = zip(*self._run, strict=True)
            self._run = []
            self._write(times, self._names, list(zip(*rows, strict=True)), constants)

    def _write(
        self, times: Sequence[int], names: Sequence[str], columns: Sequence[Column], constants: Sequence[bytes]
    ) -> None:
        is_run = np is not None and len(times) >= _SHORTEST_RUN
        parts = _by_columns(times, names, columns) if is_run else None
        if parts is None:
            rows: Iterable[Column] = zip(*columns, strict=True) if columns else [()] * len(times)
            parts = [[_body(time, names, row) for time, row in zip(times, rows, strict=True)]]
        bodies = list(map(b"".join, zip(*parts, constants, strict=True)))
        heads = {size: _head(size) for size in set(map(len, bodies))}
        self._frames += [heads[len(body)] + body for body in bodies]


def _head(size: int) -> bytes:
    """Return the bytes before the message of a point in its frame."""
    tag_and_size = POINT_TAG + encode_varint(size)
    return encode_varint(len(tag_and_size) + size) + tag_and_size


_KINDS = frozenset((float, int, str, bool))


def _body(time_ns: int, names: Sequence[str], row: Sequence[Value]) -> bytes:
    """Return the time and the fields of a point."""
    message = pb.Point(time=int64("time_ns", time_ns))
    doubles: Any = message.fieldsDouble
    for name, given in zip(names, row, strict=True):
        value, kind = given, type(given)
        if kind not in _KINDS and getattr(given, "shape", None) == ():  # a scalar of NumPy, which pandas has too
            value = given.item()  # type: ignore[union-attr]
            kind = type(value)
        if kind is float:
            doubles[name] = value
        elif kind is bool:
            message.fieldsBool[name] = value  # type: ignore[assignment]
        elif kind is int:
            message.fieldsInt[name] = int64(name, value)  # type: ignore[arg-type]
        elif kind is str:
            message.fieldsString[name] = value  # type: ignore[assignment]
        else:
            raise ValueError(f"field {name}: {value!r} is not a bool, int, float or str")
    return message.SerializeToString()


def _by_columns(times: Sequence[int], names: Sequence[str], columns: Sequence[Column]) -> list[list[bytes]] | None:
    """Return parts of each point's message; None unless each field has values of one type."""
    if not _FIRST_TIME_NS <= min(times) <= max(times) < 2**63:
        return None
    sorted_columns: dict[type, dict[str, Any]] = {float: {}, int: {}, str: {}, bool: {}}
    for name, column in zip(names, columns, strict=True):
        (kind, *others) = set(map(type, column))
        if others or kind not in sorted_columns:
            return None
        sorted_columns[kind][name] = column
    parts = [_times_and_doubles(times, sorted_columns[float])]
    for kind, encode in _ENCODE.items():
        for name, column in sorted_columns[kind].items():
            key = name.encode()
            parts.append(encode(name, b"\x0a" + encode_varint(len(key)) + key, column))
    return parts


def _times_and_doubles(times: Sequence[int], columns: Mapping[str, Sequence[float]]) -> list[bytes]:
    template = bytearray(_TIME_TAG + bytes(_TIME_BYTES))
    places = []
    for name in columns:
        key = name.encode()
        template += _entry(_DOUBLES, b"\x0a" + encode_varint(len(key)) + key, b"\x11" + bytes(8))
        places.append(len(template) - 8)
    table = np.empty((len(times), len(template)), np.uint8)
    table[:] = np.frombuffer(template, np.uint8)
    table[:, len(_TIME_TAG) : len(_TIME_TAG) + _TIME_BYTES] = _varints(np.array(times, np.uint64))
    for place, column in zip(places, columns.values(), strict=True):
        table[:, place : place + 8] = np.array(column, "<f8").view(np.uint8).reshape(-1, 8)
    data, width = table.tobytes(), len(template)
    return [data[at : at + width] for at in range(0, len(data), width)]


def _varints(numbers: Any) -> Any:
    """Return a row with the varint of nine bytes of each number."""
    shifts = np.arange(0, 7 * _TIME_BYTES, 7, dtype=np.uint64)
    found = (numbers[:, None] >> shifts & np.uint64(127)).astype(np.uint8)
    found[:, :-1] |= 128
    return found


def _ints(name: str, head: bytes, column: Sequence[int]) -> list[bytes]:
    before = [_entry(_INTS, head, b"\x10" + bytes(size))[: -size or None] for size in range(MAX_VARINT_BYTES + 1)]
    encoded = [encode_varint(int64(name, value) & 2**64 - 1) for value in column]
    return [before[len(value)] + value for value in encoded]


def _strings(name: str, head: bytes, column: Sequence[str]) -> list[bytes]:
    encoded = [value.encode() for value in column]
    return [_entry(_STRINGS, head, b"\x12" + encode_varint(len(value)) + value) for value in encoded]


def _bools(name: str, head: bytes, column: Sequence[bool]) -> list[bytes]:
    both = [_entry(_BOOLS, head, b"\x10" + bytes((value,))) for value in (False, True)]
    return [both[value] for value in column]


_ENCODE: dict[type, Any] = {int: _ints, str: _strings, bool: _bools}


def _entry(tag: bytes, head: bytes, value: bytes) -> bytes:
    """Return an entry of a map, given the encoded key and value."""
    return tag + encode_varint(len(head) + len(value)) + head + value


def int64(name: str, value: int) -> int:
    """Return the value; ValueError, with its name, if it does not fit in 64 bits."""
    if value not in _INT64:
        raise ValueError(f"{name}: {value} does not fit in 64 bits")
    return value
