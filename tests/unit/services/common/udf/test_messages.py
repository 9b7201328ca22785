"""Messages: literal bytes as the protocol writes them, groups, and values that do not fit."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dexorder_protos.udf import udf_pb2 as pb
from dexorder_udf import messages
from dexorder_udf.errors import ProtocolError
from dexorder_udf.framing import FrameSplitter
from dexorder_udf.options import OptionValue, ValueType
from dexorder_udf.points import Batch, Point, Value, group_id, group_tags
from dexorder_udf.session import Edge


def hexed(text: str) -> bytes:
    return bytes.fromhex(text.replace("|", ""))


def test_management_requests() -> None:
    assert messages.encode_message(pb.InfoRequest()) == hexed("02|0a00")
    assert messages.encode_message(pb.SnapshotRequest()) == hexed("02|2200")
    assert messages.encode_message(pb.KeepaliveRequest(time=1)) == hexed("04|1a02|0801")
    assert messages.encode_message(pb.RestoreRequest(snapshot=b"ab")) == hexed("06|2a04|0a026162")


def test_init_is_sent_without_options_too_and_with_the_newer_fields() -> None:
    assert messages.init_request({}, "", "") == hexed("02|1200")
    #        init 8     taskID "t"  nodeID "n"
    assert messages.init_request({}, "t", "n") == hexed("08|1206|120174|1a016e")


def test_each_type_of_option_value() -> None:
    values = {
        "b": (OptionValue(ValueType.BOOL, True),),
        "i": (OptionValue(ValueType.INT, -1),),
        "d": (OptionValue(ValueType.DOUBLE, 1.0),),
        "s": (OptionValue(ValueType.STRING, "x"),),
        "t": (OptionValue(ValueType.DURATION, 10),),
    }
    expected = (
        "0a07|0a0162|1202|1001"  # bool is type 0, which is not written
        "0a12|0a0169|120d|0801|18ffffffffffffffffff01"
        "0a10|0a0164|120b|0802|21000000000000f03f"
        "0a0a|0a0173|1205|0803|2a0178"
        "0a09|0a0174|1204|0804|300a"
    )
    body = hexed(expected)
    assert messages.init_request(values, "", "") == bytes((len(body) + 2, 0x12, len(body))) + body


def test_a_point() -> None:
    point = Point(1, {"t": "a"}, {"d": 1.0}, "n", ("t",), True, "db", "rp")
    body = (
        "0801"  # time
        "420c0a016411000000000000f03f"  # fieldsDouble
        "12016e"  # name
        "1a026462"  # database
        "22027270"  # retentionPolicy
        "2a056e0a743d61"  # group: n, newline, t=a
        "320174"  # dimensions
        "3a060a0174120161"  # tags
        "5801"  # byName
    )
    size = len(hexed(body))
    assert messages.encode_points([point]) == [bytes((size + 3, 0x8A, 0x01, size)) + hexed(body)]


@pytest.mark.parametrize(
    ("value", "field"),
    [
        (3, "4a050a01661003"),
        (-1, "4a0e0a016610ffffffffffffffffff01"),
        ("x", "52060a0166120178"),
        (True, "62050a01661001"),
        (0.0, "420c0a0166110000000000000000"),
    ],
)
def test_the_types_of_fields(value: Value, field: str) -> None:
    (encoded,) = messages.encode_points([Point(0, {}, {"f": value})])
    assert encoded[4:] == hexed(field)
    decoded = messages.decode_point(pb.Point.FromString(encoded[4:]))
    assert decoded.fields == {"f": value} and type(decoded.fields["f"]) is type(value)


def test_a_batch() -> None:
    batch = Batch([Point(5, {"t": "a"}, {"b": True})], "n", {"t": "a"}, tmax_ns=9)
    frames = messages.encode_points([batch])
    assert frames == [
        hexed("15|820112|0a016e|1203743d61|1a060a0174120161|2001"),
        hexed("19|8a0116|0805|62050a01621001|2a03743d61|3a060a0174120161"),
        hexed("15|920112|0a016e|1203743d61|1809|22060a0174120161"),
    ]
    begin, point, end = (pb.Response.FromString(each[1:]) for each in frames)
    assert messages.decode_batch(begin.begin, [messages.decode_point(point.point)], end.end) == batch


def test_name_and_tags_of_a_batch_are_those_of_its_end() -> None:
    begin = pb.BeginBatch(name="begin", tags={"a": "1"}, byName=True)
    end = pb.EndBatch(name="end", tags={"b": "2"}, tmax=7)
    assert messages.decode_batch(begin, [], end) == Batch([], "end", {"b": "2"}, 7, True)


def test_a_field_of_several_types_is_bool_then_double_then_int_then_string() -> None:
    message = pb.Point(
        fieldsString=dict.fromkeys("abcd", "s"),
        fieldsInt=dict.fromkeys("abc", 1),
        fieldsDouble=dict.fromkeys("ab", 0.5),
        fieldsBool={"a": False},
    )
    assert messages.decode_point(message).fields == {"a": False, "b": 0.5, "c": 1, "d": "s"}


def test_request_and_response_have_the_same_bytes() -> None:
    point = pb.Point(time=3, name="n", fieldsBool={"b": True})
    for kind, message in (("point", point), ("begin", pb.BeginBatch(size=2)), ("end", pb.EndBatch(tmax=1))):
        request, response = pb.Request(**{kind: message}), pb.Response(**{kind: message})  # type: ignore[arg-type]
        assert request.SerializeToString() == response.SerializeToString()


names = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
values: st.SearchStrategy[Value] = st.one_of(
    st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False), names
)
points = st.builds(
    Point,
    st.integers(-(2**63), 2**63 - 1),
    st.dictionaries(names, names, max_size=3),
    st.dictionaries(names, values, max_size=5),
    names,
    st.lists(names, max_size=3).map(tuple),
    st.booleans(),
    names,
    names,
)


def test_points_that_differ_in_one_constant_do_not_share_it() -> None:
    first = Point(0, {"t": "a"}, {}, "n", ("t",), False, "db", "rp")
    others = [
        replace(first, tags={"t": "b"}),
        replace(first, tags={}),
        replace(first, name="m"),
        replace(first, dimensions=()),
        replace(first, by_name=True),
        replace(first, database=""),
        replace(first, retention_policy=""),
    ]
    bodies = FrameSplitter().feed(b"".join(messages.encode_points([first, *others, first])))
    assert [messages.decode_point(messages.decode_response(each).point) for each in bodies] == [first, *others, first]


@given(st.lists(points, max_size=5))
def test_points_come_back_as_they_were(given_points: list[Point]) -> None:
    stream = b"".join(messages.join_frames(messages.encode_points(given_points), 100))
    bodies = FrameSplitter().feed(stream)
    found = [messages.decode_point(messages.decode_response(each).point) for each in bodies]
    assert found == given_points
    assert [messages.decode_request(each).point.group for each in bodies] == [each.group for each in given_points]


def test_infinite_values_and_nan_are_values() -> None:
    (encoded,) = messages.encode_points([Point(0, {}, {"a": math.nan, "b": -math.inf})])
    fields = messages.decode_point(messages.decode_response(encoded[1:]).point).fields
    assert math.isnan(float(fields["a"])) and fields["b"] == -math.inf


@pytest.mark.parametrize(
    ("point", "words"),
    [
        (Point(2**63), "time_ns: 9223372036854775808 does not fit in 64 bits"),
        (Point(0, {}, {"n": 2**63}), "n: 9223372036854775808 does not fit"),
        (Point(0, {}, {"n": None}), "field n: None is not a bool, int, float or str"),  # type: ignore[dict-item]
    ],
)
def test_values_that_do_not_fit(point: Point, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        messages.encode_points([point])


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "a message is empty"),
        (b"\x48\x00", "a message has no content"),
        (b"\x0a", "not a message"),
        (b"ello, world\n", 'not a message \\("ello, world'),
    ],
)
def test_undecodable_responses(body: bytes, words: str) -> None:
    with pytest.raises(ProtocolError, match=words):
        messages.decode_response(body)


def test_info_with_an_unknown_type() -> None:
    info = pb.InfoResponse(wants=pb.BATCH, provides=pb.STREAM)
    assert messages.read_info(info) == messages.UdfInfo(Edge.BATCH, Edge.STREAM, {})
    info.options["x"].valueTypes.append(9)  # type: ignore[arg-type]
    with pytest.raises(ProtocolError, match="unknown edge or option type: 9"):
        messages.read_info(info)


@pytest.mark.parametrize(
    ("dimensions", "by_name", "group"),
    [
        ((), False, ""),
        ((), True, "n"),
        (("b", "a"), False, "b=2,a=1"),
        (("a", "c"), True, "n\na=1,c="),
    ],
)
def test_group_ids(dimensions: tuple[str, ...], by_name: bool, group: str) -> None:
    assert group_id("n", dimensions, {"a": "1", "b": "2"}, by_name) == group


def test_tags_of_a_group_and_of_a_batch() -> None:
    assert group_tags(("b", "c"), {"a": "1", "b": "2"}) == {"b": "2", "c": ""}
    assert Batch([], "n", {"b": "2", "a": "1"}, by_name=True).group == "n\na=1,b=2"
