"""The Source service of source.v1: its calls and their answers. It uses Kafka only through its readers and monitor."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any, Protocol, TypeAlias, TypeVar

from google.protobuf.empty_pb2 import Empty

from dexorder_common.model.errors import InvalidRequest, Unavailable
from dexorder_common.rpc.streams import until
from dexorder_protos.source.v1 import source_pb2 as pb
from dexorder_udsource import codec, replay
from dexorder_udsource.replay_reader import ReplayTopics
from dexorder_udsource.topic_monitor import TopicMonitor, TopicState
from dexorder_udsource.topic_reader import TopicReader, UdsourceMetrics

M = TypeVar("M", pb.ReadRequest, pb.AckRequest)
ReadyResponses: TypeAlias = list[bytes]
"""Serialized ReadResponses; a transport sends as many at once as it can."""
MAX_PENDING_AGE_S = 0.05
"""Largest age of the state that PendingFn reports; bounds the load that frequent callers put on Kafka."""
ANSWER_SECONDS = 0.8
"""A dataplane waits for PendingFn and PartitionsFn before its next read."""
_ENCODED_AT_ONCE = 128
"""Records that are serialized before the first of them is sent; bounds the delay and the copies."""


class SourceContext(Protocol):
    """Methods of a call's context that are used here; every transport has them."""

    def invocation_metadata(self) -> replay.Metadata | None:
        """Return the metadata of the caller."""

    async def send_initial_metadata(self, initial_metadata: Any) -> None:
        """Send metadata before the answer."""


class SourceService:
    """source.v1 over one topic, and replays of others; create it inside the event loop.

    `rpc.policy` gives the raised errors a status.
    """

    def __init__(
        self, monitor: TopicMonitor, topic: TopicReader, topics: ReplayTopics, metrics: UdsourceMetrics
    ) -> None:
        self._monitor = monitor
        self._topic = topic
        self._topics = topics
        self._metrics = metrics
        self._draining = False
        self._closing: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._acking = 0

    def ReadFn(self, request_iterator: AsyncIterator[pb.ReadRequest], context: SourceContext) -> Any:  # noqa: N802
        """Stream batches of records, each ended by eot: a plain read, or the range of one partition in the metadata.

        The responses are serialized, many at a time; see `ReadyResponses`.
        """
        metadata = tuple(context.invocation_metadata() or ())
        messages = until(self._closing, request_iterator)
        if replay.is_range(metadata):
            return self._read_range(messages, metadata)
        return self._read_plain(messages, replay.topic_of(metadata))

    async def _read_plain(self, messages: AsyncIterator[pb.ReadRequest], topic: str) -> AsyncIterator[ReadyResponses]:
        if (state := await _greeted(messages)) is None:
            return
        if topic:
            raise InvalidRequest(f"metadata {replay.TOPIC} {topic!r}: only replays can name a topic")
        stream = await self._topic.open()
        yield [codec.READ_GREETING]
        async for message in messages:
            request = _request(state, message).request
            try:
                records = await self._topic.read(stream, request.num_records, request.timeout_in_ms / 1000)
            except Unavailable as error:
                yield [codec.failed_batch(str(error))]
                continue
            self._metrics.plain_read.inc(len(records))
            for some in _encoded(records):
                yield some
            failure = None if records else self._monitor.failure
            yield [codec.END_OF_BATCH if failure is None else codec.failed_batch(failure)]

    async def _read_range(
        self, messages: AsyncIterator[pb.ReadRequest], metadata: replay.Metadata
    ) -> AsyncIterator[ReadyResponses]:
        """Stream one range and end with OK after the eot that completes it: OK always means complete."""
        # The range is checked after the handshake: a refusal before it would interrupt the client's first write.
        if (state := await _greeted(messages)) is None:
            return
        span = replay.parse_range(metadata)
        if self._draining:
            raise Unavailable("udsource is stopping")
        ranges = self._topics.of(replay.topic_of(metadata)).ranges
        async with ranges.open(span) as reader:
            yield [codec.READ_GREETING]
            async for message in messages:
                request = _request(state, message).request
                try:
                    records = await ranges.read(reader, request.num_records, request.timeout_in_ms / 1000)
                except Unavailable as error:
                    yield [codec.failed_batch(str(error))]
                    continue
                self._metrics.replay_read.inc(len(records))
                for some in _encoded(records):
                    yield some
                yield [codec.END_OF_RANGE if reader.done else codec.END_OF_BATCH]
                if reader.done:
                    self._metrics.replay_ranges.inc()
                    return
        if self._closing.done():
            raise Unavailable(f"udsource is stopping; {span} was read up to {reader.position}")
        raise InvalidRequest(f"the requests ended at offset {reader.position} of {span}")

    async def AckFn(  # noqa: N802
        self, request_iterator: AsyncIterator[pb.AckRequest], context: SourceContext
    ) -> AsyncIterator[pb.AckResponse]:
        """Answer each request. An offset beyond the log ends the stream, and no ack of its request counts."""
        messages = until(self._closing, request_iterator)
        if (state := await _greeted(messages)) is None:
            return
        metadata = context.invocation_metadata()
        replayed, group = replay.is_replay(metadata), replay.group_of(metadata)
        topic_name = replay.topic_of(metadata)
        if topic_name and not replayed:
            raise InvalidRequest(f"metadata {replay.TOPIC} {topic_name!r}: only replays can name a topic")
        monitor = self._topics.of(topic_name).monitor
        self._acking += 1
        try:
            yield codec.ACK_GREETING
            async for message in messages:
                pairs = codec.to_pairs(_request(state, message).request.offsets)
                if replayed:
                    self._metrics.replay_acked.inc(await monitor.ack_replayed(pairs, group))
                else:
                    self._topic.ack(pairs, await self._state_of(pairs))
                yield codec.ACKED
        finally:
            self._acking -= 1

    async def NackFn(self, request: pb.NackRequest, context: SourceContext) -> pb.NackResponse:  # noqa: N802
        """Take records back; a later read returns them again."""
        pairs = codec.to_pairs(request.request.offsets)
        self._topic.nack(pairs, await self._state_of(pairs))
        return codec.NACKED

    async def _state_of(self, pairs: Sequence[tuple[int, int]]) -> TopicState:
        """Return the topic's state; a new one if the last does not have the offsets, which another process issued."""
        known = self._monitor.state
        return known if self._topic.knows(pairs, known) else await self._monitor.fresh(0)

    async def PendingFn(self, request: Empty, context: SourceContext) -> pb.PendingResponse:  # noqa: N802
        """Return how many records are not acked, negative if unknown; metadata has the topic's ends and commits."""
        metadata = context.invocation_metadata()
        replayed, group = replay.is_replay(metadata), replay.group_of(metadata)
        topic_name = replay.topic_of(metadata)
        topic = self._topics.of(topic_name)
        try:
            state = await topic.monitor.fresh(MAX_PENDING_AGE_S, within_s=ANSWER_SECONDS)
            state = await topic.monitor.with_group(state, group, within_s=ANSWER_SECONDS)
        except Unavailable:
            if replayed:  # a replay needs the metadata, which is unknown
                raise
            return _pending(-1)
        await context.send_initial_metadata(
            (
                (replay.STARTS, replay.format_offsets(state.starts)),
                (replay.ENDS, replay.format_offsets(state.ends)),
                (replay.COMMITTED, replay.format_offsets(state.replayed)),
                (replay.EPOCHS, replay.format_offsets(state.epochs)),
                (replay.COMMITTED_EPOCHS, replay.format_offsets(state.replayed_epochs)),
                (replay.TOPIC_ID, state.topic_id),
                (replay.RECORD_BYTES, str(topic.ranges.record_bytes)),
                *([(replay.TOPIC, topic_name)] if topic_name else []),
            )
        )
        return _pending(state.replay_lag() if replayed else self._topic.pending(state))

    async def PartitionsFn(self, request: Empty, context: SourceContext) -> pb.PartitionsResponse:  # noqa: N802
        """Return the partitions that plain reads of this process get; for replays all of the topic's."""
        metadata = context.invocation_metadata()
        replayed, monitor = replay.is_replay(metadata), self._topics.of(replay.topic_of(metadata)).monitor
        state = monitor.state
        if not state.ends:  # never known; a dataplane would take an error for the source's end
            state = await monitor.fresh(0, within_s=ANSWER_SECONDS)
        partitions = sorted(state.ends)
        served = partitions if replayed else self._topic.partitions()
        result = pb.PartitionsResponse.Result(partitions=served, total_partitions=len(partitions))
        return pb.PartitionsResponse(result=result)

    async def IsReady(self, request: Empty, context: SourceContext) -> pb.ReadyResponse:  # noqa: N802
        """Return whether Kafka and the topic are available."""
        return pb.ReadyResponse(ready=self._monitor.ready and not self._draining)

    async def drain(self, seconds: float) -> None:
        """Issue no new records, let acks and running ranges finish, then end every stream."""
        self._draining = True
        self._topic.drain()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                # Only the ack tracker knows of the last ack; polling it costs microseconds.
                while (self._acking and self._topic.in_flight()) or self._topics.active:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
        self._closing.set_result(None)


def _encoded(records: Sequence[codec.SourceRecord]) -> Iterator[ReadyResponses]:
    for first in range(0, len(records), _ENCODED_AT_ONCE):
        yield [codec.encode_record(record) for record in records[first : first + _ENCODED_AT_ONCE]]


async def _greeted(messages: AsyncIterator[M]) -> codec.Handshake | None:
    """Return the state after the client's handshake; None if the client left before it."""
    state = codec.Handshake()
    async for message in messages:
        _request(state, message)
        return state
    return None


def _request(state: codec.Handshake, message: M) -> M:
    state.receive(
        handshake=message.HasField("handshake"), sot=message.handshake.sot, request=message.HasField("request")
    )
    return message


def _pending(count: int) -> pb.PendingResponse:
    return pb.PendingResponse(result=pb.PendingResponse.Result(count=count))
