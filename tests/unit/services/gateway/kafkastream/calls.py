"""Streams that tests use one message at a time."""

from __future__ import annotations

import queue
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import grpc

from services.gen.dexorder.kafka.v1 import kafka_service_pb2 as pb
from tests.fixtures_gateway import WAIT_SECONDS, GatewayUser

_STREAM_SECONDS = 3 * WAIT_SECONDS

Place = tuple[int, int]
"""Partition and offset."""


@dataclass(frozen=True)
class Record:
    """Record of a batch; None is a null value or no key."""

    value: bytes | None = None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes], ...] = ()
    timestamp_ms: int = 0


class _Call:
    def __init__(self, method: Any, timeout: float) -> None:
        self._requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.call = method(iter(self._requests.get, None), timeout=timeout)

    def half_close(self) -> None:
        self._requests.put(None)

    def cancel(self) -> None:
        self.half_close()  # ends gRPC's thread, which waits for the next request
        self.call.cancel()

    def ending(self) -> tuple[grpc.StatusCode, str]:
        """Return status and text after the remaining responses."""
        try:
            for _ in self.call:
                pass
        except grpc.RpcError:
            pass
        self.half_close()
        return self.call.code(), self.call.details() or ""


class ProduceCall(_Call):
    """Produce stream."""

    def __init__(self, gateway: GatewayUser) -> None:
        super().__init__(gateway.streams.Produce, _STREAM_SECONDS)

    def request(self, **fields: Any) -> None:
        self._requests.put(pb.ProduceRequest(**fields))

    def send(self, topic: str, *records: Record, batch_id: int = 0, cluster: str = "") -> None:
        self.request(batch_id=batch_id, cluster=cluster, topic=topic, records=columns(records))

    def write(self, topic: str, *records: Record, **fields: Any) -> pb.ProduceResponse:
        self.send(topic, *records, **fields)
        return self.answer()

    def answer(self) -> pb.ProduceResponse:
        answer: pb.ProduceResponse = next(self.call)
        return answer


class ConsumeCall(_Call):
    """Consume stream; its group has the topic's name by default."""

    def __init__(
        self,
        gateway: GatewayUser,
        topic: str,
        *,
        group: str = "",
        credit: int = 0,
        timeout: float = _STREAM_SECONDS,
        **start: Any,
    ) -> None:
        super().__init__(gateway.streams.Consume, timeout)
        self.refused: list[pb.RefusedAck] = []
        self._batches: list[pb.RecordBatch] = []
        self.request(start=pb.ConsumeStart(topic=topic, group=group or topic, **start), credit=credit)

    def request(self, **fields: Any) -> None:
        self._requests.put(pb.ConsumeRequest(**fields))

    def batches(self) -> Iterator[pb.RecordBatch]:
        """Yield batches as they are received."""
        while True:
            while self._batches:
                yield self._batches.pop(0)
            self._read()

    def _read(self) -> None:
        response = next(self.call)
        self._batches += response.batches
        self.refused += response.refused_acks

    def offsets(self, count: int) -> list[int]:
        """Return the next offsets; their responses must contain no more."""
        return [offset for _, offset in self.places(count)]

    def places(self, count: int) -> list[Place]:
        found: list[Place] = []
        for batch in self.batches():
            found += places(batch)
            if len(found) >= count:
                break
        assert len(found) == count
        return found

    def ack(self, *ranges: tuple[int, int], partition: int = 0, credit: int = 0) -> None:
        self.request(acks=[span(first, last, partition) for first, last in ranges], credit=credit)

    def refusal(self) -> tuple[pb.OffsetRange, int]:
        """Return range and code of the next refused ack."""
        while not self.refused:
            self._read()
        refused = self.refused.pop(0)
        return refused.range, refused.code


def span(first: int, last: int, partition: int = 0) -> pb.OffsetRange:
    return pb.OffsetRange(partition=partition, first=first, last=last)


def places(batch: pb.RecordBatch) -> list[Place]:
    return [(batch.partition, offset) for offset in batch.offsets]


def values(records: Iterable[bytes]) -> list[Record]:
    return [Record(value) for value in records]


def columns(records: Sequence[Record]) -> pb.Records:
    """Return columns; those without any value are left out."""
    found = pb.Records(
        values=[record.value or b"" for record in records],
        null_values=[index for index, record in enumerate(records) if record.value is None],
    )
    if any(record.key is not None for record in records):
        found.keys.extend(record.key or b"" for record in records)
        found.null_keys.extend(index for index, record in enumerate(records) if record.key is None)
    if any(record.headers for record in records):
        found.headers.extend(
            pb.Headers(headers=[pb.Header(key=name, value=data) for name, data in record.headers]) for record in records
        )
    if any(record.timestamp_ms for record in records):
        found.timestamps_ms.extend(record.timestamp_ms for record in records)
    return found


def records(batch: pb.RecordBatch) -> list[Record]:
    """Return the records of a batch; check the length of its columns, and that empty ones are left out."""
    found, count = batch.records, len(batch.offsets)
    assert count and len(found.values) == count
    headers: list[tuple[tuple[str, bytes], ...]] = [
        tuple((header.key, header.value) for header in each.headers) for each in found.headers
    ]
    assert any(headers) == bool(headers)
    assert any(found.timestamps_ms) == bool(found.timestamps_ms)
    assert len(found.null_keys) < count
    fields = zip(
        _with_nulls(found.values, found.null_values),
        _with_nulls(found.keys, found.null_keys) or [None] * count,
        headers or [()] * count,
        found.timestamps_ms or [0] * count,
        strict=True,
    )
    return [Record(*each) for each in fields]


def _with_nulls(column: Sequence[bytes], nulls: Sequence[int]) -> list[bytes | None]:
    assert list(nulls) == sorted(set(nulls))
    assert not any(column[index] for index in nulls)
    return [None if index in nulls else entry for index, entry in enumerate(column)]
