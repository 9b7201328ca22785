"""A source.v1 server as any SDK makes one: no replay, acks by record. In this process, on a free port."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from contextlib import contextmanager
from typing import Any

import grpc
from google.protobuf.empty_pb2 import Empty

from dexorder_protos.source.v1 import source_pb2 as pb
from dexorder_spark.source.in_flight import RecordId

Result = pb.ReadResponse.Result


def record(number: int, *, partitions: int = 2, payload: bytes | None = None) -> Result:
    """Return record n: partition n % partitions, an offset that is not a number, and n as the payload."""
    result = Result(
        payload=b"%d" % number if payload is None else payload,
        offset=pb.Offset(offset=b"o-%d" % number, partition_id=number % partitions),
        keys=[f"k{number}", "second"],
        headers={"n": str(number)},
    )
    result.event_time.FromMilliseconds(1_700_000_000_000 + number)
    return result


def id_of(result: Result) -> RecordId:
    return result.offset.partition_id, result.offset.offset


class PlainSource:
    """Records in memory; what is in flight comes again to a new ReadFn.

    Attributes:
        redelivers: False gives a record once, whatever becomes of its reader.
        waits_for_acks: True gives nothing while a record is in flight, as the SDKs' examples do.
        repeats: True gives what is in flight with every read again.
        knows_issued: True refuses acks of records that it did not hand out since it was started.
        count: What PendingFn says; None for the truth.
        metadata: PendingFn's initial metadata.
        cut_after: End the next reads' streams after so many records; one entry a read.
        failures: The next reads end with FAILURE and this text, behind their records.
        raw: Sent in place of the next read's records, as they are.
        refusals: So many AckFn requests are refused.
        lost_acks: So many AckFn requests count, but their call is lost.
        hang: Reads wait for this event, then end their stream.
        on_ack: Called with the ids of each AckFn request before it counts.
        acks: The ids of every AckFn request that counted.
        reads: num_records of every read.
        streams: How many ReadFn calls there were.
        left: How many of them their reader ended in good order.
    """

    def __init__(self, records: Sequence[Result] = ()) -> None:
        self.redelivers = True
        self.waits_for_acks = False
        self.repeats = False
        self.knows_issued = False
        self.count: int | None = None
        self.metadata: tuple[tuple[str, str], ...] = ()
        self.cut_after: list[int] = []
        self.failures: list[str] = []
        self.raw: list[bytes] = []
        self.refusals = self.lost_acks = self.streams = self.left = 0
        self.hang: threading.Event | None = None
        self.on_ack: Callable[[list[RecordId]], None] = lambda ids: None
        self.acks: list[list[RecordId]] = []
        self.reads: list[int] = []
        self._lock = threading.Lock()
        self._waiting = list(records)
        self._flying: dict[RecordId, Result] = {}
        self._issued: set[RecordId] = set()

    def add(self, *records: Result) -> None:
        with self._lock:
            self._waiting += records

    @property
    def pending(self) -> int:
        with self._lock:
            return len(self._waiting) + len(self._flying)

    @property
    def acked(self) -> list[RecordId]:
        return [one for ids in self.acks for one in ids]

    def restart(self) -> None:
        """State that a process loses: the reader and its records in flight."""
        with self._lock:
            if self.redelivers:
                self._waiting = [*self._flying.values(), *self._waiting]
                self._flying = {}
            self._issued.clear()

    # ---- RPCs

    def pending_fn(self, request: Empty, context: grpc.ServicerContext) -> pb.PendingResponse:
        if self.metadata:
            context.send_initial_metadata(self.metadata)
        count = self.pending if self.count is None else self.count
        return pb.PendingResponse(result=pb.PendingResponse.Result(count=count))

    def read_fn(
        self, requests: Iterator[pb.ReadRequest], context: grpc.ServicerContext
    ) -> Iterator[pb.ReadResponse | bytes]:
        assert next(requests).handshake.sot
        with self._lock:
            self.streams += 1
            if self.redelivers:
                self._waiting = [*self._flying.values(), *self._waiting]
                self._flying = {}
        # as pynumaflow answers: with a status beside the handshake
        yield pb.ReadResponse(handshake=pb.Handshake(sot=True), status=pb.ReadResponse.Status(eot=False))
        for request in requests:
            self.reads.append(request.request.num_records)
            if self.hang is not None:
                self.hang.wait(60)
                return
            cut = self.cut_after.pop(0) if self.cut_after else None
            if self.raw:
                yield from self.raw
                self.raw = []
            for sent, result in enumerate(self._take(request.request.num_records)):
                if sent == cut:
                    return
                yield pb.ReadResponse(result=result)
            if cut is not None:
                return
            failure = self.failures.pop(0) if self.failures else None
            yield _end(failure)
        self.left += 1

    def _take(self, limit: int) -> list[Result]:
        with self._lock:
            if self.waits_for_acks and self._flying:
                return []
            again = list(self._flying.values())[:limit] if self.repeats else []
            limit -= len(again)
            taken = self._waiting[:limit]
            self._waiting = self._waiting[limit:]
            self._flying |= {id_of(result): result for result in taken}
            self._issued |= {id_of(result) for result in taken}
            return again + taken

    def ack_fn(self, requests: Iterator[pb.AckRequest], context: grpc.ServicerContext) -> Iterator[pb.AckResponse]:
        assert next(requests).handshake.sot
        yield pb.AckResponse(handshake=pb.Handshake(sot=True), result=pb.AckResponse.Result(success=Empty()))
        for request in requests:
            ids = [(offset.partition_id, offset.offset) for offset in request.request.offsets]
            self.on_ack(ids)
            with self._lock:
                unknown = self.knows_issued and not self._issued.issuperset(ids)
            if unknown or self.refusals > 0:
                self.refusals -= 1
                context.abort(grpc.StatusCode.INVALID_ARGUMENT, "an offset was never handed out")
            with self._lock:
                self.acks.append(ids)
                for one in ids:
                    self._flying.pop(one, None)
                self._waiting = [result for result in self._waiting if id_of(result) not in ids]
            if self.lost_acks > 0:
                self.lost_acks -= 1
                context.abort(grpc.StatusCode.UNAVAILABLE, "lost")
            yield pb.AckResponse(result=pb.AckResponse.Result(success=Empty()))


class RunningPlainSource:
    """The source on a real server; ``stop`` and ``start`` keep the port."""

    def __init__(self, source: PlainSource) -> None:
        self.source = source
        self.address = "127.0.0.1:0"
        self.start()

    def start(self) -> None:
        self._server = grpc.server(
            futures.ThreadPoolExecutor(max_workers=16),
            options=[("grpc.so_reuseport", 0), ("grpc.max_send_message_length", -1)],
        )
        source = self.source
        handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            "PendingFn": grpc.unary_unary_rpc_method_handler(source.pending_fn, Empty.FromString, _bytes),
            "ReadFn": grpc.stream_stream_rpc_method_handler(source.read_fn, pb.ReadRequest.FromString, _bytes),
            "AckFn": grpc.stream_stream_rpc_method_handler(source.ack_fn, pb.AckRequest.FromString, _bytes),
        }
        self._server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("source.v1.Source", handlers)])
        self.address = f"127.0.0.1:{self._server.add_insecure_port(self.address)}"
        self._server.start()
        # A channel of an earlier test that had this port may still wait before it connects again; channels share that.
        with grpc.insecure_channel(self.address) as channel:
            grpc.channel_ready_future(channel).result(timeout=60)

    def stop(self) -> None:
        """Lose every call, like a killed process."""
        self._server.stop(grace=None).wait()
        self.source.restart()


@contextmanager
def serving(source: PlainSource) -> Iterator[RunningPlainSource]:
    running = RunningPlainSource(source)
    try:
        yield running
    finally:
        running.stop()


def _bytes(message: Any) -> bytes:
    return message if isinstance(message, bytes) else bytes(message.SerializeToString())


def _end(failure: str | None) -> pb.ReadResponse:
    if failure is None:
        return pb.ReadResponse(status=pb.ReadResponse.Status(eot=True))
    failed = pb.ReadResponse.Status(eot=True, code=pb.ReadResponse.Status.FAILURE, msg=failure)
    failed.error = pb.ReadResponse.Status.OTHER
    return pb.ReadResponse(status=failed)
