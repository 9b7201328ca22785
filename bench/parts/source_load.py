"""Client process of ``bench.udsource``: it reads a job per line from stdin and prints its measurement as a line.

Like Numaflow without read-ahead it reads a batch, acks it, and reads the next. It parses only the offset of a record,
which goes into the ack unchanged.
"""

from __future__ import annotations

import json
import sys
import time
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.parts.http2 import Connection, Stream
from dexorder_protos.source.v1 import source_pb2 as pb

_SERVICE = "/source.v1.Source"
_RESULT = 0x0A
"""First byte of a response with a record; an end of transmission starts with its status."""
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


def measure(job: Job) -> Measured:
    """Run one job on a new connection."""
    with closing(Connection(Path(job.socket))) as connection:
        reader, acker = connection.open(f"{_SERVICE}/ReadFn"), connection.open(f"{_SERVICE}/AckFn")
        greeting = pb.Handshake(sot=True)
        reader.send(pb.ReadRequest(handshake=greeting).SerializeToString())
        reader.receive()
        acker.send(pb.AckRequest(handshake=greeting).SerializeToString())
        acker.receive()
        drain(reader, acker, job, job.warm, checked=True)
        started = time.perf_counter()
        batches = drain(reader, acker, job, job.records)
        seconds = time.perf_counter() - started
        for stream in (reader, acker):
            stream.finish()
        return Measured(job.records / seconds, batches)


def drain(reader: Stream, acker: Stream, job: Job, records: int, *, checked: bool = False) -> int:
    """Read and ack ``records`` records; return the number of batches.

    Raises:
        AssertionError: Records are missing or differ from the request.
    """
    batches, left, deadline = 0, records, time.monotonic() + _TIMEOUT_SECONDS
    while left:
        reader.send(read_request(min(left, job.batch)))
        batch: list[bytes] = []
        while (message := reader.receive())[0] == _RESULT:
            batch.append(message)
        if not batch:
            if time.monotonic() > deadline:
                raise AssertionError(f"{left} of {records} records are missing")
            continue
        if checked:
            check(batch, job.payload_bytes)
        acker.send(ack_request(batch))
        acker.receive()
        left -= len(batch)
        batches, deadline = batches + 1, time.monotonic() + _TIMEOUT_SECONDS
    return batches


def check(batch: list[bytes], payload_bytes: int) -> None:
    """Check that every record has its payload, and that ``ack_request`` finds the offsets that protobuf finds."""
    results = [pb.ReadResponse.FromString(message).result for message in batch]
    assert {len(result.payload) for result in results} == {payload_bytes}
    acked = pb.AckRequest.FromString(ack_request(batch)).request.offsets
    assert list(acked) == [result.offset for result in results]


def read_request(records: int) -> bytes:
    request = pb.ReadRequest.Request(num_records=records, timeout_in_ms=_READ_TIMEOUT_MS)
    return pb.ReadRequest(request=request).SerializeToString()


def ack_request(batch: list[bytes]) -> bytes:
    """Return an AckRequest: in its request, field 1, each offset, field 1."""
    body = b"".join([b"\x0a" + offset_of(message) for message in batch])
    return b"\x0a" + varint(len(body)) + body


def offset_of(message: bytes) -> bytes:
    """Return the Offset of a record's response with its length prefix: Result's field 2, after the payload."""
    _, position = read_varint(message, 1)
    if message[position] == 0x0A:
        size, position = read_varint(message, position + 1)
        position += size
    return message[position + 1 : position + 2 + message[position + 1]]


def read_varint(data: bytes, position: int) -> tuple[int, int]:
    """Return the number at the position, and the position after it."""
    number = shift = 0
    while (byte := data[position]) > 0x7F:
        number |= (byte & 0x7F) << shift
        shift += 7
        position += 1
    return number | byte << shift, position + 1


def varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes((*out, number))


def main() -> None:
    """Run jobs until stdin ends."""
    for line in sys.stdin:
        print(json.dumps(asdict(measure(Job(**json.loads(line))))), flush=True)


if __name__ == "__main__":
    main()
