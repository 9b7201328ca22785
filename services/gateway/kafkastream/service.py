"""The dexorder.kafka.v1 service: batches on streams into our own terms, and back. Knows nothing of the transport."""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import aclosing
from itertools import accumulate
from typing import Any

import grpc

from services.common.model.errors import InvalidRequest, NotFound, SuiteError, Unavailable
from services.common.rpc.streams import beside, until
from services.gateway.kafkapixy.batches import Batch
from services.gateway.kafkapixy.cluster import Clusters
from services.gateway.kafkapixy.names import group_name, topic_name
from services.gateway.kafkapixy.pending_runs import Unacked
from services.gateway.kafkapixy.types import RefusedAck, Span
from services.gateway.kafkastream.columns import Columns, new_records
from services.gateway.kafkastream.consume_stream import Answer, ConsumeStream
from services.gateway.kafkastream.flow import BATCH_BYTES, MAX_PRODUCE_RECORDS, MAX_RANGES, Credit, Window
from services.gateway.kafkastream.produce_stream import NumberedBatch, ProduceStream
from services.gen.dexorder.kafka.v1 import kafka_service_pb2 as pb
from services.gen.dexorder.kafka.v1 import kafka_service_pb2_grpc as rpc

Context = grpc.aio.ServicerContext[Any, Any]
NAME = pb.DESCRIPTOR.services_by_name["KafkaService"].full_name


class KafkaService(rpc.KafkaServiceServicer):
    """Serves one or more clusters; made on the event loop that serves."""

    def __init__(self, clusters: Clusters) -> None:
        self._clusters = clusters
        self._stopping: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def stop_taking(self) -> None:
        """From now on streams are refused; Produce streams end when what they brought so far is answered.

        Consume streams end when all they were given is acked; see `Consumers.stop_taking`.
        """
        if not self._stopping.done():
            self._stopping.set_result(None)

    # ---- Produce

    async def Produce(  # noqa: N802
        self, request_iterator: AsyncIterator[pb.ProduceRequest], context: Context
    ) -> AsyncIterator[pb.ProduceResponse]:
        """Write batches; each is answered when it is known what became of its records."""
        self._refuse_if_stopping()
        rules = self._clusters.default.config.produce
        stream = ProduceStream(Window(rules.stream_records, rules.stream_kbytes * 1024))
        async with beside(self._write_all(request_iterator, stream)):
            async for numbered in stream.answers():
                yield _produced(numbered)

    async def _write_all(self, requests: AsyncIterator[pb.ProduceRequest], stream: ProduceStream) -> None:
        """Until there are no more; the stream is told what ended them."""
        try:
            async for request in until(self._stopping, requests):
                await self._write_one(request, stream)
            self._refuse_if_stopping()
        except Exception as error:
            stream.end(error)
        else:
            stream.end()

    async def _write_one(self, request: pb.ProduceRequest, stream: ProduceStream) -> None:
        numbered = _numbered(request)
        await stream.admit(numbered)
        try:
            await self._write(request.cluster, numbered.batch)
        except Exception as error:  # unforeseen; whoever answers waits for the batch
            numbered.batch.fail(error)
            raise

    async def _write(self, cluster_name: str, batch: Batch) -> None:
        try:
            cluster, topic = self._clusters.named(cluster_name), topic_name(batch.topic)
            if not await cluster.has_topic(topic):
                raise InvalidRequest(f"topic {topic!r} does not exist")
            if cluster.failure:
                raise Unavailable(cluster.failure)
        except SuiteError as error:
            batch.fail_the_rest(error)
            batch.finish_if_settled()
        else:
            await cluster.producer.write(batch)

    # ---- Consume

    async def Consume(  # noqa: N802
        self, request_iterator: AsyncIterator[pb.ConsumeRequest], context: Context
    ) -> AsyncIterator[pb.ConsumeResponse]:
        """Read a topic as a member of a group."""
        self._refuse_if_stopping()
        async with aclosing(until(self._stopping, request_iterator)) as begun:
            first = await anext(begun, None)
        if first is None:
            self._refuse_if_stopping()
            return
        stream = await self._open(first)
        try:
            async with beside(_listen(first, request_iterator, stream)):
                while (answer := await stream.next()) is not None:
                    for response in _consumed(answer):
                        yield response
                    stream.sent(answer.deliveries)
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
        rules = cluster.config.consume
        credit = Credit(
            start.max_batch_records, Unacked(rules.stream_max_pending_messages, rules.stream_max_pending_kbytes * 1024)
        )
        return ConsumeStream(cluster.consumers.subscription(group, topic), credit, auto_ack=start.auto_ack)

    # ---- both

    def _refuse_if_stopping(self) -> None:
        if self._stopping.done():
            raise Unavailable("the gateway is stopping")


def _numbered(request: pb.ProduceRequest) -> NumberedBatch:
    if (count := len(request.records.values)) > MAX_PRODUCE_RECORDS:
        raise InvalidRequest(f"{count} records in a batch; {MAX_PRODUCE_RECORDS} are the most")
    records, size = new_records(request.records)
    return NumberedBatch(request.batch_id, Batch(request.topic, records), size)


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
        await _tell(stream, first)
        async for request in requests:
            if request.HasField("start"):
                raise InvalidRequest("start is in a later request than the first")
            await _tell(stream, request)
    except Exception as error:
        stream.stop(error)
    stream.end()


async def _tell(stream: ConsumeStream, request: pb.ConsumeRequest) -> None:
    acks, give_backs = _spans("acks", request.acks), _spans("give_backs", request.give_backs)
    await stream.request(request.credit, acks, give_backs)


def _spans(name: str, ranges: Sequence[pb.OffsetRange]) -> list[Span]:
    if len(ranges) > MAX_RANGES:
        raise InvalidRequest(f"{len(ranges)} {name} in a request; {MAX_RANGES} are the most")
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


def _consumed(answer: Answer) -> Iterator[pb.ConsumeResponse]:
    """Most often one response; more when the records together are too much for one."""
    response = pb.ConsumeResponse(refused_acks=[_refused(each) for each in answer.refused])
    size = 0
    for delivery in answer.deliveries:
        columns = Columns(delivery.records)
        before = list(accumulate(columns.sizes(), initial=0))  # bytes in front of each record, and of all of them
        begin, count = 0, len(delivery.records)
        while begin < count:
            if size >= BATCH_BYTES:
                yield response
                response, size = pb.ConsumeResponse(), 0
            end = bisect_left(before, before[begin] + BATCH_BYTES - size, begin + 1, count)
            batch = response.batches.add(partition=delivery.partition, redelivered=bool(delivery.again))
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
