"""Streams of the empty server: responses are made in advance, requests are only parsed."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

from bench.parts.pixy_load import STREAM_BATCH, VALUE
from services.common.rpc.streams import beside
from services.gateway.kafkastream.consume_stream import MAX_BATCH_RECORDS
from services.gen.dexorder.kafka.v1 import kafka_service_pb2 as pb
from services.gen.dexorder.kafka.v1 import kafka_service_pb2_grpc as rpc

_OFFSET = 1_000_000


class EmptyStreams(rpc.KafkaServiceServicer):
    """Streams with responses as large as the gateway's."""

    def __init__(self) -> None:
        self._written = pb.ProduceResponse(
            partitions=[1] * STREAM_BATCH, offsets=range(_OFFSET, _OFFSET + STREAM_BATCH)
        )
        records = pb.Records(
            values=[VALUE] * MAX_BATCH_RECORDS, timestamps_ms=[time.time_ns() // 1_000_000] * MAX_BATCH_RECORDS
        )
        offsets = range(_OFFSET, _OFFSET + MAX_BATCH_RECORDS)
        self._read = pb.ConsumeResponse(batches=[pb.RecordBatch(partition=1, offsets=offsets, records=records)])

    async def Produce(  # noqa: N802
        self, request_iterator: AsyncIterator[pb.ProduceRequest], context: Any
    ) -> AsyncIterator[pb.ProduceResponse]:
        """Answer each batch at once, as if it were written."""
        async for _ in request_iterator:
            yield self._written

    async def Consume(  # noqa: N802
        self, request_iterator: AsyncIterator[pb.ConsumeRequest], context: Any
    ) -> AsyncIterator[pb.ConsumeResponse]:
        """Send the same batch repeatedly, as long as there is credit for it."""
        left, granted = 0, asyncio.Queue[int]()
        async with beside(_listen(request_iterator, granted)):
            while True:
                while left < MAX_BATCH_RECORDS:
                    left += await granted.get()
                left -= MAX_BATCH_RECORDS
                yield self._read


async def _listen(requests: AsyncIterator[pb.ConsumeRequest], granted: asyncio.Queue[int]) -> None:
    async for request in requests:
        granted.put_nowait(request.credit)
