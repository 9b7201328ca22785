"""Blocking client of source.v1 in its replay form, in which any range of a partition can be read any number of times.

Spark's planner and worker processes use it; both are synchronous Python. ``streams`` has the plain form.
"""

from __future__ import annotations

import functools
import queue
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import grpc
from google.protobuf.empty_pb2 import Empty
from google.protobuf.message import DecodeError

from dexorder_common.model.errors import SuiteError, Unavailable
from dexorder_common.rpc.channel import open_sync_channel
from dexorder_common.rpc.client_retry import Failure, code_of, error_text, failure_of, is_too_large
from dexorder_protos.source.v1 import source_pb2 as pb
from dexorder_protos.source.v1 import source_pb2_grpc as rpc
from dexorder_spark.source.offsets import (
    OffsetRange,
    Offsets,
    SourceState,
    from_json,
    lost_logs,
    parse_pairs,
    to_compare,
)
from dexorder_spark.source.records import Result

MAX_MESSAGE_BYTES = 64 * 1024 * 1024
READ_TIMEOUT_MS = 1_000
"""Longest time the server waits for records in one read; all records of a planned range exist already."""
_STREAM_TIMEOUT_S = 60.0
_CALL_TIMEOUT_S = 10.0
_CHANNEL_OPTIONS = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.keepalive_permit_without_calls", 0),  # another source may disconnect a client that pings while idle
)


class SourceBroken(SuiteError):
    """The server refuses permanently or violates source.v1; another attempt would fail the same way."""


class SourceRefuses(Unavailable):
    """The server answers but denies access: it lacks the service, or the caller lacks the permission."""


class PendingUnknown(Unavailable):
    """The server does not know its pending records: udsource without Kafka, or a source that never counts them."""


@functools.cache
def channel(address: str) -> grpc.Channel:
    """Return this process's channel to the address; Spark reuses a worker, and so its channel, for many batches."""
    return open_sync_channel(address, options=_CHANNEL_OPTIONS)


def read_method(address: str) -> grpc.StreamStreamMultiCallable[pb.ReadRequest, pb.ReadResponse | DecodeError]:
    """Return ReadFn with answers that are messages, or errors where they do not parse.

    gRPC's own parser would fail the call without telling which message was malformed.
    """
    return channel(address).stream_stream(
        "/source.v1.Source/ReadFn", pb.ReadRequest.SerializeToString, response_deserializer=_parse
    )


def _parse(message: bytes) -> pb.ReadResponse | DecodeError:
    try:
        return pb.ReadResponse.FromString(message)
    except DecodeError as error:
        return error


class SourceClient:
    """Calls of one server. It holds a channel, so it is created where it is used and never pickled.

    Args:
        address: host:port or unix:path; ``#name`` behind it for another topic of udsource than the one of
            plain reads.
        group: Group of the acks; empty for the acks that all readers without a group share.
    """

    def __init__(self, address: str, group: str = "") -> None:
        self.address = address
        server, _, self._topic = address.partition("#")
        self._of_topic = (("x-topic", self._topic),) if self._topic else ()
        self._metadata = (("x-replay", "1"), *([("x-group", group)] if group else []), *self._of_topic)
        self._stub = rpc.SourceStub(channel(server))
        self._read = read_method(server)

    def state(self) -> SourceState:
        """Return the start, end and committed offset of each partition.

        Raises:
            Unavailable: The server cannot be reached or answers with an error.
            NotImplementedError: The server cannot replay.
        """
        try:
            # With this metadata udsource answers with an error while it does not know; no ends means another server.
            answer, call = self._stub.PendingFn.with_call(Empty(), metadata=self._metadata, timeout=_CALL_TIMEOUT_S)
        except grpc.RpcError as error:
            kind = SourceRefuses if is_final(error) else Unavailable
            raise kind(f"source {self.address}: {error_text(error)}") from error
        metadata = {name: str(value) for name, value in call.initial_metadata() or ()}
        if "x-ends" not in metadata and answer.result.count < 0:
            raise PendingUnknown(f"source {self.address}: it does not know its offsets yet")
        if "x-ends" not in metadata:
            raise NotImplementedError(
                f"source {self.address} sends no x-ends metadata on PendingFn, so it cannot replay a range"
            )
        if metadata.get("x-topic", "") != self._topic:
            raise NotImplementedError(f"source {self.address} has only one topic: it does not answer with x-topic")
        starts, ends, committed = (
            parse_pairs(metadata.get(f"x-{name}", "")) for name in ("starts", "ends", "committed")
        )
        record_bytes = int(metadata.get("x-record-bytes", 0))
        epochs, committed_epochs = (
            parse_pairs(metadata.get(f"x-{name}", "")) for name in ("epochs", "committed-epochs")
        )
        topic_id = metadata.get("x-topic-id", "")
        return SourceState(starts, ends, committed, topic_id, record_bytes, epochs, committed_epochs)

    def read(self, part: OffsetRange, *, limit: int = 500, retry_seconds: float = 60.0) -> Iterator[list[Result]]:
        """Yield every record of the range that is still in the log, ascending, in lists of at most ``limit``.

        A lost stream is opened again after the last complete list. Only a stream that completes a read without any
        record means that the rest of the range was removed by compaction.

        Raises:
            Unavailable: No stream delivered a record for ``retry_seconds``.
            SourceBroken: The server refuses the range permanently, or sends a record outside it, one that does not
                parse or one that is too large. Both name the address, the partition and the next offset.
        """
        position = part.start
        backoff = _Backoff(retry_seconds)
        while position < part.end:
            before = position
            try:
                for results in self._stream(replace(part, start=position), limit):
                    yield results
                    position = int(results[-1].offset.offset) + 1
                    backoff.reset()
            except (grpc.RpcError, Unavailable) as error:
                where = f"partition {part.partition} at offset {position} of [{part.start}, {part.end})"
                backoff.wait(f"source {self.address}, {where}", error)
                continue
            if position == before:
                return

    def lost_logs(self, last: Mapping[str, Any], epochs: Offsets, state: SourceState) -> dict[int, str]:
        """Return the partitions whose log differs from the log read up to ``last``, each with the reason.

        Args:
            epochs: Epochs of the leaders that had all records before ``last``.
            state: Answer of the source.

        Raises:
            Unavailable: The source cannot tell it now.
        """
        found = lost_logs(last, state)
        for each in to_compare(from_json(last), epochs, state):
            if each.partition not in found and (reason := self._compare(each)):
                found[each.partition] = reason
        return found

    def _compare(self, part: OffsetRange) -> str:
        """Return how the log before an empty range differs from the log of its epoch; empty if it does not."""
        try:
            for _ in self._stream(part, 1):
                pass
        except SourceBroken as error:
            return str(error) if error.__cause__ is None else error_text(error.__cause__)
        except grpc.RpcError as error:
            raise Unavailable(f"source {self.address}: {error_text(error)}") from error
        return ""

    def _stream(self, part: OffsetRange, limit: int) -> Iterator[list[Result]]:
        """Run one ReadFn call until the server ends it; yield one list for each read that returned records.

        Unavailable if the call ends in the middle of a read or a read fails; SourceBroken as for ``read``.
        """
        requests: queue.SimpleQueue[pb.ReadRequest | None] = queue.SimpleQueue()
        requests.put(pb.ReadRequest(handshake=pb.Handshake(sot=True)))
        given = {"partition": part.partition, "start": part.start, "end": part.end, "epoch": part.epoch}
        span = tuple((f"x-{name}", str(value)) for name, value in given.items() if value >= 0)
        call = self._read(iter(requests.get, None), metadata=span + self._of_topic, timeout=_STREAM_TIMEOUT_S)
        position, reads = part.start, 0
        results: list[Result] = []

        def where() -> str:
            return f"source {self.address}, partition {part.partition}, at offset {position} or later"

        try:
            for response in call:
                if isinstance(response, DecodeError):
                    raise SourceBroken(
                        f"{where()}: record {len(results) + 1} of a read is not a ReadResponse: {response}"
                    )
                if response.HasField("handshake"):
                    requests.put(_request(part.end - position, limit))
                elif response.status.eot:
                    if response.status.code != pb.ReadResponse.Status.SUCCESS:
                        raise Unavailable(f"the source failed: {response.status.msg}")
                    if results:
                        yield results
                    reads, results = reads + 1, []
                    wants_more = position < part.end or part.start == part.end
                    requests.put(_request(part.end - position, limit) if wants_more else None)
                else:
                    results.append(response.result)
                    position = _next_position(response.result, replace(part, start=position), where)
            if results or not reads:
                raise Unavailable("the stream ended early, in the middle of a read")
        except grpc.RpcError as error:
            if is_final(error):
                raise SourceBroken(f"{where()}: {error_text(error)}") from error
            raise
        finally:
            requests.put(None)
            call.cancel()

    def ack(self, offsets: Offsets) -> None:
        """Acknowledge every record up to and including these offsets, one per partition.

        Raises:
            Unavailable: The server did not confirm it. A later ack includes this one.
        """
        if not offsets:
            return
        acks = [pb.Offset(offset=str(offset).encode(), partition_id=p) for p, offset in offsets.items()]
        requests = [
            pb.AckRequest(handshake=pb.Handshake(sot=True)),
            pb.AckRequest(request=pb.AckRequest.Request(offsets=acks)),
        ]
        try:
            answers = list(self._stub.AckFn(iter(requests), metadata=self._metadata, timeout=_CALL_TIMEOUT_S))
        except grpc.RpcError as error:
            raise Unavailable(f"source {self.address}: {error_text(error)}") from error
        if not any(answer.HasField("result") for answer in answers):
            raise Unavailable(f"source {self.address}: the ack of {dict(offsets)} was not confirmed")


class _Backoff:
    """Growing waits between attempts, until ``seconds`` have passed without progress."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.reset()

    def reset(self) -> None:
        self._since = time.monotonic()
        self._wait_s = 0.05

    def wait(self, where: str, error: Exception) -> None:
        """Sleep before the next attempt; Unavailable when the time is over."""
        if time.monotonic() - self._since >= self._seconds:
            raise Unavailable(f"{where}: {error_text(error)}") from error
        time.sleep(self._wait_s)
        self._wait_s = min(self._wait_s * 2, 2.0)


def is_final(error: Exception) -> bool:
    """Return whether the same call would fail again: the server denies it, or one message is too large.

    REJECTED is not final: a replica may learn of a log's end a moment late.
    """
    # By the code alone: a source may be any server, and others send no details.
    return failure_of(code_of(error)) is Failure.DENIED or is_too_large(error)


def _request(left: int, limit: int) -> pb.ReadRequest:
    return pb.ReadRequest(request=pb.ReadRequest.Request(num_records=min(left, limit), timeout_in_ms=READ_TIMEOUT_MS))


def _next_position(result: Result, part: OffsetRange, where: Callable[[], str]) -> int:
    """Return the offset after a record, which must be in the range that is still missing."""
    text, partition = result.offset.offset, result.offset.partition_id
    offset = int(text) if text.isdigit() else -1
    if partition != part.partition or not part.start <= offset < part.end:
        raise SourceBroken(
            f"{where()}: requested offsets below {part.end}, received offset {text!r} of partition {partition}"
        )
    return offset + 1
