"""Agents written from the protocol alone, for tests of whoever hosts UDFs: ``python -m tests.fakes.udf_agent KIND``.

    sum       stream: for each point its count and the sum of a field in its group; can be restored
    range     batch: one point for each batch, with its size, first and last time
    mirror    stream: every point unchanged
    hang      stream: answers nothing after init

``--die-at N`` ends a stream's process with SIGKILL once it has seen N points since its start, while the file that
``--fuse`` names exists, which is removed. ``--refuse TEXT`` answers the third point with an error.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from dexorder_protos.udf import udf_pb2 as pb


def read_message() -> pb.Request | None:
    size = shift = 0
    while True:
        byte = sys.stdin.buffer.read(1)
        if not byte:
            return None
        size |= (byte[0] & 0x7F) << shift
        shift += 7
        if byte[0] < 0x80:
            return pb.Request.FromString(sys.stdin.buffer.read(size))


def write(**message: Any) -> None:
    data = pb.Response(**message).SerializeToString()
    size, head = len(data), bytearray()
    while size >= 0x80:
        head.append(size & 0x7F | 0x80)
        size >>= 7
    head.append(size)
    sys.stdout.buffer.write(bytes(head) + data)


class Agent:
    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.field = "price"
        self.groups: dict[str, list[float]] = {}
        self.seen = 0
        self.batch: list[pb.Point] = []

    def info(self) -> pb.InfoResponse:
        edge = pb.BATCH if self.options.kind == "range" else pb.STREAM
        return pb.InfoResponse(wants=edge, provides=pb.STREAM, options={"field": pb.OptionInfo(valueTypes=[pb.STRING])})

    def take(self, request: pb.Request) -> None:
        kind = request.WhichOneof("message")
        if kind == "info":
            write(info=self.info())
        elif kind == "init":
            for option in request.init.options:
                self.field = option.values[0].stringValue
            print(f"field is {self.field}", file=sys.stderr, flush=True)
            write(init=pb.InitResponse(success=True))
        elif self.options.kind == "hang":
            return
        elif kind == "keepalive":
            write(keepalive=pb.KeepaliveResponse(time=request.keepalive.time))
        elif kind == "snapshot":
            write(snapshot=pb.SnapshotResponse(snapshot=json.dumps(self.groups).encode()))
        elif kind == "restore":
            self.groups = json.loads(request.restore.snapshot)
            write(restore=pb.RestoreResponse(success=True))
        elif kind == "begin":
            self.batch = []
        elif kind == "end":
            times = [point.time for point in self.batch]
            fields = {"count": len(times), "first": times[0], "last": times[-1]}
            tags = dict(request.end.tags)
            write(
                point=pb.Point(
                    time=request.end.tmax, name="range", tags=tags, dimensions=sorted(tags), fieldsInt=fields
                )
            )
        elif kind == "point":
            self.point(request.point)

    def point(self, point: pb.Point) -> None:
        self.seen += 1
        if self.options.kind == "range":
            self.batch.append(point)
            return
        if self.options.refuse and self.seen == 3:
            write(error=pb.ErrorResponse(error=self.options.refuse))
            return
        if self.seen == self.options.die_at and Path(self.options.fuse).exists():
            Path(self.options.fuse).unlink()
            sys.stdout.flush()
            os.kill(os.getpid(), signal.SIGKILL)
        if self.options.kind == "mirror":
            write(point=point)
            return
        found = self.groups.setdefault(point.group, [0, 0.0])
        found[0] += 1
        found[1] += point.fieldsDouble[self.field]
        out = pb.Point(time=point.time, name="sum", tags=point.tags, dimensions=point.dimensions)
        out.fieldsInt["count"], out.fieldsDouble["sum"] = int(found[0]), found[1]
        write(point=out)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=("sum", "range", "mirror", "hang"))
    parser.add_argument("--die-at", type=int, default=0)
    parser.add_argument("--fuse", default="")
    parser.add_argument("--refuse", default="")
    agent = Agent(parser.parse_args())
    while (request := read_message()) is not None:
        agent.take(request)
        sys.stdout.flush()


if __name__ == "__main__":
    main()
