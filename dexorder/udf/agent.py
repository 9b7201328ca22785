"""One session of a function, without I/O: requests of the host in, responses out."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from dexorder.services.common.udf import messages
from dexorder.services.common.udf.errors import ProtocolError
from dexorder.services.common.udf.framing import DEFAULT_LIMIT_BYTES, FrameSplitter
from dexorder.services.common.udf.options import OptionValue, ValueType
from dexorder.services.common.udf.points import Batch, Point
from dexorder.services.common.udf.session import AgentSession, Edge, Kind
from dexorder.services.gen.udf import udf_pb2 as pb
from dexorder.udf.function import Function, Output, values_of


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
        self._begin: pb.BeginBatch | None = None
        self._batch: list[Point] = []

    def feed(self, data: bytes) -> bytes:
        """Return the frames that answer the requests in ``data``; the last one is an error if something failed."""
        out: list[bytes] = []
        try:
            for body in self._splitter.feed(data):
                self._take(body, out)
            self._splitter.check()
        except Exception as error:  # whatever the function raises is its error
            self._fail(error, out)
        return b"".join(out)

    def end(self) -> bytes:
        """Return what is left to send after the end of the input."""
        out: list[bytes] = []
        try:
            if self._function is not None:
                self._send(self._function.end(), out)
        except Exception as error:
            self._fail(error, out)
        self.ended = True
        return b"".join(out)

    def _take(self, body: bytes, out: list[bytes]) -> None:
        request = messages.decode_request(body)
        kind = messages.kind_of(request)
        if kind is not Kind.POINT or not self._session.takes_points:
            self._session.receives(kind, request.begin.size if kind is Kind.BEGIN else 0)
        if kind is Kind.POINT:
            if self._begin is not None:
                self._batch.append(messages.decode_batch_point(request.point))
            else:
                function, point = self._running, request.point
                self._send(function.point(messages.decode_point(point), function.state_of(point.group)), out)
        elif kind is Kind.BEGIN:
            self._begin = request.begin
        elif kind is Kind.END:
            self._end_batch(request.end, out)
        else:
            out.append(messages.encode_request(_MANAGEMENT[kind](self, request), kind))

    @property
    def _running(self) -> Function[Any]:
        assert self._function is not None  # the session lets data in only after init
        return self._function

    def _end_batch(self, end: pb.EndBatch, out: list[bytes]) -> None:
        assert self._begin is not None
        batch = messages.decode_batch(self._begin, self._batch, end)
        self._begin, self._batch = None, []
        function = self._running
        self._send(function.batch(batch, function.state_of(end.group)), out)

    def _send(self, output: Output, out: list[bytes]) -> None:
        if output is None:
            return
        if isinstance(output, Point) and self._kind.provides is Edge.STREAM:
            out += messages.encode_points((output,))
            return
        items: Iterable[Any] = (output,) if isinstance(output, Point | Batch) else output
        provides = Point if self._kind.provides is Edge.STREAM else Batch
        checked: list[Point | Batch] = []
        for each in items:
            if not isinstance(each, provides):
                raise TypeError(f"{self._kind.__name__} provides {provides.__name__}s, but returned {each!r:.100}")
            checked.append(each)
        out += messages.encode_points(checked)

    def _info(self, request: pb.Request) -> pb.InfoResponse:
        info = pb.InfoResponse(
            wants=pb.EdgeType.ValueType(self._kind.wants), provides=pb.EdgeType.ValueType(self._kind.provides)
        )
        for name, each in self._kind.options().items():
            info.options[name].valueTypes.append(pb.ValueType.ValueType(each.value_type))
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

    def _fail(self, error: Exception, out: list[bytes]) -> None:
        text = str(error)
        known = isinstance(error, ValueError | ProtocolError)
        self.error = text if known and text else f"{type(error).__name__}: {text}"
        self.ended = True
        out.append(messages.encode_request(pb.ErrorResponse(error=self.error), Kind.ERROR))


_MANAGEMENT: dict[Kind, Callable[[Agent, pb.Request], Any]] = {
    Kind.INFO: Agent._info,
    Kind.INIT: Agent._init,
    Kind.KEEPALIVE: Agent._keepalive,
    Kind.SNAPSHOT: Agent._snapshot,
    Kind.RESTORE: Agent._restore,
}
_FIELDS = ("boolValue", "intValue", "doubleValue", "stringValue", "durationValue")


def _value(value: pb.OptionValue) -> OptionValue:
    return OptionValue(ValueType(value.type), getattr(value, _FIELDS[value.type]))
