"""In-memory source.v1 server with both forms, plain and replay, for tests without Kafka."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent import futures
from dataclasses import dataclass, field
from typing import Any

import grpc
from google.protobuf.empty_pb2 import Empty

from dexorder_protos.source.v1 import source_pb2 as pb
from dexorder_protos.source.v1 import source_pb2_grpc as rpc


@dataclass(frozen=True)
class FakeRecord:
    offset: int
    payload: bytes
    key: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    event_time_ms: int = 1_700_000_000_000


class FakeSource(rpc.SourceServicer):
    """Partitions of records. ``drop`` removes offsets like compaction; ``cut_after`` breaks each stream's reads.

    Attributes:
        can_replay: False makes it behave like a server that ignores our metadata.
        committed: Offsets acked without a group.
        groups: Offsets acked by each group.
        has_topics: False makes it behave like a server that does not know the metadata of another topic.
        topic_id, record_bytes, epochs: Sent if they are not empty; the last are the epochs of the leaders.
        kafka_is_available: False makes it behave like udsource without Kafka: the pending count is unknown.
        cut_after: Number of records after which the next streams end in the middle of a read; one entry per stream.
        on_ack: Called with each AckFn request before it takes effect.
        ack_calls: Every AckFn request seen, as (partition, offset) lists.
    """

    def __init__(self, partitions: int = 2) -> None:
        self.logs: dict[int, list[FakeRecord]] = {p: [] for p in range(partitions)}
        self.starts = dict.fromkeys(range(partitions), 0)
        self.ends = dict.fromkeys(range(partitions), 0)
        self.committed: dict[int, int] = {}
        self.groups: dict[str, dict[int, int]] = {}
        self.can_replay = True
        self.has_topics = True
        self.topic_id = ""
        self.record_bytes = 0
        self.epochs: dict[int, int] = {}
        self.committed_epochs: dict[int, int] = {}
        self._epoch_starts: dict[int, list[tuple[int, int]]] = {}
        self.compared: list[tuple[int, int, int]] = []
        self.kafka_is_available = True
        self.cut_after: list[int] = []
        self.ack_calls: list[list[tuple[int, int]]] = []
        self.on_ack: Callable[[list[tuple[int, int]]], None] = lambda acks: None
        self.reads: list[tuple[int, int, int]] = []
        self._lock = threading.Lock()
        self._plain_position = dict.fromkeys(range(partitions), 0)

    def add(self, partition: int, payload: bytes, key: str = "", headers: dict[str, str] | None = None) -> int:
        with self._lock:
            offset = self.ends[partition]
            self.logs[partition].append(FakeRecord(offset, payload, key, headers or {}))
            self.ends[partition] = offset + 1
            return offset

    def drop(self, partition: int, offset: int) -> None:
        with self._lock:
            self.logs[partition] = [r for r in self.logs[partition] if r.offset != offset]

    def _committed(self, context: grpc.ServicerContext) -> dict[int, int]:
        group = dict(context.invocation_metadata()).get("x-group", "")
        return self.groups.setdefault(str(group), {}) if group else self.committed

    def create_again(self) -> None:
        """Delete the topic and create it; Kafka then forgets the commits."""
        with self._lock:
            self.logs = {p: [] for p in self.logs}
            self.starts, self.ends = dict.fromkeys(self.logs, 0), dict.fromkeys(self.logs, 0)
            self.committed = {}

    def elect(self, partition: int, end: int | None = None) -> None:
        """Let another replica lead, whose log has only the records before ``end``; None for all."""
        with self._lock:
            end = self.ends[partition] if end is None else end
            self.logs[partition] = [r for r in self.logs[partition] if r.offset < end]
            self.ends[partition] = end
            kept = [each for each in self._epoch_starts.get(partition, [(self.epochs[partition], 0)]) if each[1] < end]
            self.epochs[partition] += 1
            self._epoch_starts[partition] = [*kept, (self.epochs[partition], end)]

    def _lacks(self, partition: int, end: int, epoch: int) -> bool:
        """Return whether the log up to ``end`` is not that of the epoch."""
        self.compared.append((partition, end, epoch))
        later = (start for number, start in self._epoch_starts.get(partition, []) if number > epoch)
        return min(later, default=self.ends[partition]) < end

    # ---- RPCs ------------------------------------------------------------------------------------------------------

    def IsReady(self, request: Empty, context: grpc.ServicerContext) -> pb.ReadyResponse:
        return pb.ReadyResponse(ready=True)

    def PendingFn(self, request: Empty, context: grpc.ServicerContext) -> pb.PendingResponse:
        if not self.kafka_is_available:
            return pb.PendingResponse(result=pb.PendingResponse.Result(count=-1))
        with self._lock:
            if self.can_replay:
                context.send_initial_metadata(
                    (
                        ("x-starts", _pairs(self.starts)),
                        ("x-ends", _pairs(self.ends)),
                        ("x-committed", _pairs(self._committed(context))),
                        *(each for each in context.invocation_metadata() if each[0] == "x-topic" and self.has_topics),
                        *([("x-topic-id", self.topic_id)] if self.topic_id else []),
                        *([("x-epochs", _pairs(self.epochs))] if self.epochs else []),
                        ("x-committed-epochs", _pairs(self.committed_epochs)),
                        *([("x-record-bytes", str(self.record_bytes))] if self.record_bytes else []),
                    )
                )
            lag = sum(end - self.committed.get(p, 0) for p, end in self.ends.items())
        return pb.PendingResponse(result=pb.PendingResponse.Result(count=lag))

    def PartitionsFn(self, request: Empty, context: grpc.ServicerContext) -> pb.PartitionsResponse:
        return pb.PartitionsResponse(result=pb.PartitionsResponse.Result(partitions=sorted(self.logs)))

    def ReadFn(self, requests: Iterator[pb.ReadRequest], context: grpc.ServicerContext) -> Iterator[pb.ReadResponse]:
        assert next(requests).handshake.sot
        yield pb.ReadResponse(handshake=pb.Handshake(sot=True))
        metadata: dict[str, Any] = dict(context.invocation_metadata())
        if self.can_replay and "x-partition" in metadata:
            part = tuple(int(metadata[name]) for name in ("x-partition", "x-start", "x-end"))
            if "x-epoch" in metadata and self._lacks(part[0], part[2], int(metadata["x-epoch"])):
                context.abort(grpc.StatusCode.FAILED_PRECONDITION, f"the log was truncated before {part[2]}")
            yield from self._replay(requests, part[0], part[1], part[2])
        else:
            yield from self._plain(requests)

    def NackFn(self, request: pb.NackRequest, context: grpc.ServicerContext) -> pb.NackResponse:
        raise NotImplementedError

    def _replay(
        self, requests: Iterator[pb.ReadRequest], partition: int, start: int, end: int
    ) -> Iterator[pb.ReadResponse]:
        with self._lock:
            self.reads.append((partition, start, end))
            cut = self.cut_after.pop(0) if self.cut_after else None
            records = [r for r in self.logs[partition] if start <= r.offset < end]
        sent = 0
        for request in requests:
            batch = records[sent : sent + request.request.num_records]
            for record in batch:
                if sent == cut:
                    return
                yield _response(record, partition)
                sent += 1
            yield pb.ReadResponse(status=pb.ReadResponse.Status(eot=True))
            if sent == len(records):
                return

    def _plain(self, requests: Iterator[pb.ReadRequest]) -> Iterator[pb.ReadResponse]:
        for request in requests:
            left = request.request.num_records
            for partition, log in self.logs.items():
                position = self._plain_position[partition]
                batch = [r for r in log if r.offset >= position][:left]
                for record in batch:
                    yield _response(record, partition)
                    self._plain_position[partition] = record.offset + 1
                left -= len(batch)
            yield pb.ReadResponse(status=pb.ReadResponse.Status(eot=True))

    def AckFn(self, requests: Iterator[pb.AckRequest], context: grpc.ServicerContext) -> Iterator[pb.AckResponse]:
        assert next(requests).handshake.sot
        yield pb.AckResponse(handshake=pb.Handshake(sot=True))
        assert not self.can_replay or ("x-replay", "1") in context.invocation_metadata()
        committed = self._committed(context)
        for request in requests:
            acks = [(o.partition_id, int(o.offset)) for o in request.request.offsets]
            self.on_ack(acks)
            with self._lock:
                self.ack_calls.append(acks)
                for partition, offset in acks:
                    if offset >= self.ends[partition]:
                        context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"offset {offset} was never issued")
                    committed[partition] = max(committed.get(partition, 0), offset + 1)
            yield pb.AckResponse(result=pb.AckResponse.Result(success=Empty()))


class TopicsSource(rpc.SourceServicer):
    """Sources by the topic that the metadata of a call names, as udsource has them; "" for calls that name none."""

    def __init__(self, topics: Mapping[str, FakeSource]) -> None:
        self.topics = topics

    def _of(self, context: grpc.ServicerContext) -> FakeSource:
        return self.topics[str(dict(context.invocation_metadata()).get("x-topic", ""))]

    def PendingFn(self, request: Empty, context: grpc.ServicerContext) -> pb.PendingResponse:
        return self._of(context).PendingFn(request, context)

    def ReadFn(self, requests: Iterator[pb.ReadRequest], context: grpc.ServicerContext) -> Iterator[pb.ReadResponse]:
        return self._of(context).ReadFn(requests, context)

    def AckFn(self, requests: Iterator[pb.AckRequest], context: grpc.ServicerContext) -> Iterator[pb.AckResponse]:
        return self._of(context).AckFn(requests, context)

    def IsReady(self, request: Empty, context: grpc.ServicerContext) -> pb.ReadyResponse:
        return self._of(context).IsReady(request, context)

    def PartitionsFn(self, request: Empty, context: grpc.ServicerContext) -> pb.PartitionsResponse:
        return self._of(context).PartitionsFn(request, context)

    def NackFn(self, request: pb.NackRequest, context: grpc.ServicerContext) -> pb.NackResponse:
        return self._of(context).NackFn(request, context)


class RunningSource:
    """The fake on a real server at a free port of loopback; ``stop`` and ``start`` keep the port."""

    def __init__(
        self, fake: FakeSource, address: str = "127.0.0.1:0", topics: Mapping[str, FakeSource] | None = None
    ) -> None:
        """Serve the fake, and further topics beside it."""
        self._servicer: rpc.SourceServicer = TopicsSource({"": fake, **topics}) if topics else fake
        self.fake = fake
        self.address = address
        self.start()

    def start(self) -> None:
        self._server = grpc.server(
            futures.ThreadPoolExecutor(max_workers=16),
            options=[("grpc.so_reuseport", 0), ("grpc.max_send_message_length", 64 << 20)],
        )
        rpc.add_SourceServicer_to_server(self._servicer, self._server)
        port = self._server.add_insecure_port(self.address)
        self.address = f"127.0.0.1:{port}"
        self._server.start()

    def stop(self) -> None:
        self._server.stop(grace=None).wait()


def _pairs(offsets: dict[int, int]) -> str:
    return ",".join(f"{p}:{o}" for p, o in sorted(offsets.items()))


def _response(record: FakeRecord, partition: int) -> pb.ReadResponse:
    result = pb.ReadResponse.Result(
        payload=record.payload,
        offset=pb.Offset(offset=str(record.offset).encode(), partition_id=partition),
        keys=[record.key] if record.key else [],
        headers=record.headers,
    )
    result.event_time.FromMilliseconds(record.event_time_ms)
    return pb.ReadResponse(result=result)
