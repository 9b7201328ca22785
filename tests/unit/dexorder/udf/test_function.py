"""The SDK's base class and the agent without I/O, fed with requests as literal messages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import pytest

from dexorder.udf import Batch, Duration, Edge, Function, Point, option
from dexorder.udf.agent import Agent
from dexorder_protos.udf import udf_pb2 as pb
from dexorder_udf.framing import FrameSplitter, frame


@dataclass
class Count:
    number: int = 0
    seen: list[float] = field(default_factory=list)


class Counter(Function[Count]):
    """Counts the points of a group."""

    prefix = option(str, help="text before the count")
    step = option(int, 1)
    scale = option(float, 1.0)
    loud = option(bool, False)
    every = option(Duration, Duration(5))

    def check(self) -> None:
        if self.step < 1:
            raise ValueError(f"step must be above 0, not {self.step}")

    def new_state(self) -> Count:
        return Count()

    def point(self, point: Point, state: Count) -> Iterator[Point] | Point | None:
        if "fail" in point.fields:
            raise KeyError("no such thing")
        if "wrong" in point.fields:
            return Batch([])  # type: ignore[return-value]
        state.number += self.step
        state.seen.append(float(point.time_ns))
        if "twice" in point.fields:
            return iter([point, point])
        return point.with_fields({"count": f"{self.prefix}{state.number}"})

    def finish(self, groups: Mapping[str, Count]) -> list[Point]:
        return [Point(0, {"group": group}, {"total": state.number}) for group, state in groups.items()]


def exchange(agent: Agent, *requests: pb.Request) -> list[pb.Response]:
    data = agent.feed(b"".join(frame(each.SerializeToString()) for each in requests))
    return [pb.Response.FromString(each) for each in FrameSplitter().feed(data)]


def init(**options: pb.OptionValue) -> pb.Request:
    request = pb.Request()
    request.init.SetInParent()
    for name, value in options.items():
        request.init.options.add(name=name, values=[value])
    return request


TEXT = pb.OptionValue(type=pb.STRING, stringValue="n=")


def point(group: str = "g=1", **fields: int) -> pb.Request:
    return pb.Request(point=pb.Point(time=7, group=group, tags={"g": "1"}, dimensions=["g"], fieldsInt=fields))


def test_info_says_edges_and_option_types_before_init() -> None:
    (response,) = exchange(Agent(Counter), pb.Request(info=pb.InfoRequest()))
    info = response.info
    assert (info.wants, info.provides) == (pb.STREAM, pb.STREAM)
    assert {name: list(each.valueTypes) for name, each in info.options.items()} == {
        "prefix": [pb.STRING],
        "step": [pb.INT],
        "scale": [pb.DOUBLE],
        "loud": [pb.BOOL],
        "every": [pb.DURATION],
    }


def test_points_snapshot_and_keepalive_are_answered_in_order() -> None:
    agent = Agent(Counter)
    keepalive = pb.Request(keepalive=pb.KeepaliveRequest(time=12))
    responses = exchange(
        agent, init(prefix=TEXT), point(), keepalive, point(twice=1), pb.Request(snapshot=pb.SnapshotRequest())
    )
    kinds = [each.WhichOneof("message") for each in responses]
    assert kinds == ["init", "point", "keepalive", "point", "point", "snapshot"]
    assert responses[0].init.success and responses[2].keepalive.time == 12
    assert dict(responses[1].point.fieldsString) == {"count": "n=1"} and responses[1].point.tags == {"g": "1"}
    snapshot = responses[-1].snapshot.snapshot
    assert snapshot == b'{"version":1,"function":"Counter","groups":{"g=1":{"number":2,"seen":[7.0,7.0]}}}'

    other = Agent(Counter)
    restored = exchange(other, init(prefix=TEXT), pb.Request(restore=pb.RestoreRequest(snapshot=snapshot)), point())
    assert restored[1].restore.success and restored[2].point.fieldsString["count"] == "n=3"
    (last,) = [pb.Response.FromString(each) for each in FrameSplitter().feed(other.end())]
    assert last.point.fieldsInt["total"] == 3 and other.ended


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, 'option "prefix" is required: text before the count'),
        ({"prefix": TEXT, "other": TEXT}, 'unknown option "other"; the options: prefix, step, scale, loud, every'),
        ({"prefix": pb.OptionValue(type=pb.INT)}, 'option "prefix" takes one string, not int'),
        ({"prefix": TEXT, "step": pb.OptionValue(type=pb.INT)}, "step must be above 0, not 0"),
    ],
)
def test_init_fails_in_its_own_words(options: dict[str, pb.OptionValue], words: str) -> None:
    agent = Agent(Counter)
    (response,) = exchange(agent, init(**options))
    assert (response.init.success, response.init.error, agent.ended) == (False, words, True)


@pytest.mark.parametrize(
    ("requests", "words"),
    [
        ([point()], "the host sent point while the session was new"),
        ([init(prefix=TEXT), point(fail=1)], "KeyError: 'no such thing'"),
        ([init(prefix=TEXT), point(wrong=1)], "TypeError: Counter provides Points, but returned Batch"),
        ([init(prefix=TEXT), pb.Request(begin=pb.BeginBatch())], "the host sent begin of a batch on a stream edge"),
        ([init(prefix=TEXT), pb.Request()], "a message is empty"),
        ([init(prefix=TEXT), init(prefix=TEXT)], "the host sent init while the session was initialised"),
    ],
)
def test_a_failure_is_an_error_response(requests: list[pb.Request], words: str) -> None:
    agent = Agent(Counter)
    responses = exchange(agent, *requests)
    assert responses[-1].error.error.startswith(words)
    assert agent.ended and agent.error.startswith(words)


@pytest.mark.parametrize(
    ("snapshot", "words"),
    [
        (b"\x80gob", "not one of a dexorder function"),
        (b'{"version":1,"function":"Other","groups":{}}', "the snapshot is of Other version 1, not Counter version 1"),
        (b'{"version":1,"function":"Counter","groups":{"g":{"n":1}}}', "has the fields ['n'], not ['number', 'seen']"),
        (b"[1]", "not one of a dexorder function"),
    ],
)
def test_restore_fails_in_its_own_words(snapshot: bytes, words: str) -> None:
    agent = Agent(Counter)
    _, response = exchange(agent, init(prefix=TEXT), pb.Request(restore=pb.RestoreRequest(snapshot=snapshot)))
    assert not response.restore.success and words in response.restore.error


class BatchSize(Function[list[int]]):
    """Sizes of the batches of a group so far."""

    wants = Edge.BATCH
    max_groups = 2

    def new_state(self) -> list[int]:
        return []

    def batch(self, batch: Batch, state: list[int]) -> Point:
        state.append(len(batch.points))
        return Point(batch.tmax_ns, batch.tags, {"sizes": str(state)}, batch.name, tuple(batch.tags))


def a_batch(group: str, size: int) -> list[pb.Request]:
    return [
        pb.Request(begin=pb.BeginBatch(name="n", group=group, size=size)),
        *[pb.Request(point=pb.Point(time=each)) for each in range(size)],
        pb.Request(end=pb.EndBatch(name="n", group=group, tmax=9)),
    ]


def test_batches_in_and_points_out() -> None:
    agent = Agent(BatchSize)
    responses = exchange(agent, init(), *a_batch("a", 2), *a_batch("b", 0), *a_batch("a", 1))
    assert [each.point.fieldsString["sizes"] for each in responses[1:]] == ["[2]", "[0]", "[2, 1]"]
    (error,) = exchange(agent, *a_batch("c", 1))
    assert error.error.error == "more than 2 groups (max_groups)"


def test_state_that_is_not_json_is_named() -> None:
    class Bad(Function[set[int]]):
        def new_state(self) -> set[int]:
            return {1}

        def point(self, point: Point, state: set[int]) -> None:
            return None

    agent = Agent(Bad)
    *_, error = exchange(agent, init(), point(), pb.Request(snapshot=pb.SnapshotRequest()))
    assert error.error.error == "TypeError: state: {1} of type set is not a dataclass or a JSON type"


def test_an_option_of_another_type_is_refused_where_it_is_declared() -> None:
    with pytest.raises(TypeError, match="option of type dict; use bool, int, float, str or Duration"):
        option(dict)
