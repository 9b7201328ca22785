"""The Source service: which calls there are and what each answers. Knows Kafka only through its two readers."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any, Protocol, TypeAlias, TypeVar

from google.protobuf.empty_pb2 import Empty

from services.common.model.errors import InvalidRequest, Unavailable
from services.common.rpc.streams import until
from services.gen.source.v1 import source_pb2 as pb
from services.udsource import codec, replay
from services.udsource.handshake import Handshake
from services.udsource.metrics import UdsourceMetrics
from services.udsource.replay_reader import ReplayPool
from services.udsource.topic_reader import TopicReader
from services.udsource.topic_state import TopicMonitor

M = TypeVar("M", pb.ReadRequest, pb.AckRequest)
ReadyResponses: TypeAlias = list[bytes]
"""Serialized ReadResponses; a transport sends as many of them at once as it can."""
FRESH_S = 0.05
"""Age of the topic's ends that PendingFn may tell; bounds what frequent callers cost Kafka."""
_ENCODED_AT_ONCE = 128
"""Records that are serialized before the first of them goes out; bounds how long that takes, and the copies."""


class CallContext(Protocol):
    """What we use of a call's context; any transport has it."""

    def invocation_metadata(self) -> replay.Metadata | None:
        """Metadata of the caller."""

    async def send_initial_metadata(self, initial_metadata: Any) -> None:
        """Send metadata ahead of the answer."""


class SourceService:
    """source.v1 over one topic; make it inside the event loop. Errors are raised; `rpc.policy` gives them a status."""

    def __init__(self, watch: TopicMonitor, topic: TopicReader, ranges: ReplayPool, metrics: UdsourceMetrics) -> None:
        self._watch = watch
        self._topic = topic
        self._ranges = ranges
        self._metrics = metrics
        self._draining = False
        self._closing: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._acking = 0

    # ---- reading

    def ReadFn(self, request_iterator: AsyncIterator[pb.ReadRequest], context: CallContext) -> Any:  # noqa: N802
        """Batches of records, each ended by eot; plain, or a range of one partition by the call's metadata.

        The responses come serialized, many at a time: see `ReadyResponses`.
        """
        metadata = tuple(context.invocation_metadata() or ())
        messages = until(self._closing, request_iterator)
        return self._read_range(messages, metadata) if replay.is_range(metadata) else self._read_plain(messages)

    async def _read_plain(self, messages: AsyncIterator[pb.ReadRequest]) -> AsyncIterator[ReadyResponses]:
        if (state := await _greeted(messages)) is None:
            return
        stream = await self._topic.open()
        yield [codec.READ_GREETING]
        async for message in messages:
            wanted = _request(state, message).request
            try:
                records = await self._topic.read(stream, wanted.num_records, wanted.timeout_in_ms / 1000)
            except Unavailable as error:
                yield [codec.failed_batch(str(error))]
                continue
            self._metrics.plain_read.inc(len(records))
            for some in _encoded(records):
                yield some
            failure = None if records else self._watch.failure
            yield [codec.END_OF_BATCH if failure is None else codec.failed_batch(failure)]

    async def _read_range(
        self, messages: AsyncIterator[pb.ReadRequest], metadata: replay.Metadata
    ) -> AsyncIterator[ReadyResponses]:
        """Ends by itself, with OK, behind the eot that completes the range: OK always means complete."""
        # The range is looked at behind the handshake: a refusal before it would cut into the client's first write.
        if (state := await _greeted(messages)) is None:
            return
        span = replay.parse_range(metadata)
        if self._draining:
            raise Unavailable("udsource is stopping")
        async with self._ranges.lease(span) as reader:
            yield [codec.READ_GREETING]
            async for message in messages:
                wanted = _request(state, message).request
                try:
                    records = await self._ranges.read(reader, wanted.num_records, wanted.timeout_in_ms / 1000)
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

    # ---- acks

    async def AckFn(  # noqa: N802
        self, request_iterator: AsyncIterator[pb.AckRequest], context: CallContext
    ) -> AsyncIterator[pb.AckResponse]:
        """One answer a request. An offset that was never handed out ends the stream; nothing of its request counts."""
        messages = until(self._closing, request_iterator)
        if (state := await _greeted(messages)) is None:
            return
        replayed = replay.is_replay(context.invocation_metadata())
        self._acking += 1
        try:
            yield codec.ACK_GREETING
            async for message in messages:
                pairs = codec.to_pairs(_request(state, message).request.offsets)
                if replayed:
                    self._metrics.replay_acked.inc(await self._watch.ack_replayed(pairs))
                else:
                    self._topic.ack(pairs, self._watch.state)
                yield codec.ACKED
        finally:
            self._acking -= 1

    async def NackFn(self, request: pb.NackRequest, context: CallContext) -> pb.NackResponse:  # noqa: N802
        """Give records back; a later read hands them out again."""
        self._topic.nack(codec.to_pairs(request.request.offsets), self._watch.state)
        return codec.NACKED

    # ---- questions

    async def PendingFn(self, request: Empty, context: CallContext) -> pb.PendingResponse:  # noqa: N802
        """Records not acked, negative if unknown; the topic's ends and the replay group's commits as metadata."""
        replayed = replay.is_replay(context.invocation_metadata())
        try:
            state = await self._watch.fresh(FRESH_S)
        except Unavailable:
            if replayed:  # it lives on the metadata, which can't be told
                raise
            return _pending(-1)
        await context.send_initial_metadata(
            (
                (replay.STARTS, replay.format_offsets(state.starts)),
                (replay.ENDS, replay.format_offsets(state.ends)),
                (replay.COMMITTED, replay.format_offsets(state.replayed)),
            )
        )
        return _pending(state.replay_lag() if replayed else self._topic.pending(state))

    async def PartitionsFn(self, request: Empty, context: CallContext) -> pb.PartitionsResponse:  # noqa: N802
        """Partitions that plain reads of this process get; for replays all of the topic's."""
        replayed = replay.is_replay(context.invocation_metadata())
        state = self._watch.state if self._watch.ready else await self._watch.fresh(0)
        every = sorted(state.ends)
        served = every if replayed else self._topic.partitions()
        result = pb.PartitionsResponse.Result(partitions=served, total_partitions=len(every))
        return pb.PartitionsResponse(result=result)

    async def IsReady(self, request: Empty, context: CallContext) -> pb.ReadyResponse:  # noqa: N802
        """Whether Kafka and the topic can be reached."""
        return pb.ReadyResponse(ready=self._watch.ready and not self._draining)

    # ---- stopping

    async def drain(self, seconds: float) -> None:
        """Hand out nothing new, let acks and running ranges come to their end, then end every stream."""
        self._draining = True
        self._topic.drain()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                # Nothing tells of the last ack but the ledger; a look at it costs microseconds.
                while (self._acking and self._topic.in_flight()) or self._ranges.active:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
        self._closing.set_result(None)


def _encoded(records: Sequence[codec.KafkaRecord]) -> Iterator[ReadyResponses]:
    for first in range(0, len(records), _ENCODED_AT_ONCE):
        yield [codec.to_bytes(record) for record in records[first : first + _ENCODED_AT_ONCE]]


async def _greeted(messages: AsyncIterator[M]) -> Handshake | None:
    """The state behind the client's handshake; none if it went away before it said a word."""
    state = Handshake()
    async for message in messages:
        _request(state, message)
        return state
    return None


def _request(state: Handshake, message: M) -> M:
    state.receive(
        handshake=message.HasField("handshake"), sot=message.handshake.sot, request=message.HasField("request")
    )
    return message


def _pending(count: int) -> pb.PendingResponse:
    return pb.PendingResponse(result=pb.PendingResponse.Result(count=count))
