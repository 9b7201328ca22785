"""Points of frames with bytes arranged like in earlier frames, without a protobuf message for each.

The frames of one series differ only in time and values. A layout says where these lie in frames of some length; the
bytes between them identify the series, with its name, tags and names of fields. A frame that fits no known layout is
decoded as a protobuf message, and then its layout is learnt. Both ways give the same point for the same bytes; this one
takes half the time.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

from dexorder_protos.udf import udf_pb2 as pb
from dexorder_udf import messages
from dexorder_udf.point_writer import POINT_TAG
from dexorder_udf.points import Point, Value

_LONGEST_FRAME = 1_024
_MOST_SERIES = 10_000
_MOST_LAYOUTS = 4
"""Layouts for one length."""
_MOST_REPEATED = 512
"""Points of known groups that fit no layout, after which no more are learnt. A sender that writes its fields in random
order, as Go's maps are, has them forever; if most of its points are such, layouts are not looked at any more.
"""
_TIME, _DOUBLES, _INTS, _STRINGS, _BOOLS = 1, 8, 9, 10, 12
"""Numbers of the fields of a point that change."""
_VALUE_TAGS = {_DOUBLES: 0x11, _INTS: 0x10, _STRINGS: 0x12, _BOOLS: 0x10}
_CONTINUED = 0x8080808080808080


class ValuePlace(NamedTuple):
    """Place of a value in a frame: the number of its field in a point, and its name there, if it has one."""

    start: int
    end: int
    number: int
    name: str


class PointLayouts:
    """Layouts that one sender of points uses."""

    def __init__(self, *, in_batch: bool) -> None:
        """Start without any; ``in_batch`` says that the points are in batches, which have name and group."""
        self._whole = messages.decode_batch_point if in_batch else messages.decode_point
        self._layouts: dict[int, list[_Layout]] = {}
        self._series = 0
        self._groups: set[str] = set()
        self._asked = self._repeated = 0
        self._is_random = False

    def decode(self, body: bytes) -> tuple[Point, str] | None:
        """Return the point of a message and its group as the sender wrote it; None if no layout fits."""
        if self._is_random:
            return None
        self._asked += 1
        for layout in self._layouts.get(len(body), ()):
            parts = layout.unpack(body)
            series = layout.series.get(layout.constants(parts))
            if series is None:
                continue
            doubles, others, tags, name, dimensions, by_name, database, retention_policy, group = series
            low, high = parts[layout.time], parts[layout.time + 1]
            if low & _CONTINUED != _CONTINUED or high > 127:
                continue
            # Groups of seven bits come together in pairs, then in fours, then in eights.
            low = low & 0x007F007F007F007F | (low & 0x7F007F007F007F00) >> 1
            low = low & 0x00003FFF00003FFF | (low & 0x3FFF00003FFF0000) >> 2
            time_ns = low & 0x0FFFFFFF | (low & 0x0FFFFFFF00000000) >> 4 | high << 56
            fields: dict[str, Value] = {field_name: parts[place] for field_name, place in doubles}
            for field_name, place, value_of in others:
                if (value := value_of(parts[place])) is None:
                    return None
                fields[field_name] = value
            point = Point(time_ns, tags.copy(), fields, name, dimensions, by_name, database, retention_policy)
            return point, group
        return None

    def learn(self, body: bytes, message: pb.Point) -> Point:
        """Return the point of a message that has been decoded, and remember its layout."""
        point = self._whole(message)
        if self._repeated >= _MOST_REPEATED:
            return point
        self._note(message.group)
        if len(body) <= _LONGEST_FRAME and self._series < _MOST_SERIES and (places := _value_places(body)) is not None:
            known = self._layouts.setdefault(len(body), [])
            layout = _Layout(places, len(body))
            same = next((each for each in known if each.holes_at == layout.holes_at), None)
            if same is None and len(known) < _MOST_LAYOUTS:
                known.append(same := layout)
            if same is not None:
                same.add(body, places, point, message.group)
                self._series += 1
        return point

    def _note(self, group: str) -> None:
        """Note that a point fitted no layout."""
        if group not in self._groups:
            if len(self._groups) < _MOST_SERIES:
                self._groups.add(group)
            return
        self._repeated += 1
        self._is_random = self._repeated >= _MOST_REPEATED and 2 * self._repeated > self._asked


class _Layout:
    """Layout with the series that have it.

    Attributes:
        holes_at: Its places.
        unpack: Divides a frame into values and the bytes between them.
        constants: Takes these bytes from the parts.
        time: Number of the first of two parts with the time.
        series: Known facts about a series, by these bytes.
    """

    def __init__(self, places: Sequence[ValuePlace], size: int) -> None:
        self.holes_at = [(each.start, each.end, each.number) for each in places]
        formats: list[str] = []
        constants: list[int] = []
        at = 0
        self.time = 0
        self._doubles: list[int] = []
        self._others: list[int] = []
        for hole in places:
            constants.append(len(formats))
            formats.append(f"{hole.start - at}s")
            if hole.number == _TIME:
                self.time = len(formats)
                formats += ["Q", "B"]
            else:
                (self._doubles if hole.number == _DOUBLES else self._others).append(len(formats))
                formats.append("d" if hole.number == _DOUBLES else f"{hole.end - hole.start}s")
            at = hole.end
        constants.append(len(formats))
        formats.append(f"{size - at}s")
        self.unpack = struct.Struct("<" + "".join(formats)).unpack
        self.constants: Any = itemgetter(*constants)
        self.series: dict[tuple[bytes, ...], tuple[Any, ...]] = {}

    def add(self, body: bytes, places: Sequence[ValuePlace], point: Point, group: str) -> None:
        """Remember the series of a point."""
        doubles = [each.name for each in places if each.number == _DOUBLES]
        others = [each for each in places if each.number in _VALUES]
        self.series[self.constants(self.unpack(body))] = (
            tuple(zip(doubles, self._doubles, strict=True)),
            tuple((each.name, place, _VALUES[each.number]) for each, place in zip(others, self._others, strict=True)),
            dict(point.tags),
            point.name,
            point.dimensions,
            point.by_name,
            point.database,
            point.retention_policy,
            group,
        )


def _int(raw: bytes) -> int | None:
    """Return the number of a varint; None if the bytes are not one of this length."""
    if len(raw) == 1:
        return raw[0] if raw[0] < 128 else None
    if len(raw) == 2:
        low, high = raw
        return low & 127 | high << 7 if low > 127 >= high else None
    value = 0
    for shift, each in enumerate(raw):
        if (each > 127) is (shift == len(raw) - 1):
            return None
        value |= (each & 127) << 7 * shift
    value &= 2**64 - 1
    return value - 2**64 if value >= 2**63 else value


def _bool(raw: bytes) -> bool | None:
    value = _int(raw)
    return None if value is None else bool(value)


def _text(raw: bytes) -> str | None:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return None


_VALUES: dict[int, Callable[[bytes], Value | None]] = {_INTS: _int, _STRINGS: _text, _BOOLS: _bool}


def _value_places(body: bytes) -> list[ValuePlace] | None:
    """Return the places of time and values in a message that has been decoded; None if they are unusual."""
    try:
        places = list(_found(body))
    except (ValueError, IndexError, UnicodeDecodeError):
        return None
    names = [each.name for each in places if each.number != _TIME]
    times = [each for each in places if each.number == _TIME]
    if len(set(names)) != len(names) or len(times) != 1 or times[0].end - times[0].start != 9:
        return None
    return places


def _found(body: bytes) -> Iterator[ValuePlace]:
    """Yield the places. ValueError or IndexError for a message of another form than all agents write."""
    size, at = _varint(body, len(POINT_TAG))
    if not body.startswith(POINT_TAG) or at + size != len(body):
        raise ValueError("more than a point")
    while at < len(body):
        tag, at = _varint(body, at)
        number, wire_type = tag >> 3, tag & 7
        size, end = _varint(body, at)
        if wire_type == 0:
            if number == _TIME:
                yield ValuePlace(at, end, number, "")
        elif wire_type == 2:
            if number in _VALUE_TAGS:
                yield _entry(body, end, end + size, number)
            end += size
        else:
            raise ValueError("unknown field")
        at = end


def _entry(body: bytes, at: int, end: int, number: int) -> ValuePlace:
    size, key = _varint(body, at + 1)
    tag = key + size
    start = tag + 1
    if number == _DOUBLES:
        closed = start + 8
    else:
        size, closed = _varint(body, start)
        if number == _STRINGS:
            start, closed = closed, closed + size
    if body[at] != 0x0A or body[tag] != _VALUE_TAGS[number] or closed != end:
        raise ValueError("not a key and a value")
    return ValuePlace(start, end, number, body[key:tag].decode())


def _varint(body: bytes, at: int) -> tuple[int, int]:
    """Return a number and the place after it."""
    value = shift = 0
    while True:
        byte = body[at]
        at += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value, at
