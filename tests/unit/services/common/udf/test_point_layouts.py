"""Layouts: a frame gives the same point as by protobuf, whatever it is; and frames of a known series take this way."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dexorder_protos.udf import udf_pb2 as pb
from dexorder_udf import messages
from dexorder_udf.errors import ProtocolError
from dexorder_udf.framing import FrameSplitter
from dexorder_udf.point_layouts import PointLayouts
from dexorder_udf.points import Batch, Point, Value
from dexorder_udf.session import MessageKind

NOW_NS = 1_700_000_000 * 10**9
TICKERS = ("BTC/USDT", "ETH/USDT", "XRP/USDT.LONG")


def bodies_of(*points: Point | Batch) -> list[bytes]:
    return FrameSplitter().feed(b"".join(messages.encode_points(points)))


def in_order_of_numbers(point: Point) -> bytes:
    """Return the message of a point as other writers arrange it: by the numbers of the fields."""
    message = pb.Point.FromString(pb.Response.FromString(bodies_of(point)[0]).point.SerializeToString())
    return pb.Response(point=message).SerializeToString(deterministic=True)


def by_protobuf(body: bytes) -> tuple[Point, str] | None:
    """Return the point and the group of a message; None if it is another one, or none."""
    try:
        response = messages.decode_response(body)
    except ProtocolError:
        return None
    if messages.kind_of(response) is not MessageKind.POINT:
        return None
    return messages.decode_point(response.point), response.point.group


def shown(found: tuple[Point, str] | None) -> object:
    """Return values that are equal for equal points, also if there is a NaN."""
    if found is None:
        return None
    point, group = found
    rest = (point.time_ns, point.tags, point.name, point.dimensions, point.by_name, point.database)
    return rest, point.retention_policy, group, sorted((name, repr(value)) for name, value in point.fields.items())


def candle(n: int, ticker: str = "BTC/USDT", **fields: Value) -> Point:
    values: dict[str, Value] = {"open": n / 7, "close": -n / 3, "trades": 5 + n % 100, **fields}
    return Point(NOW_NS + n, {"ticker": ticker, "period": "1m"}, values, "ohlc", ("ticker", "period"), database="db")


@pytest.mark.parametrize("encode", [lambda point: bodies_of(point)[0], in_order_of_numbers])
def test_points_of_known_series_are_decoded_without_protobuf(encode) -> None:  # type: ignore[no-untyped-def]
    layouts = PointLayouts(in_batch=False)
    points = [
        candle(n, TICKERS[n % 3], text=f"{n % 10}ü", flag=n % 2 == 0, big=-(2**62) - n, high=2**40 + n)
        for n in range(40)
    ]
    for n, point in enumerate(points):
        body = encode(point)
        found = layouts.decode(body)
        if n < 3:
            assert found is None and layouts.learn(body, messages.decode_response(body).point) == point
        else:
            assert found == (point, point.group)
            assert [type(each) for each in found[0].fields.values()] and shown(found) == shown(by_protobuf(body))


def test_each_point_has_tags_of_its_own() -> None:
    layouts, (body, other) = PointLayouts(in_batch=False), bodies_of(candle(1), candle(2))
    layouts.learn(body, messages.decode_response(body).point).tags["ticker"] = "changed"
    first = layouts.decode(other)
    assert first is not None
    first[0].tags["ticker"] = "changed"
    second = layouts.decode(other)
    assert second is not None and second[0] == candle(2)


def test_points_in_batches_have_no_name_and_no_group_of_their_own() -> None:
    layouts = PointLayouts(in_batch=True)
    _, body, other, _ = bodies_of(Batch([candle(1), candle(2)], "w", {"ticker": "BTC/USDT"}))
    layouts.learn(body, messages.decode_response(body).point)
    expected = Point(NOW_NS + 2, candle(2).tags, candle(2).fields)
    assert layouts.decode(other) == (expected, "ticker=BTC/USDT")


@pytest.mark.parametrize(
    "point",
    [
        candle(1, text="x" * 1_100),  # long
        Point(5, {}, {"a": 1.0}),  # a time of one byte
        Point(0),  # no time at all
        Point(-1, {}, {"a": 1.0}),
    ],
)
def test_unusual_points_are_left_to_protobuf(point: Point) -> None:
    layouts, (body,) = PointLayouts(in_batch=False), bodies_of(point)
    assert layouts.learn(body, messages.decode_response(body).point) == point
    assert layouts.decode(body) is None


def test_a_name_with_two_types_and_a_time_that_comes_twice_are_left_to_protobuf() -> None:
    double = pb.Point(time=NOW_NS, fieldsDouble={"a": 1.0}, fieldsInt={"a": 1}).SerializeToString()
    twice = pb.Point(time=NOW_NS).SerializeToString() * 2
    for inner in (double, twice):
        body = messages.encode_message(pb.Point())[1:-1] + bytes((len(inner),)) + inner
        layouts = PointLayouts(in_batch=False)
        layouts.learn(body, messages.decode_response(body).point)
        assert layouts.decode(body) is None


def test_there_are_few_layouts_for_a_length() -> None:
    layouts = PointLayouts(in_batch=False)
    names = [("a" * n, "b" * (20 - n)) for n in range(1, 20)]
    for first, second in names:
        (body,) = bodies_of(Point(NOW_NS, {}, {first: 1.5, second: 2.5}))
        layouts.learn(body, messages.decode_response(body).point)
    assert max(map(len, layouts._layouts.values())) == 4


def test_nan_and_infinite_values_are_values() -> None:
    layouts, points = PointLayouts(in_batch=False), [candle(1), candle(2, open=math.nan, close=-math.inf)]
    body, other = bodies_of(*points)
    layouts.learn(body, messages.decode_response(body).point)
    assert shown(layouts.decode(other)) == shown((points[1], points[1].group))


names = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
values: st.SearchStrategy[Value] = st.one_of(st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(), names)
times = st.one_of(st.integers(-(2**63), 2**63 - 1), st.integers(NOW_NS, NOW_NS + 10**12))
points = st.builds(
    Point,
    times,
    st.dictionaries(names, names, max_size=2),
    st.dictionaries(names, values, max_size=4),
    names,
    st.lists(names, max_size=2).map(tuple),
    st.booleans(),
    names,
)


@given(st.lists(points, min_size=1, max_size=4), st.data())
def test_whatever_the_bytes_are_both_ways_agree(given_points: Sequence[Point], data: st.DataObject) -> None:
    layouts = PointLayouts(in_batch=False)
    originals = [*bodies_of(*given_points), *map(in_order_of_numbers, given_points)]
    for body in originals:
        layouts.learn(body, messages.decode_response(body).point)
    for body in originals:
        mutated = bytearray(body)
        for place in data.draw(st.lists(st.integers(0, len(body) - 1), max_size=3)):
            mutated[place] = data.draw(st.integers(0, 255))
        found = layouts.decode(bytes(mutated))
        if found is not None:
            assert shown(found) == shown(by_protobuf(bytes(mutated)))


def test_a_sender_that_writes_its_fields_in_random_order_is_not_learnt_for_ever() -> None:
    """As Go's maps are written. Each point is right, and what is remembered stays small."""
    order = random.Random(5)
    names = ["open", "high", "low", "close", "volume", "trades"]
    layouts = PointLayouts(in_batch=False)
    for number in range(3_000):
        order.shuffle(names)
        point = Point(NOW_NS + number, {"t": "A"}, dict.fromkeys(names, number / 7), "ohlc", ("t",))
        (body,) = bodies_of(point)
        found = layouts.decode(body)
        response = messages.decode_response(body)
        decoded = found[0] if found else layouts.learn(body, response.point)
        assert decoded == point
    assert layouts._series <= 600
