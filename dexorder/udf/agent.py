"""One session of a function, without I/O: requests of the host in, responses out."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from dexorder.udf.function import Function, Output, Same, values_of
from dexorder.udf.outputs import VALUE_TYPES, check_fields
from dexorder_protos.udf import udf_pb2 as pb
from dexorder_udf import messages
from dexorder_udf.batch_points import BatchPoints, point_body, points_from
from dexorder_udf.errors import ProtocolError
from dexorder_udf.framing import DEFAULT_LIMIT_BYTES, FrameSplitter, frame
from dexorder_udf.options import OptionValue, ValueType
from dexorder_udf.point_layouts import PointLayouts
from dexorder_udf.point_writer import PointWriter
from dexorder_udf.points import MARK, Batch, Point
from dexorder_udf.session import AgentSession, Edge, MessageKind

_OURS = (str(Path(__file__).parent), str(Path(messages.__file__).parent))
_QUIET_SECONDS = 0.1
"""Longest time without an answer while a function works on messages that were read together."""


class Agent:
    """A function as the host sees it. ``feed`` takes bytes and returns the answers, until ``ended``.

    Answers come in the order of the requests, so a snapshot covers exactly the data before it.
    """

    def __init__(self, function: type[Function[Any]], limit_bytes: int = DEFAULT_LIMIT_BYTES) -> None:
        self.ended = False
        self.error = ""
        self._kind = function
        self._function: Function[Any] | None = None
        self._session = AgentSession(function.wants)
        self._splitter = FrameSplitter(limit_bytes)
        self._points = PointLayouts(in_batch=False)
        self._out = PointWriter()
        self._begin: pb.BeginBatch | None = None
        self._batch: list[bytes] = []
        self._frames: list[bytes] = []
        self._has_timers = function.has_timers()
        self._newest_ns = -(1 << 63)

    def feed(self, data: bytes) -> bytes:
        """Return the frames that answer the requests in ``data``; the last one is an error if something failed."""
        return b"".join(self.answers(data))

    def answers(self, data: bytes) -> Iterator[bytes]:
        """Yield what ``feed`` returns, in parts: a function that takes its time is heard while it works."""
        try:
            bodies, place = self._splitter.feed(data), 0
            while (place := self._take(bodies, place)) < len(bodies):
                if frames := self._out.take():
                    yield b"".join(frames)
            self._splitter.check()
        except Exception as error:  # each exception of the function is its error
            self._fail(error)
        yield self._answers()

    def end(self) -> bytes:
        """Return the remaining output after the end of the input."""
        self.ended = True
        try:
            if self._function is not None:
                for each in self._function.reach_all(self._newest_ns):
                    self._send(each)
                self._send(self._function.end())
        except Exception as error:
            self._fail(error)
        return self._answers()

    def _take(self, bodies: Sequence[bytes], place: int) -> int:
        """Take messages from a place for a while; return the place of the next one."""
        if self._kind.wants is Edge.BATCH:
            return self._take_in_batches(bodies, place)
        takes_points, until = self._session.takes_points, time.monotonic() + _QUIET_SECONDS
        for number in range(place, len(bodies)):
            body = bodies[number]
            if takes_points and (found := self._points.decode(body)) is not None:
                self._take_point(body, *found)
            else:
                self._take_request(body)
                takes_points = self._session.takes_points
            if time.monotonic() >= until:
                return number + 1
        return len(bodies)

    def _take_in_batches(self, bodies: Sequence[bytes], place: int) -> int:
        until = time.monotonic() + _QUIET_SECONDS
        while place < len(bodies) and time.monotonic() < until:
            if self._begin is not None and (end := points_from(bodies, place)) > place:
                self._batch += bodies[place:end]
                self._frames += bodies[place:end]
                place = end
            else:
                self._take_request(bodies[place])
                place += 1
        return place

    def _take_request(self, body: bytes) -> None:
        request = messages.decode_request(body)
        kind = messages.kind_of(request)
        self._session.receives(kind, request.begin.size if kind is MessageKind.BEGIN else 0)
        if kind is MessageKind.POINT and self._begin is not None:  # in another form than all agents write
            self._batch.append(point_body(request.point))
            self._frames.append(body)
        elif kind is MessageKind.POINT:
            self._take_point(body, self._points.learn(body, request.point), request.point.group)
        elif kind is MessageKind.BEGIN:
            self._begin = request.begin
            self._frames = [body]
        elif kind is MessageKind.END:
            self._end_batch(body, request.end)
        else:
            self._out.add_frame(messages.encode_message(_MANAGEMENT[kind](self, request)))

    def _take_point(self, body: bytes, point: Point, group: str) -> None:
        if self._has_timers:
            self._take_in_time(body, point, group)
        else:
            function = self._running
            self._send(function.point(point, function.state_of(group)), body)

    def _take_in_time(self, body: bytes, point: Point, group: str) -> None:
        """Take a point, or a mark of the settled time, after the timers that are due by then."""
        function = self._running
        self._newest_ns = max(self._newest_ns, point.time_ns)
        for each in function.reach(group, point.time_ns):
            self._send(each)
        if point.name != MARK:
            self._send(function.take(group, point), body)

    @property
    def _running(self) -> Function[Any]:
        assert self._function is not None  # the session lets data in only after init
        return self._function

    def _end_batch(self, body: bytes, end: pb.EndBatch) -> None:
        assert self._begin is not None
        batch = messages.decode_batch(self._begin, BatchPoints(self._batch), end)
        frames = [*self._frames, body]
        self._begin = None
        self._batch = []
        self._frames = []
        function = self._running
        self._send(function.batch(batch, function.state_of(end.group)), *frames)

    def _send(self, output: Output, *given: bytes) -> None:
        """Add outputs to the answers; ``given`` is the messages of the input, which are sent on for `SAME`."""
        provides: type[Point | Batch] = Point if self._kind.provides is Edge.STREAM else Batch
        if isinstance(output, provides):
            self._write(output)
        elif isinstance(output, Same):
            if self._kind.outputs:
                raise TypeError(f"{self._kind.__name__} returned SAME, and declares other outputs")
            if not given or self._kind.provides is not self._kind.wants:
                raise TypeError(f"{self._kind.__name__} returned SAME, but has no input that it may send on")
            for body in given:
                self._out.add_frame(frame(body))
        elif output is not None:
            for each in (output,) if isinstance(output, Point | Batch) else output:
                if not isinstance(each, provides):
                    raise TypeError(f"{self._kind.__name__} provides {provides.__name__}s, but returned {each!r:.100}")
                self._write(each)

    def _write(self, item: Point | Batch) -> None:
        if self._kind.outputs:
            for each in item.points if isinstance(item, Batch) else (item,):
                check_fields(each, self._kind.outputs)
        messages.write(self._out, item)

    def _answers(self) -> bytes:
        try:
            frames = self._out.take()
        except ValueError as error:  # a value does not fit in its field
            self._fail(error)
            frames = self._out.take()
        if self.error:
            frames.append(messages.encode_message(pb.ErrorResponse(error=self.error)))
        return b"".join(frames)

    def _info(self, request: pb.Request) -> pb.InfoResponse:
        info = pb.InfoResponse(
            wants=pb.EdgeType.ValueType(self._kind.wants), provides=pb.EdgeType.ValueType(self._kind.provides)
        )
        for name, each in self._kind.options().items():
            info.options[name].valueTypes.append(pb.ValueType.ValueType(each.value_type))
        if self._has_timers:
            info.options[messages.TIMERS].SetInParent()
        for name, kind in self._kind.outputs.items():
            info.options[messages.OUTPUT + name].valueTypes.append(pb.ValueType.ValueType(VALUE_TYPES[kind]))
        return info

    def _init(self, request: pb.Request) -> pb.InitResponse:
        given: dict[str, list[OptionValue]] = {}
        for each in request.init.options:
            given.setdefault(each.name, []).extend(map(_value, each.values))
        try:
            self._function = self._kind(values_of(self._kind, given))
        except ValueError as error:
            self.ended = True
            return pb.InitResponse(success=False, error=str(error))
        return pb.InitResponse(success=True)

    def _snapshot(self, request: pb.Request) -> pb.SnapshotResponse:
        return pb.SnapshotResponse(snapshot=self._running.snapshot())

    def _restore(self, request: pb.Request) -> pb.RestoreResponse:
        try:
            self._running.restore(request.restore.snapshot)
        except (ValueError, TypeError) as error:
            self.ended = True
            return pb.RestoreResponse(success=False, error=str(error))
        return pb.RestoreResponse(success=True)

    def _keepalive(self, request: pb.Request) -> pb.KeepaliveResponse:
        return pb.KeepaliveResponse(time=request.keepalive.time)

    def _fail(self, error: Exception) -> None:
        text = str(error)
        known = isinstance(error, ValueError | ProtocolError)
        self.error = self.error or (text if known and text else f"{type(error).__name__}: {text}") + _place(error)
        self.ended = True


def _place(error: Exception) -> str:
    """Print the traceback of an error of an author's code, and return its file and line; None for code of ours."""
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [each for each in frames if not each.filename.startswith(_OURS)]
    if not theirs or frames[-1].filename.startswith(_OURS):
        return ""
    traceback.print_exception(error)
    line = [each for each in theirs if each.filename == theirs[0].filename][-1]  # not one of a library that it calls
    return f" ({line.filename}, line {line.lineno}, in {line.name})"


_MANAGEMENT: dict[MessageKind, Callable[[Agent, pb.Request], Any]] = {
    MessageKind.INFO: Agent._info,
    MessageKind.INIT: Agent._init,
    MessageKind.KEEPALIVE: Agent._keepalive,
    MessageKind.SNAPSHOT: Agent._snapshot,
    MessageKind.RESTORE: Agent._restore,
}
_FIELDS = ("boolValue", "intValue", "doubleValue", "stringValue", "durationValue")


def _value(value: pb.OptionValue) -> OptionValue:
    return OptionValue(ValueType(value.type), getattr(value, _FIELDS[value.type]))
