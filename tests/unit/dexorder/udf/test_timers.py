"""Timers of functions: the same calls over a file and on the stream, over snapshots; and declared outputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dexorder.udf import Edge, Function, Point, option, run_function
from dexorder.udf.functions import FUNCTIONS
from dexorder.udf.run import _Session, run_points
from dexorder_protos.udf import udf_pb2 as pb
from dexorder_udf import messages
from dexorder_udf.errors import ProtocolError, UdfError
from dexorder_udf.framing import FrameSplitter
from dexorder_udf.options import OptionValue, ValueType
from dexorder_udf.points import mark

GROUPS = ("a", "b", "c")


@dataclass
class Quiet:
    """Points since the last output, and outputs since the last point."""

    points: int = 0
    ticks: int = 0


class Sessions(Function[Quiet]):
    """Says how many points came until there was none for ``gap`` ns, and again each ``gap`` ns, ``most`` times."""

    gap = option(int, 5)
    most = option(int, 3)
    outputs: ClassVar[Mapping[str, type]] = {"points": int, "tick": int, "mean": float}

    def new_state(self) -> Quiet:
        return Quiet()

    def point(self, point: Point, state: Quiet) -> None:
        state.points, state.ticks = state.points + 1, 0
        self.set_timer(point.time_ns + self.gap)

    def timer(self, time_ns: int, state: Quiet) -> Iterator[Point]:
        state.ticks += 1
        yield Point(time_ns, {}, {"points": state.points, "tick": state.ticks})
        state.points = 0
        self.set_timer(time_ns + self.gap if state.ticks < self.most else None)


def point(group: str, time_ns: int) -> Point:
    return Point(time_ns, {"g": group}, {"x": 1.0}, "m", ("g",))


class Live:
    """The function as the stream runs it: pieces, marks of the settled time, a new process after each snapshot."""

    def __init__(self) -> None:
        self.outputs: list[Any] = []
        self._start(b"")

    def _start(self, snapshot: bytes) -> None:
        self._session = _Session(Sessions)
        self._session.feed(messages.init_request({}, "t", "n"))
        if snapshot:
            self._session.feed(messages.encode_message(pb.RestoreRequest(snapshot=snapshot)))

    def feed(self, points: list[Point]) -> None:
        self._session.feed(b"".join(messages.encode_points(points)))

    def restart(self) -> None:
        self.outputs += self._session._received.take()
        self._start(self._session._agent._running.snapshot())


come = st.tuples(st.sampled_from(GROUPS), st.integers(0, 60), st.sampled_from((0, 0, 0, 1, 5)))
"""Group, time, and how much later than others it comes."""


@settings(max_examples=25)
@given(
    st.lists(come, max_size=30).map(lambda found: sorted(found, key=lambda each: each[1] + each[2])),
    st.lists(st.integers(0, 30), max_size=5).map(sorted),
    st.data(),
)
def test_any_live_pieces_give_each_group_the_calls_of_the_file(
    fed: list[tuple[str, int, int]], cuts: list[int], data: st.DataObject
) -> None:
    offline: dict[str, list[Any]] = {}
    live: dict[str, list[Any]] = {}
    newest_ns = max((time_ns for _, time_ns, _ in fed), default=0)
    for group in GROUPS:  # a function's outputs need no tags: each group is run alone, up to the file's newest time
        own = [point(group, time_ns) for each, time_ns, _ in fed if each == group]
        offline[group] = run_points(Sessions, [*own, point("other", newest_ns)], {})
        stream = Live()
        for first, end in pairwise([0, *cuts, len(own)]):
            stream.feed(own[first:end])
            later = [each.time_ns for each in own[max(first, end) :]]
            settled_ns = min([*later, newest_ns]) - data.draw(st.sampled_from((0, 0, 1, 7)))
            stream.feed([mark(settled_ns, {"g": group})])
            stream.restart()
        stream.feed([mark(newest_ns, {"g": group})])
        stream.restart()
        live[group] = stream.outputs
    assert live == offline


def test_a_timer_fires_without_a_next_point_and_before_a_later_one() -> None:
    rows = [{"time_ns": 10**18 + time_ns, "ticker": ticker} for time_ns, ticker in ((0, "a"), (1, "a"), (20, "b"))]
    found = run_function(Sessions, rows)
    assert [(row["time"] - 10**18, row["points"], row["tick"]) for row in found] == [(6, 2, 1), (11, 0, 2), (16, 0, 3)]


def test_candles_close_when_their_time_is_settled_and_what_comes_then_is_late() -> None:
    session = _Session(FUNCTIONS["resample"])
    options = {"every": (OptionValue(ValueType.DURATION, 10),)}
    session.feed(messages.init_request(options, "t", "n"))

    def trade(time_ns: int) -> Point:
        return Point(time_ns, {"g": "a"}, {"price": 1.0, "amount": 1.0}, "ticks", ("g",))

    items = [trade(21), mark(29, {"g": "a"}), mark(30, {"g": "a"}), trade(25), trade(31), trade(41)]
    session.feed(b"".join(messages.encode_points(items)))
    found = session.end()
    assert [(each.time_ns, each.fields["count"], each.fields["late"]) for each in found if isinstance(each, Point)] == [
        (20, 1, 0),
        (30, 1, 1),
    ]


def test_a_timer_that_would_never_end_is_an_error() -> None:
    class Endless(Function[None]):
        def point(self, point: Point, state: None) -> None:
            self.set_timer(point.time_ns)

        def timer(self, time_ns: int, state: None) -> None:
            self.set_timer(time_ns)

    with pytest.raises(UdfError, match=r"set_timer: 1000000000 is not after 1000000000"):
        run_function(Endless, [{"time": 1, "x": 1}])


def test_a_function_whose_timers_would_be_lost_is_refused() -> None:
    with pytest.raises(TypeError, match="with timer leave snapshot and restore alone"):
        type("Own", (Sessions,), {"snapshot": lambda self: b""})
    with pytest.raises(TypeError, match="timer is for points"):
        type("Batches", (Sessions,), {"wants": Edge.BATCH})


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("x", "field mean: 'x' is not a float, as outputs declares"),
        (True, "field mean: True is not a float"),
        (None, "field mean: None is not a float"),
    ],
)
def test_a_value_of_another_type_than_declared_names_field_and_value(value: Any, words: str) -> None:
    class Wrong(Function[None]):
        outputs: ClassVar[Mapping[str, type]] = {"mean": float, "n": int}

        def point(self, point: Point, state: None) -> Point:
            return point.with_fields({"mean": value})

    with pytest.raises(UdfError, match=words):
        run_function(Wrong, [{"time": 1, "x": 1}])


def test_scalars_have_the_declared_type_and_other_fields_are_refused() -> None:
    class Right(Function[None]):
        outputs: ClassVar[Mapping[str, type]] = {"mean": float, "n": int, "ok": bool}
        more = option(str, "")

        def point(self, point: Point, state: None) -> Point:
            fields: dict[str, Any] = {"mean": 2, "n": np.int64(3), "ok": np.bool_(True)}
            return point.with_fields(fields | ({self.more: 1} if self.more else {}))

    (row,) = run_function(Right, [{"time": 1, "x": 1}])
    assert [(type(row[each]), row[each]) for each in ("mean", "n", "ok")] == [(float, 2.0), (int, 3), (bool, True)]
    with pytest.raises(UdfError, match="field no: 1 is not declared; outputs has mean, n, ok"):
        run_function(Right, [{"time": 1, "x": 1}], options={"more": "no"})
    with pytest.raises(TypeError, match=r"outputs: 'x' of type <class 'list'>"):
        type("Wrong", (Right,), {"outputs": {"x": list}})


def test_the_info_says_timers_and_outputs_and_is_bounded() -> None:
    session = _Session(Sessions)
    (body,) = FrameSplitter().feed(session._agent.feed(messages.encode_message(pb.InfoRequest())))
    info = messages.read_info(messages.decode_response(body).info)
    assert info.has_timers and sorted(info.options) == ["gap", "most"]
    assert info.outputs == {"points": ValueType.INT, "tick": ValueType.INT, "mean": ValueType.DOUBLE}
    many = pb.InfoResponse()
    for number in range(201):
        many.options[f"{messages.OUTPUT}{number}"].valueTypes.append(pb.INT)
    with pytest.raises(ProtocolError, match="declares outputs that are not 200"):
        messages.read_info(many)
