"""A source.v1 client for tests: the calls of Numaflow's and Spark's readers, one at a time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import grpc
from confluent_kafka import Producer
from google.protobuf.empty_pb2 import Empty

from dexorder_protos.source.v1 import source_pb2 as pb
from dexorder_protos.source.v1 import source_pb2_grpc as rpc

Metadata = Sequence[tuple[str, str]]
REPLAY: Metadata = (("x-replay", "1"),)
KEPT = ("x-starts", "x-ends", "x-committed", "x-topic")


def produce(
    bootstrap: str,
    topic: str,
    records: Iterable[tuple[int, bytes]],
    *,
    key: bytes | None = b"k",
    headers: Sequence[tuple[str, bytes]] = (),
) -> None:
    """Produce (partition, value) records in order."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5})
    for partition, value in records:
        producer.produce(topic, value, key=key, partition=partition, headers=[*headers])
    assert producer.flush(30) == 0


def offset_of(response: pb.ReadResponse) -> tuple[int, int]:
    return response.result.offset.partition_id, int(response.result.offset.offset)


class Reader:
    """One ReadFn stream after its handshake."""

    def __init__(self, call: Any) -> None:
        self.call = call

    async def batch(self, most: int, timeout_ms: int = 5_000) -> tuple[list[pb.ReadResponse], pb.ReadResponse.Status]:
        """Make one request; return its records and its eot status."""
        request = pb.ReadRequest.Request(num_records=most, timeout_in_ms=timeout_ms)
        await self.call.write(pb.ReadRequest(request=request))
        records: list[pb.ReadResponse] = []
        while True:
            response = await self.call.read()
            assert response is not grpc.aio.EOF, await self.call.details()
            if response.status.eot:
                assert not response.HasField("result")
                return records, response.status
            assert response.HasField("result") and response.result.offset.offset
            assert response.result.HasField("event_time")
            records.append(response)

    async def collect(self, count: int, most: int = 500) -> list[pb.ReadResponse]:
        """Read until ``count`` records have arrived."""
        records: list[pb.ReadResponse] = []
        while len(records) < count:
            batch, _ = await self.batch(min(most, count - len(records)))
            records += batch
        return records


class Acker:
    """One AckFn stream after its handshake."""

    def __init__(self, call: Any) -> None:
        self.call = call

    async def ack(self, *pairs: tuple[int, int]) -> None:
        """Make one request with these (partition, offset) pairs and check its answer."""
        await self.call.write(pb.AckRequest(request=pb.AckRequest.Request(offsets=to_offsets(pairs))))
        response = await self.call.read()
        assert response.result.HasField("success") and not response.HasField("handshake")


def to_offsets(pairs: Iterable[tuple[int, int]]) -> list[pb.Offset]:
    return [pb.Offset(offset=str(offset).encode(), partition_id=partition) for partition, offset in pairs]


class SourceClient:
    """Everything over one channel."""

    def __init__(self, target: str) -> None:
        size = 64 * 1024 * 1024
        self.channel = grpc.aio.insecure_channel(
            target, options=[("grpc.max_receive_message_length", size), ("grpc.max_send_message_length", size)]
        )
        self.stub: Any = rpc.SourceStub(self.channel)

    async def read(self, metadata: Metadata = ()) -> Reader:
        call = self.stub.ReadFn(metadata=metadata)
        await call.write(pb.ReadRequest(handshake=pb.Handshake(sot=True)))
        response = await call.read()
        assert response.handshake.sot and not response.status.eot
        return Reader(call)

    async def ack(self, metadata: Metadata = ()) -> Acker:
        call = self.stub.AckFn(metadata=metadata)
        await call.write(pb.AckRequest(handshake=pb.Handshake(sot=True)))
        response = await call.read()
        assert response.handshake.sot and response.result.HasField("success")
        return Acker(call)

    async def replay(self, partition: int, start: int, end: int, most: int = 500) -> list[pb.ReadResponse]:
        """Read the whole range, to the stream's OK."""
        reader = await self.read(range_of(partition, start, end))
        records, complete = [], False
        while not complete:
            batch, status = await reader.batch(most, 1_000)
            assert status.code == pb.ReadResponse.Status.SUCCESS, status.msg
            assert len(batch) <= most
            records += batch
            complete = status.msg == "range complete"
        assert await reader.call.read() is grpc.aio.EOF
        assert await reader.call.code() == grpc.StatusCode.OK
        return records

    async def pending(self, metadata: Metadata = ()) -> tuple[int, dict[str, str]]:
        call = self.stub.PendingFn(Empty(), metadata=metadata)
        told = {k: v for k, v in await call.initial_metadata() if k in KEPT}
        return (await call).result.count, told

    async def nack(self, *pairs: tuple[int, int]) -> None:
        await self.stub.NackFn(pb.NackRequest(request=pb.NackRequest.Request(offsets=to_offsets(pairs))))


def range_of(partition: int, start: int, end: int) -> Metadata:
    return (("x-partition", str(partition)), ("x-start", str(start)), ("x-end", str(end)))
