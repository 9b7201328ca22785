"""The dexorder.kafka.v1 service: converts the requests and responses of its streams."""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import aclosing
from itertools import accumulate
from typing import Any

import grpc

from services.common.model.errors import InvalidRequest, NotFound, SuiteError, Unavailable
from services.common.rpc.identity import current_caller
from services.common.rpc.streams import beside, until
from services.gateway.kafkapixy.access import check_produce
from services.gateway.kafkapixy.batches import Batch
from services.gateway.kafkapixy.cluster import Clusters
from services.gateway.kafkapixy.pending_runs import Amount
from services.gateway.kafkapixy.types import RefusedAck, Span, group_name, topic_name
from services.gateway.kafkastream.columns import Columns, new_records
from services.gateway.kafkastream.consume_stream import BATCH_BYTES, ConsumeStream, Output
from services.gateway.kafkastream.produce_stream import NumberedBatch, ProduceStream
from services.gen.dexorder.kafka.v1 import kafka_service_pb2 as pb
from services.gen.dexorder.kafka.v1 import kafka_service_pb2_grpc as rpc

Context = grpc.aio.ServicerContext[Any, Any]
MAX_PRODUCE_RECORDS = 10_000
"""Records of a Produce request: all other calls wait while it is read, and its answer must fit into one response."""
MAX_RANGES = 10_000
"""Ranges of a Consume request, likewise."""
NAME = pb.DESCRIPTOR.services_by_name["KafkaService"].full_name


class KafkaService(rpc.KafkaServiceServicer):
    """Serves one or more clusters; constructed on the event loop that serves."""

    def __init__(self, clusters: Clusters) -> None:
        self._clusters = clusters
        self._stopping: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def stop_taking(self) -> None:
        """Refuse new streams; Produce streams end when the batches read so far are answered.

        Consume streams end when all their records are acked; see `Consumers.stop_taking`.
        """
        if not self._stopping.done():
            self._stopping.set_result(None)

    async def Produce(  # noqa: N802
        self, request_iterator: AsyncIterator[pb.ProduceRequest], context: Context
    ) -> AsyncIterator[pb.ProduceResponse]:
        """Write batches; answer each when the outcome of its records is known."""
        self._refuse_if_stopping()
        produce = self._clusters.default.config.produce
        stream = ProduceStream(produce.stream_records, produce.stream_kbytes * 1024)
        async with beside(self._write_all(request_iterator, stream)):
            async for numbered in stream.answers():
                yield _produced(numbered)

    async def _write_all(self, requests: AsyncIterator[pb.ProduceRequest], stream: ProduceStream) -> None:
        """Write all batches, then end the stream."""
        try:
            async for request in until(self._stopping, requests):
                await self._write_one(request, stream)
            self._refuse_if_stopping()
        except Exception as error:
            stream.end(error)
        else:
            stream.end()

    async def _write_one(self, request: pb.ProduceRequest, stream: ProduceStream) -> None:
        if (count := len(request.records.values)) > MAX_PRODUCE_RECORDS:
            raise InvalidRequest(f"a batch of {count} records; at most {MAX_PRODUCE_RECORDS} are accepted")
        records, size = new_records(request.records)
        numbered = NumberedBatch(request.batch_id, Batch(request.topic, records), size)
        await stream.add(numbered)
        try:
            await self._write(request.cluster, numbered.batch)
        except Exception as error:  # unexpected; the task that answers waits for the batch
            numbered.batch.fail(error)
            raise

    async def _write(self, cluster_name: str, batch: Batch) -> None:
        try:
            cluster, topic = self._clusters.named(cluster_name), topic_name(batch.topic)
            check_produce(current_caller(), topic)
            if not await cluster.has_topic(topic):
                raise InvalidRequest(f"topic {topic!r} does not exist")
            if cluster.failure:
                raise Unavailable(cluster.failure)
        except SuiteError as error:
            batch.fail_the_rest(error)
            batch.finish_if_settled()
        else:
            await cluster.producer.write(batch)

    async def Consume(  # noqa: N802
        self, request_iterator: AsyncIterator[pb.ConsumeRequest], context: Context
    ) -> AsyncIterator[pb.ConsumeResponse]:
        """Read a topic as a member of a group."""
        self._refuse_if_stopping()
        async with aclosing(until(self._stopping, request_iterator)) as requests:
            first = await anext(requests, None)
        if first is None:
            self._refuse_if_stopping()
            return
        stream = await self._open(first)
        try:
            async with beside(_listen(first, request_iterator, stream)):
                while (output := await stream.next()) is not None:
                    for response in _responses(output):
                        yield response
                    stream.sent(output.deliveries)
        finally:
            stream.close()

    async def _open(self, request: pb.ConsumeRequest) -> ConsumeStream:
        if not request.HasField("start"):
            raise InvalidRequest("start is missing in the first request")
        start = request.start
        cluster = self._clusters.named(start.cluster)
        self._refuse_if_stopping()
        cluster.consumers.refuse_if_disabled()
        group, topic = group_name(start.group), topic_name(start.topic)
        if not await cluster.has_topic(topic):
            raise NotFound(f"topic {topic!r} does not exist")
        consume = cluster.config.consume
        max_unacked = Amount(consume.stream_max_pending_messages, consume.stream_max_pending_kbytes * 1024)
        subscription = cluster.consumers.subscription(group, topic)
        return ConsumeStream(subscription, start.max_batch_records, max_unacked, auto_ack=start.auto_ack)

    def _refuse_if_stopping(self) -> None:
        if self._stopping.done():
            raise Unavailable("the gateway is stopping")


def _produced(numbered: NumberedBatch) -> pb.ProduceResponse:
    batch = numbered.batch
    return pb.ProduceResponse(
        batch_id=numbered.batch_id,
        partitions=batch.partitions,
        offsets=batch.offsets,
        failures=[
            pb.ProduceFailure(index=index, code=error.code, message=str(error)) for index, error in batch.failures
        ],
    )


async def _listen(first: pb.ConsumeRequest, requests: AsyncIterator[pb.ConsumeRequest], stream: ConsumeStream) -> None:
    try:
        await _apply(stream, first)
        async for request in requests:
            if request.HasField("start"):
                raise InvalidRequest("start is only accepted in the first request")
            await _apply(stream, request)
    except Exception as error:
        stream.stop(error)
    stream.end()


async def _apply(stream: ConsumeStream, request: pb.ConsumeRequest) -> None:
    acks, give_backs = _spans("acks", request.acks), _spans("give_backs", request.give_backs)
    await stream.request(request.credit, acks, give_backs)


def _spans(name: str, ranges: Sequence[pb.OffsetRange]) -> list[Span]:
    if len(ranges) > MAX_RANGES:
        raise InvalidRequest(f"{len(ranges)} {name} in a request; at most {MAX_RANGES} are accepted")
    spans = []
    for index, given in enumerate(ranges):
        for field in ("partition", "first", "last"):
            if not given.HasField(field):
                raise InvalidRequest(f"{name}[{index}].{field} is missing")
            if (value := getattr(given, field)) < 0:
                raise InvalidRequest(f"{name}[{index}].{field} {value} is negative")
        if given.last < given.first:
            raise InvalidRequest(f"{name}[{index}].last {given.last} is below first {given.first}")
        spans.append(Span(given.partition, given.first, given.last))
    return spans


def _responses(output: Output) -> Iterator[pb.ConsumeResponse]:
    """Yield usually one response; more if the records do not fit into one."""
    response = pb.ConsumeResponse(refused_acks=[_refused(each) for each in output.refused])
    size = 0
    for delivery in output.deliveries:
        columns = Columns(delivery.records)
        before = list(accumulate(columns.sizes(), initial=0))  # bytes before each record, and of all of them
        begin, count = 0, len(delivery.records)
        while begin < count:
            if size >= BATCH_BYTES:
                yield response
                response, size = pb.ConsumeResponse(), 0
            end = bisect_left(before, before[begin] + BATCH_BYTES - size, begin + 1, count)
            batch = response.batches.add(partition=delivery.partition, redelivered=bool(delivery.redelivery))
            columns.fill(batch, begin, end)
            size += before[end] - before[begin]
            begin = end
    yield response


def _refused(refused: RefusedAck) -> pb.RefusedAck:
    span, reason = refused.span, refused.reason
    return pb.RefusedAck(
        range=pb.OffsetRange(partition=span.partition, first=span.first, last=span.last),
        code=reason.code,
        message=str(reason),
    )
