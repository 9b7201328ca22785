"""Runs of points by columns: literal bytes, and the same points as by protobuf."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dexorder_protos.udf import udf_pb2 as pb
from dexorder_udf import messages, point_writer
from dexorder_udf.framing import FrameSplitter
from dexorder_udf.points import Batch, Point, Value

NOW_NS = 1_700_000_000 * 10**9
RUN = 20


def decoded(items: Sequence[Point | Batch]) -> list[pb.Point]:
    bodies = FrameSplitter().feed(b"".join(messages.encode_points(items)))
    return [pb.Response.FromString(each).point for each in bodies]


def test_literal_bytes_of_a_run() -> None:
    fields: dict[str, Value] = {"d": 1.0, "i": -1, "s": "x", "b": True, "n": 300}
    frames = messages.encode_points([Point(2**63 - 1 - n, {"t": "a"}, fields, "n", ("t",)) for n in range(RUN)])
    body = (
        "08ffffffffffffffff7f"  # time
        "420c0a016411000000000000f03f"  # fieldsDouble
        "4a0e0a016910ffffffffffffffffff01"  # fieldsInt, -1
        "4a060a016e10ac02"  # 300
        "52060a0173120178"  # fieldsString
        "62050a01621001"  # fieldsBool
        "12016e"  # name
        "2a03743d61"  # group
        "320174"  # dimensions
        "3a060a0174120161"  # tags
    )
    size = len(bytes.fromhex(body))
    assert size > 75 and frames[0] == bytes((size + 3, 0x8A, 0x01, size)) + bytes.fromhex(body)
    assert frames[1] == frames[0].replace(b"\xff" * 8 + b"\x7f", b"\xfe" + b"\xff" * 7 + b"\x7f", 1)


def test_a_run_without_numpy_has_the_same_points(monkeypatch: pytest.MonkeyPatch) -> None:
    fields: dict[str, Value] = {"d": 1.0, "i": -1, "s": "x", "b": True}
    points = [Point(NOW_NS + n, {"t": "a"}, fields, "n", ("t",)) for n in range(RUN)]
    by_columns = decoded(points)
    monkeypatch.setattr(point_writer, "np", None)
    assert decoded(points) == by_columns and len(by_columns) == RUN


names = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
kinds: dict[type, st.SearchStrategy[Value]] = {
    bool: st.booleans(),
    int: st.one_of(st.integers(-(2**63), 2**63 - 1), st.integers(0, 40_000)),
    float: st.floats(),
    str: names,
}
columns = st.dictionaries(names, st.sampled_from(list(kinds)), max_size=4)
times = st.integers(2**56, 2**63 - 1)


@given(columns, st.data())
def test_runs_have_the_points_that_were_added(of_type: dict[str, type], data: st.DataObject) -> None:
    rows = st.fixed_dictionaries({name: kinds[kind] for name, kind in of_type.items()})
    tags = st.sampled_from([{}, {"t": "a"}, {"t": "b", "u": "c"}])
    points = data.draw(st.lists(st.builds(Point, times, tags, rows), min_size=RUN, max_size=RUN + 2))
    for point, message in zip(points, decoded(points), strict=True):
        found = messages.decode_point(message)
        assert (found.time_ns, found.tags) == (point.time_ns, point.tags)
        assert {name: repr(value) for name, value in found.fields.items()} == {
            name: repr(value) for name, value in point.fields.items()
        }


@pytest.mark.parametrize(
    "change",
    [
        {"fields": {"a": 1}},  # another type
        {"fields": {"b": 1.0}},  # another name
        {"fields": {}},
        {"fields": {"a": 1.0, "b": 2.0}},
        {"time_ns": 5},
        {"time_ns": -(2**63)},
    ],
)
def test_a_point_unlike_the_others_is_encoded_too(change: dict[str, object]) -> None:
    given_points = [Point(NOW_NS + n, {}, {"a": float(n)}) for n in range(2 * RUN)]
    for name, value in change.items():
        setattr(given_points[RUN], name, value)
    assert list(map(messages.decode_point, decoded(given_points))) == given_points


def test_points_of_a_batch_keep_tags_of_their_own() -> None:
    batch = Batch([Point(NOW_NS, {"t": str(n % 2)}, {"a": math.pi}) for n in range(RUN)], "w", {}, 1)
    found = [messages.decode_batch_point(each) for each in decoded([batch])[1:-1]]
    assert found == batch.points


@pytest.mark.parametrize(("value", "words"), [(2**63, "a: 9223372036854775808 does not fit"), (None, "field a: None")])
def test_a_value_that_does_not_fit_is_named_in_a_run(value: Value, words: str) -> None:
    points = [Point(NOW_NS, {}, {"a": value}) for _ in range(RUN)]
    with pytest.raises(ValueError, match=words):
        messages.encode_points(points)
