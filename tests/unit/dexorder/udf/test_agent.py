"""Answers of the agent: frames that are sent on as they came, outputs as they were when they were returned, errors."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

from dexorder.udf import SAME, Function
from dexorder.udf.agent import Agent
from dexorder.udf.function import Output
from dexorder_protos.udf import udf_pb2 as pb
from dexorder_udf import messages
from dexorder_udf.framing import FrameSplitter, frame
from dexorder_udf.points import Batch, Point
from dexorder_udf.session import Edge

NOW_NS = 1_700_000_000 * 10**9


class Even(Function[None]):
    """Sends on every second point."""

    def point(self, point: Point, state: None) -> Output:
        return SAME if point.time_ns % 2 == 0 else None


class Large(Function[None]):
    """Sends on batches of more than one point."""

    wants = provides = Edge.BATCH

    def batch(self, batch: Batch, state: None) -> Output:
        return SAME if len(batch.points) > 1 else None


class Sums(Function[None]):
    """Sends the sum of a field, by its column."""

    wants, provides = Edge.BATCH, Edge.STREAM

    def batch(self, batch: Batch, state: None) -> Output:
        values = [each for each in batch.column("n") if isinstance(each, int)]
        return Point(batch.tmax_ns, {}, {"sum": sum(values), "points": len(batch.points)})


class Reuser(Function[None]):
    """Returns the same object again, with another value."""

    def __init__(self, values: dict[str, object] | None = None) -> None:
        super().__init__(values)
        self.output = Point(NOW_NS, {}, {"n": 0})

    def point(self, point: Point, state: None) -> Output:
        self.output.fields["n"] = point.time_ns - NOW_NS
        return self.output


class Confused(Function[None]):
    """Has nothing that is the same as a batch."""

    wants = Edge.BATCH

    def batch(self, batch: Batch, state: None) -> Output:
        return SAME


class TooLarge(Function[None]):
    """Returns a value that does not fit for the third point."""

    def point(self, point: Point, state: None) -> Output:
        return Point(NOW_NS, {}, {"n": 2**63 if point.time_ns == 2 else point.time_ns})


def started(function: type[Function[None]]) -> Agent:
    agent = Agent(function)
    agent.feed(messages.init_request({}, "", ""))
    return agent


def test_the_same_point_is_the_same_bytes_whatever_is_in_it() -> None:
    plain = [pb.Point(time=NOW_NS + n, name="n", group="g", fieldsInt={"a": n}) for n in range(40)]
    frames = [messages.encode_message(each) for each in plain]
    newer = frames[0][4:] + b"\xfa\x06\x03new"  # a field that only a later version has
    frames.append(messages.encode_message(pb.Point.FromString(newer)))
    assert b"\xfa\x06\x03new" in frames[-1]
    assert started(Even).feed(b"".join(frames)) == b"".join([*frames[:40:2], frames[-1]])


def test_a_batch_may_come_in_pieces_with_requests_between_its_points_and_in_other_forms() -> None:
    points = [Point(NOW_NS + n, {}, {"n": n}) for n in range(20)]
    frames = FrameSplitter().feed(b"".join(messages.encode_points([Batch(points, "w", {"t": "a"}, 7)])))
    keepalive = messages.encode_message(pb.KeepaliveRequest(time=3))
    # field by field, with a size of two bytes where one is enough, as another writer may have it
    content = messages.decode_request(frames[5]).point.SerializeToString()
    frames[5] = frames[5][:2] + bytes((len(content) & 127 | 128, len(content) >> 7)) + content
    data = b"".join([*map(frame, frames[:3]), keepalive, *map(frame, frames[3:])])
    for size in (1, 7, 64, len(data)):
        agent = started(Sums)
        answers = b"".join(agent.feed(data[first : first + size]) for first in range(0, len(data), size))
        found = [messages.decode_response(body) for body in FrameSplitter().feed(answers)]
        assert [each.WhichOneof("message") for each in found] == ["keepalive", "point"]
        fields = found[1].point.fieldsInt
        assert (fields["sum"], fields["points"], found[1].point.time) == (190, 20, 7)


def test_a_broken_point_of_a_batch_is_the_error_and_what_was_before_it_is_sent() -> None:
    good = Batch([Point(NOW_NS, {}, {"n": 4})], "w", {}, 7)
    broken = b"".join(messages.encode_points([Batch([Point(NOW_NS, {}, {"text": "abc"})], "w", {}, 8)]))
    agent = started(Sums)
    answers = agent.feed(b"".join(messages.encode_points([good])) + broken.replace(b"abc", b"a\xffc"))
    point, error = [messages.decode_response(body) for body in FrameSplitter().feed(answers)]
    assert point.point.fieldsInt["sum"] == 4 and "bytes are not a message" in error.error.error and agent.ended


def test_the_same_batch_is_the_same_bytes() -> None:
    batches = [Batch([Point(NOW_NS + n) for n in range(size)], "w", {"t": "a"}, size) for size in (1, 30, 2)]
    agent, sent = started(Large), [messages.encode_points([each]) for each in batches]
    answers = b"".join(agent.feed(each) for frames in sent for each in frames)
    assert answers == b"".join(sent[1] + sent[2])


def test_the_same_needs_an_input_of_the_kind_that_is_provided() -> None:
    answers = started(Confused).feed(b"".join(messages.encode_points([Batch([])])))
    assert pb.Response.FromString(answers[1:]).error.error.startswith("TypeError: Confused returned SAME")


def test_outputs_are_as_they_were_when_they_were_returned() -> None:
    count = 50
    answers = started(Reuser).feed(b"".join(messages.encode_points([Point(NOW_NS + n) for n in range(count)])))
    found = [pb.Response.FromString(each).point.fieldsInt["n"] for each in FrameSplitter().feed(answers)]
    assert found == list(range(count))


@pytest.mark.parametrize("count", [3, 40])
def test_a_value_that_does_not_fit_is_the_error(count: int) -> None:
    agent = started(TooLarge)
    answers = agent.feed(
        messages.encode_message(pb.KeepaliveRequest(time=1))
        + b"".join(messages.encode_points(map(Point, range(count))))
    )
    keepalive, *_, last = FrameSplitter().feed(answers)
    assert frame(keepalive) == messages.encode_message(pb.KeepaliveRequest(time=1))
    assert pb.Response.FromString(last).error.error == "n: 9223372036854775808 does not fit in 64 bits"
    assert agent.ended and agent.error


class Divides(Function[None]):
    def point(self, point: Point, state: None) -> Point:
        return point.with_fields({"y": self.inverse(float(point.fields["x"]))})

    def inverse(self, x: float) -> float:
        return 1 / x


def test_an_error_names_the_authors_line_and_its_traceback_is_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    agent = started(Divides)
    answers = agent.feed(b"".join(messages.encode_points([Point(1, {}, {"x": 0.0})])))
    (error,) = FrameSplitter().feed(answers)
    text = pb.Response.FromString(error).error.error
    line = Divides.inverse.__code__.co_firstlineno + 1
    assert text == f"ZeroDivisionError: float division by zero ({__file__}, line {line}, in inverse)"
    assert "return 1 / x" in capsys.readouterr().err


class OfNumpy(Function[None]):
    def point(self, point: Point, state: None) -> Point:
        values: dict[str, Any] = {"d": np.float64(1.5), "f": np.float32(0.5), "i": np.int64(7), "b": np.bool_(True)}
        return point.with_fields(values | {"s": np.str_("x")})


def test_scalars_of_numpy_are_values() -> None:
    answers = started(OfNumpy).feed(b"".join(messages.encode_points([Point(n, {}, {"x": 0.0}) for n in range(50)])))
    for body in FrameSplitter().feed(answers):
        point = pb.Response.FromString(body).point
        assert (dict(point.fieldsDouble), dict(point.fieldsInt)) == ({"d": 1.5, "f": 0.5}, {"i": 7})
        assert (dict(point.fieldsBool), dict(point.fieldsString)) == ({"b": True}, {"s": "x"})


class Naps(Function[None]):
    def point(self, point: Point, state: None) -> Point:
        time.sleep(0.05)
        return point


def test_a_function_that_takes_its_time_is_heard_while_it_works() -> None:
    parts = list(started(Naps).answers(b"".join(messages.encode_points([Point(n) for n in range(10)]))))
    assert len(parts) >= 4 and len(FrameSplitter().feed(b"".join(parts))) == 10
