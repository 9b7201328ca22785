"""The RecordService: many records of a topic in one call, and the wait for all of them.

A call has a bound in records and, by the size of a message, in bytes; a large one lets other calls run between its
records. On a full queue it waits for its own records: a call that has written a record is not refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

import grpc

from dexorder_common.kafka.client_errors import RecordRefused
from dexorder_common.model.errors import Exhausted, SuiteError, Uncertain
from dexorder_common.rpc.identity import current_caller
from dexorder_common.rpc.streams import retrieved
from dexorder_gateway.kafkapixy.cluster import CREATION_SECONDS, Clusters
from dexorder_gateway.kafkapixy.producer import Headers, RecordProducer
from dexorder_gateway.kafkapixy.service import UnknownTopic, check_produce, topic_name
from dexorder_gateway.keys.claims import refuse_repeated
from dexorder_gateway.keys.ledger import Placing
from dexorder_protos.dexorder.kafka.v1 import record_service_pb2 as pb
from dexorder_protos.dexorder.kafka.v1 import record_service_pb2_grpc as rpc

Context = grpc.aio.ServicerContext[Any, Any]
NAME = pb.DESCRIPTOR.services_by_name["RecordService"].full_name
MAX_RECORDS = 1_000
"""Records of a call; the proto has the same number."""
_AT_ONCE = 100
"""Records that are queued before other calls run."""


class Record(NamedTuple):
    """A record to write; an empty key is none."""

    key: bytes
    value: bytes
    headers: Headers


class RecordService(rpc.RecordServiceServicer):
    """Serves one or more clusters."""

    def __init__(self, clusters: Clusters, refuse_if_stopping: Callable[[], None]) -> None:
        self._clusters = clusters
        self._refuse_if_stopping = refuse_if_stopping

    async def ProduceMany(self, request: pb.ProduceManyRequest, context: Context) -> pb.ProduceManyResponse:  # noqa: N802
        """Write records; answer when Kafka has each, or refuses it."""
        cluster = self._clusters.named(request.cluster)
        self._refuse_if_stopping()
        topic = request.topic
        check_produce(current_caller(), topic, cluster.config)
        if not cluster.knows(topic) and not await cluster.has_topic(topic_name(topic), CREATION_SECONDS):
            raise UnknownTopic(f"topic {topic!r} does not exist")
        refuse_repeated(context.invocation_metadata(), "turn retries off for ProduceMany")
        records = [
            Record(each.key, each.value, [(header.name, header.value) for header in each.headers])
            for each in request.records
        ]
        refused = await write_many(cluster.producer, topic, records, cluster.config.produce.timeout_seconds)
        return pb.ProduceManyResponse(
            written=len(records) - len(refused),
            refused=[pb.RefusedRecord(index=index, reason=reason) for index, reason in sorted(refused.items())],
        )


async def write_many(
    producer: RecordProducer, topic: str, records: Sequence[Record], timeout_seconds: float
) -> dict[int, str]:
    """Write records in order; return the reasons of the refused ones by index, once Kafka has all others.

    Raises:
        Exhausted: The queue is full; no record was written.
        Uncertain: Kafka has not answered in time, or the queue stayed full; any record may have been written.
    """
    deadline_s = asyncio.get_running_loop().time() + timeout_seconds
    placing: dict[int, Placing] = {}
    refused: dict[int, str] = {}
    for index, record in enumerate(records):
        if index % _AT_ONCE == 0:
            await asyncio.sleep(0)
        try:
            placing[index] = await _begin(producer, topic, record, placing.values(), deadline_s)
        except RecordRefused as error:
            refused[index] = str(error)
    await _placed(topic, placing, refused, deadline_s)
    return refused


async def _begin(
    producer: RecordProducer, topic: str, record: Record, before: Collection[Placing], deadline_s: float
) -> Placing:
    """Queue a record; while the queue is full, wait for earlier records of the same call."""
    while True:
        try:
            placing = producer.begin(topic, record.key or None, record.value, record.headers)
        except Exhausted as error:
            await _room(before, deadline_s, error)
        else:
            placing.add_done_callback(retrieved)
            return placing


async def _room(before: Collection[Placing], deadline_s: float, full: Exhausted) -> None:
    waiting = [each for each in before if not each.done()]
    left_s = deadline_s - asyncio.get_running_loop().time()
    if waiting and left_s > 0:
        await asyncio.wait(waiting, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
    elif before:
        raise Uncertain(f"{full}; {len(before)} records of this call may have been written")
    else:
        raise full


async def _placed(topic: str, placing: dict[int, Placing], refused: dict[int, str], deadline_s: float) -> None:
    """Wait for all, and take the refusals of Kafka's; see `write_many` for the errors."""
    if placing:
        left_s = max(0.0, deadline_s - asyncio.get_running_loop().time())
        _, waiting = await asyncio.wait(placing.values(), timeout=left_s)
        if waiting:
            text = f"no acknowledgement for {len(waiting)} of {len(placing)} records of topic {topic!r} in time"
            raise Uncertain(f"{text}; they may have been written or may still be")
    for index, each in placing.items():
        error = each.exception()
        if isinstance(error, RecordRefused):
            refused[index] = str(error)
        elif error is not None:
            raise error if isinstance(error, SuiteError) else SuiteError(str(error))
