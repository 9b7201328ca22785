"""Streams to talk on, one message at a time."""

from __future__ import annotations

import queue
from collections.abc import Iterable, Iterator
from typing import Any

import grpc

from services.gen.dexorder.kafka.v1 import kafka_service_pb2 as pb
from tests.fixtures_gateway import WAIT_SECONDS, GatewayUser

_STREAM_SECONDS = 3 * WAIT_SECONDS

Place = tuple[int, int]
"""Partition and offset."""


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
        """Status and text, behind whatever else still comes."""
        try:
            for _ in self.call:
                pass
        except grpc.RpcError:
            pass
        self.half_close()
        return self.call.code(), self.call.details() or ""


class ProduceCall(_Call):
    """A Produce stream."""

    def __init__(self, gateway: GatewayUser) -> None:
        super().__init__(gateway.streams.Produce, _STREAM_SECONDS)

    def send(self, topic: str, *records: pb.ProduceRecord, batch_id: int = 0, cluster: str = "") -> None:
        self._requests.put(pb.ProduceRequest(batch_id=batch_id, cluster=cluster, topic=topic, records=records))

    def write(self, topic: str, *records: pb.ProduceRecord, **fields: Any) -> pb.ProduceResponse:
        self.send(topic, *records, **fields)
        return self.answer()

    def answer(self) -> pb.ProduceResponse:
        answer: pb.ProduceResponse = next(self.call)
        return answer


class ConsumeCall(_Call):
    """A Consume stream; its group is named as its topic."""

    def __init__(
        self, gateway: GatewayUser, topic: str, *, group: str = "", credit: int = 0, timeout: float = _STREAM_SECONDS,
        **start: Any,
    ) -> None:  # fmt: skip
        super().__init__(gateway.streams.Consume, timeout)
        self.refused: list[pb.RefusedAck] = []
        self._batches: list[pb.RecordBatch] = []
        self.request(start=pb.ConsumeStart(topic=topic, group=group or topic, **start), credit=credit)

    def request(self, **fields: Any) -> None:
        self._requests.put(pb.ConsumeRequest(**fields))

    def batches(self) -> Iterator[pb.RecordBatch]:
        """As they come."""
        while True:
            while self._batches:
                yield self._batches.pop(0)
            self._read()

    def _read(self) -> None:
        response = next(self.call)
        self._batches += response.batches
        self.refused += response.refused_acks

    def records(self, count: int) -> list[pb.ConsumedRecord]:
        """So many, and not more of the response they come in."""
        found: list[pb.ConsumedRecord] = []
        for batch in self.batches():
            found += batch.records
            if len(found) >= count:
                break
        assert len(found) == count
        return found

    def offsets(self, count: int) -> list[int]:
        return [record.offset for record in self.records(count)]

    def places(self, count: int) -> list[Place]:
        found: list[Place] = []
        for batch in self.batches():
            found += [(batch.partition, record.offset) for record in batch.records]
            if len(found) >= count:
                break
        assert len(found) == count
        return found

    def ack(self, *ranges: tuple[int, int], partition: int = 0, credit: int = 0) -> None:
        self.request(acks=[span(first, last, partition) for first, last in ranges], credit=credit)

    def refusal(self) -> tuple[pb.OffsetRange, int]:
        """Of the next ack that is refused."""
        while not self.refused:
            self._read()
        refused = self.refused.pop(0)
        return refused.range, refused.code


def span(first: int, last: int, partition: int = 0) -> pb.OffsetRange:
    return pb.OffsetRange(partition=partition, first=first, last=last)


def values(records: Iterable[bytes]) -> list[pb.ProduceRecord]:
    return [pb.ProduceRecord(value=value) for value in records]
