"""Client process of ``bench.udsource``: it reads a job per line from stdin and prints its measurement as a line.

Like Numaflow without read-ahead it reads a batch, acks it, and reads the next. It is grpcio's own client, which
costs about 17 us a message: rates are bounded by it, so compare the servers' processor time.
"""

from __future__ import annotations

import json
import queue
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Generic, TypeVar

import grpc

from dexorder_protos.source.v1 import source_pb2 as pb
from dexorder_protos.source.v1.source_pb2_grpc import SourceStub

Request = TypeVar("Request")
Response = TypeVar("Response")
_READ_TIMEOUT_MS = 1_000
_TIMEOUT_SECONDS = 60.0


@dataclass(frozen=True)
class Job:
    """Parameters of one measurement.

    Attributes:
        socket: Path of the server's unix socket.
        batch: Records per request.
        warm: Records read, checked and acked before the measurement.
        records: Records that are measured.
        payload_bytes: Size of each payload.
    """

    socket: str
    batch: int
    warm: int
    records: int
    payload_bytes: int


@dataclass(frozen=True)
class Measured:
    """Result of a measurement; ``batches`` is the number of answers with the measured records."""

    rate: float
    batches: int


class Stream(Generic[Request, Response]):
    """One bidirectional call whose requests are sent one by one."""

    def __init__(self, method: Callable[..., Any]) -> None:
        self._requests = queue.SimpleQueue[Request | None]()
        self._answers = method(iter(self._requests.get, None))

    def send(self, request: Request) -> None:
        self._requests.put(request)

    def receive(self) -> Response:
        answer: Response = next(self._answers)
        return answer

    def finish(self) -> None:
        """End the requests, and wait for the end of the answers."""
        self._requests.put(None)
        assert list(self._answers) == []


Reader = Stream[pb.ReadRequest, pb.ReadResponse]
Acker = Stream[pb.AckRequest, pb.AckResponse]


def measure(job: Job) -> Measured:
    """Run one job on a new connection."""
    with grpc.insecure_channel(f"unix:{job.socket}") as channel:
        stub = SourceStub(channel)
        reader, acker = Reader(stub.ReadFn), Acker(stub.AckFn)
        greeting = pb.Handshake(sot=True)
        reader.send(pb.ReadRequest(handshake=greeting))
        reader.receive()
        acker.send(pb.AckRequest(handshake=greeting))
        acker.receive()
        drain(reader, acker, job, job.warm)
        started = time.perf_counter()
        batches = drain(reader, acker, job, job.records)
        seconds = time.perf_counter() - started
        for stream in (reader, acker):
            stream.finish()
        return Measured(job.records / seconds, batches)


def drain(reader: Reader, acker: Acker, job: Job, records: int) -> int:
    """Read and ack ``records`` records; return the number of batches.

    Raises:
        AssertionError: Records are missing, or a payload has another size.
    """
    batches, left, deadline = 0, records, time.monotonic() + _TIMEOUT_SECONDS
    while left:
        request = pb.ReadRequest.Request(num_records=min(left, job.batch), timeout_in_ms=_READ_TIMEOUT_MS)
        reader.send(pb.ReadRequest(request=request))
        offsets = []
        while not (answer := reader.receive()).status.eot:
            assert len(answer.result.payload) == job.payload_bytes
            offsets.append(answer.result.offset)
        if not offsets:
            if time.monotonic() > deadline:
                raise AssertionError(f"{left} of {records} records are missing")
            continue
        acker.send(pb.AckRequest(request=pb.AckRequest.Request(offsets=offsets)))
        acker.receive()
        left -= len(offsets)
        batches, deadline = batches + 1, time.monotonic() + _TIMEOUT_SECONDS
    return batches


def main() -> None:
    """Run jobs until stdin ends."""
    for line in sys.stdin:
        print(json.dumps(asdict(measure(Job(**json.loads(line))))), flush=True)


if __name__ == "__main__":
    main()
