"""Agents of the UDF protocol, written from the protocol alone: ``udf_agent.py NAME [unix socket]``.

They use protobuf and nothing of the suite but the generated code of the given messages. ``mirror`` sends points back,
``average`` is the mean of the last ``size`` points of each group, ``outliers`` sends the points of a batch that are
more than ``scale`` from its mean.
"""

from __future__ import annotations

import json
import socket
import sys
from typing import BinaryIO

from dexorder_protos.udf import udf_pb2 as pb


class Wire:
    """Frames of one connection, read one byte of a length at a time."""

    def __init__(self, source: BinaryIO, sink: BinaryIO) -> None:
        self.source = source
        self.sink = sink

    def read(self) -> pb.Request | None:
        size = shift = 0
        while True:
            byte = self.source.read(1)
            if not byte:
                return None
            size |= (byte[0] & 0x7F) << shift
            shift += 7
            if byte[0] < 0x80:
                return pb.Request.FromString(self.source.read(size))

    def write(self, response: pb.Response) -> None:
        body = response.SerializeToString()
        size, length = bytearray(), len(body)
        while length > 0x7F:
            size.append(length & 0x7F | 0x80)
            length >>= 7
        size.append(length)
        self.sink.write(bytes(size) + body)


class Mirror:
    """Data as they came; no options, no state."""

    wants = provides = pb.STREAM

    def info(self, info: pb.InfoResponse) -> None:
        info.wants, info.provides = self.wants, self.provides

    def init(self, options: dict[str, list[pb.OptionValue]]) -> str:
        """Return an error, or nothing."""
        return ""

    def snapshot(self) -> bytes:
        return b""

    def restore(self, state: bytes) -> str:
        return ""

    def data(self, request: pb.Request) -> list[pb.Response]:
        response = pb.Response()
        response.ParseFromString(request.SerializeToString())
        return [response]


class NoSnapshot(Mirror):
    """Mirror that ends when it is asked for a snapshot."""

    def snapshot(self) -> bytes:
        raise NotImplementedError("it gives no snapshot")


class BatchMirror(Mirror):
    wants = provides = pb.BATCH


class Average(Mirror):
    """Mean of the last points of a group, in field ``mean`` beside its tags."""

    size = 3

    def __init__(self) -> None:
        self.windows: dict[str, list[float]] = {}

    def info(self, info: pb.InfoResponse) -> None:
        super().info(info)
        info.options["size"].valueTypes.append(pb.INT)

    def init(self, options: dict[str, list[pb.OptionValue]]) -> str:
        if "size" in options:
            self.size = options["size"][0].intValue
        return "" if self.size > 0 else f"size must be above 0, not {self.size}"

    def snapshot(self) -> bytes:
        return json.dumps(self.windows).encode()

    def restore(self, state: bytes) -> str:
        self.windows = json.loads(state)
        return ""

    def data(self, request: pb.Request) -> list[pb.Response]:
        point = request.point
        window = self.windows.setdefault(point.group, [])
        window.append(point.fieldsDouble["value"])
        del window[: -self.size]
        response = pb.Response()
        response.point.time, response.point.name = point.time, point.name
        response.point.tags.update(point.tags)
        response.point.dimensions.extend(point.dimensions)
        response.point.fieldsDouble["mean"] = sum(window) / len(window)
        return [response]


class Outliers(Mirror):
    """Points of a batch whose value is far from the batch's mean."""

    wants = provides = pb.BATCH
    scale = 10.0

    def __init__(self) -> None:
        self.points: list[pb.Point] = []

    def info(self, info: pb.InfoResponse) -> None:
        super().info(info)
        info.options["scale"].valueTypes.append(pb.DOUBLE)

    def init(self, options: dict[str, list[pb.OptionValue]]) -> str:
        if "scale" in options:
            self.scale = options["scale"][0].doubleValue
        return ""

    def data(self, request: pb.Request) -> list[pb.Response]:
        if request.HasField("begin"):
            self.points = []
            return [pb.Response(begin=pb.BeginBatch(name=request.begin.name, group=request.begin.group))]
        if request.HasField("point"):
            self.points.append(request.point)
            return []
        values = [each.fieldsDouble["value"] for each in self.points]
        mean = sum(values) / len(values) if values else 0.0
        far = [each for each, value in zip(self.points, values, strict=True) if abs(value - mean) > self.scale]
        return [*(pb.Response(point=each) for each in far), pb.Response(end=request.end)]


AGENTS = {
    "mirror": Mirror,
    "no_snapshot": NoSnapshot,
    "batch_mirror": BatchMirror,
    "average": Average,
    "outliers": Outliers,
}


def answer(agent: Mirror, request: pb.Request) -> list[pb.Response]:
    """Return the responses to a request."""
    response = pb.Response()
    kind = request.WhichOneof("message")
    if kind == "info":
        agent.info(response.info)
    elif kind == "init":
        response.init.error = agent.init({each.name: list(each.values) for each in request.init.options})
        response.init.success = not response.init.error
    elif kind == "keepalive":
        response.keepalive.time = request.keepalive.time
    elif kind == "snapshot":
        response.snapshot.snapshot = agent.snapshot()
    elif kind == "restore":
        response.restore.error = agent.restore(request.restore.snapshot)
        response.restore.success = not response.restore.error
    else:
        return agent.data(request)
    return [response]


def run(agent: Mirror, wire: Wire) -> None:
    """Serve one session until the end of its input."""
    while (request := wire.read()) is not None:
        for response in answer(agent, request):
            wire.write(response)
        if request.WhichOneof("message") != "point":
            wire.sink.flush()
    wire.sink.flush()


def main() -> None:
    kind = AGENTS[sys.argv[1]]
    if len(sys.argv) == 2:
        run(kind(), Wire(sys.stdin.buffer, sys.stdout.buffer))
        return
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(sys.argv[2])
        listener.listen()
        while True:
            connection, _ = listener.accept()
            with connection, connection.makefile("rwb") as file:
                run(kind(), Wire(file, file))  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
