"""Points of a batch, parsed together: the same as each message alone, whatever the messages are."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dexorder_protos.udf import udf_pb2 as pb
from dexorder_udf import messages
from dexorder_udf.batch_points import BatchPoints, point_body, points_from
from dexorder_udf.errors import ProtocolError
from dexorder_udf.framing import FrameSplitter
from dexorder_udf.points import Batch, Point, Value

NAMES = st.sampled_from(["close", "volume", "n", "side", "is_buy"])
NUMBERS = st.floats(allow_nan=False)
POINTS = st.builds(
    pb.Point,
    time=st.integers(-(2**63), 2**63 - 1),
    tags=st.dictionaries(NAMES, st.text(max_size=3), max_size=2),
    fieldsDouble=st.dictionaries(NAMES, NUMBERS, max_size=5),
    fieldsInt=st.dictionaries(NAMES, st.integers(-(2**63), 2**63 - 1), max_size=2),
    fieldsString=st.dictionaries(NAMES, st.text(max_size=200), max_size=2),
    fieldsBool=st.dictionaries(NAMES, st.booleans(), max_size=1),
)


def point(close: Value, **more: Value) -> pb.Point:
    bodies = FrameSplitter().feed(b"".join(messages.encode_points([Point(5, {"t": "a"}, {"close": close, **more})])))
    return messages.decode_request(bodies[0]).point


@given(st.lists(POINTS, max_size=6))
def test_points_and_columns_are_those_of_each_message(points: list[pb.Point]) -> None:
    bodies = [point_body(each) for each in points]
    assert points_from(bodies, 0) == len(bodies)
    expected = [messages.decode_batch_point(messages.decode_request(each).point) for each in bodies]
    found = BatchPoints(bodies)
    for name in ("close", "n", "is_buy", "none"):
        assert found.column(name) == Batch(expected).column(name) == [each.fields.get(name) for each in expected]
        types = [type(each) for each in found.column(name)]
        assert types == [type(each.fields.get(name)) for each in expected]
    assert found == expected and [*found] == expected and len(found) == len(expected)
    assert found[1:] == expected[1:] and found[::-1] == expected[::-1]
    assert [found[n - len(expected)] for n in range(len(expected))] == expected


@given(st.binary(max_size=300), st.integers(0, 3))
def test_a_message_that_is_not_exactly_a_point_is_left_to_others(body: bytes, place: int) -> None:
    good = point_body(point(1.0))
    bodies = [good] * place + [body]
    assert points_from(bodies, 0) in (place, place + 1)
    if points_from(bodies, 0) == place + 1:  # by chance
        request = pb.Request.FromString(body)
        assert request.WhichOneof("message") == "point"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\x08\x01",
        pb.Request(keepalive=pb.KeepaliveRequest(time=1)).SerializeToString(),
        pb.Request(begin=pb.BeginBatch(name="w")).SerializeToString(),
        point_body(pb.Point(time=1)) + point_body(pb.Point(time=2)),  # the second one counts
        point_body(pb.Point(time=1)) + b"\x08\x01",
        point_body(pb.Point(time=1))[:-1],
        point_body(pb.Point(time=1))[:2] + b"\x82\x00" + pb.Point(time=1).SerializeToString(),  # a long size
    ],
)
def test_other_messages_and_forms_are_no_points_here(body: bytes) -> None:
    assert points_from([point_body(pb.Point(time=1)), body, point_body(pb.Point())], 0) == 1


@pytest.mark.parametrize("size", [0, 1, 127, 128, 129, 16_383, 16_384, 70_000])
def test_points_of_all_sizes_are_known(size: int) -> None:
    body = point_body(pb.Point(name="n" * size))
    assert points_from([body], 0) == 1
    assert len(BatchPoints([body])) == 1


def test_a_point_that_is_changed_stays_so_and_its_column_has_the_new_value() -> None:
    points = BatchPoints([point_body(point(float(n))) for n in range(3)])
    points[1].fields["close"] = "high"
    assert points[1] is points[1] and points[1] in [*points]
    assert points.column("close") == [0.0, "high", 2.0]
    assert points + points[:1] == [*points, points[0]] and points[1:] + points == [*points[1:], *points]
    assert repr(points[1]) in repr(points)


def test_a_message_that_is_broken_inside_is_named_as_when_it_is_read_alone() -> None:
    good, broken = point_body(point(1.0)), point_body(point(2.0)).replace(b"close", b"clo\xffe")
    assert points_from([good, broken], 0) == 2
    with pytest.raises(ProtocolError) as alone:
        messages.decode_request(broken)
    with pytest.raises(ProtocolError) as together:
        BatchPoints([good, broken, good])
    assert str(together.value) == str(alone.value)


def test_mutated_messages_give_the_points_of_each_or_its_error() -> None:
    source = random.Random(3)
    for _ in range(2_000):
        bodies = [point_body(point(source.random(), n=source.randrange(300), side="buy")) for _ in range(3)]
        broken = bytearray(bodies[1])
        for _ in range(source.choice((1, 1, 2, 5))):
            broken[source.randrange(4, len(broken))] = source.randrange(256)
        bodies[1] = bytes(broken)
        assert points_from(bodies, 0) == 3
        try:
            expected = [messages.decode_batch_point(messages.decode_request(each).point) for each in bodies]
        except ProtocolError as error:
            with pytest.raises(ProtocolError) as found:
                BatchPoints(bodies)
            assert str(found.value) == str(error)
        else:
            assert repr([*BatchPoints(bodies)]) == repr(expected)
