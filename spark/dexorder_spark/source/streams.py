"""Plain form of source.v1: one ReadFn and one AckFn call, each opened at first use and again after a loss.

Facts about servers: a new ReadFn handshake is the only sign of a new client, and the source then sends unacked records
again. Acks are accepted on any AckFn call. Some sources send no more records until all are acked.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, TypeVar

import grpc
from google.protobuf.message import DecodeError

from dexorder_common.model.errors import Code, Unavailable
from dexorder_common.rpc.client_retry import code_of, error_text, is_too_large
from dexorder_protos.source.v1 import source_pb2 as pb
from dexorder_protos.source.v1 import source_pb2_grpc as rpc
from dexorder_spark.source.client import SourceBroken, SourceRefuses, channel, is_final, read_method
from dexorder_spark.source.in_flight import RecordId
from dexorder_spark.source.records import Result

log = logging.getLogger(__name__)
Q = TypeVar("Q", bound=pb.ReadRequest | pb.AckRequest)
A = TypeVar("A", bound=pb.ReadResponse | pb.AckResponse | DecodeError)

_IDS_PER_ACK = 20_000
"""Ids in one AckRequest, which keeps it far below every server's message limit."""
_END_SECONDS = 2.0


class AckRefused(SourceBroken):
    """The source does not know a record that is acked: it restarted in between, or forgot the record."""


class PlainStreams:
    """The two calls to one server. Not thread-safe: Spark calls the planner's methods one at a time."""

    def __init__(self, address: str, *, answer_seconds: float = 60.0) -> None:
        """Open no call yet. One is cancelled after a silence of ``answer_seconds``, on top of a read's own timeout."""
        self._address = address
        self._answer_s = answer_seconds
        handshake = pb.Handshake(sot=True)
        fault = f"source {address}: its first answer on ReadFn is not a handshake"
        self._reading = _Call(read_method(address), pb.ReadRequest(handshake=handshake), fault)
        fault = "its first answer on AckFn is not a handshake"  # ack adds the address
        self._acking = _Call(rpc.SourceStub(channel(address)).AckFn, pb.AckRequest(handshake=handshake), fault)
        self._last = ""

    def read(self, limit: int, timeout_ms: int) -> list[Result]:
        """Read at most ``limit`` records; return an empty list after ``timeout_ms`` without records.

        Records received before a stream was lost are returned too: the source counts them as delivered.

        Raises:
            Unavailable: The source failed or was lost before any record; the next read opens a new stream.
            SourceRefuses: The source denies access.
            SourceBroken: A message is too large or not of source.v1. All name the address, the last two the record.
        """
        results: list[Result] = []
        try:
            self._reading.open(self._answer_s)
            request = pb.ReadRequest.Request(num_records=limit, timeout_in_ms=timeout_ms)
            self._reading.send(pb.ReadRequest(request=request))
            failure = self._collect(results, timeout_ms / 1_000 + self._answer_s)
        except (grpc.RpcError, Unavailable) as error:
            self._reading.close()
            if is_final(error):
                kind = SourceBroken if is_too_large(error) else SourceRefuses
                raise kind(f"{self._where(results)}: {error_text(error)}") from error
            failure = error_text(error)
        except SourceBroken:
            self._reading.close()
            raise
        if results:
            self._last = _name(results[-1])
        if failure and not results:
            raise Unavailable(f"source {self._address}: {failure}")
        if failure:
            log.warning("udsource: source %s, after %s: %s", self._address, self._last, failure)
        return results

    def ack(self, ids: Sequence[RecordId]) -> None:
        """Ack records and wait for the source's confirmation.

        Raises:
            Unavailable: There was no confirmation; the source may or may not have acked them.
            AckRefused: The source refuses.
        """
        for first in range(0, len(ids), _IDS_PER_ACK):
            group = ids[first : first + _IDS_PER_ACK]
            offsets = [pb.Offset(offset=offset, partition_id=partition) for partition, offset in group]
            try:
                self._acking.open(self._answer_s)
                self._acking.send(pb.AckRequest(request=pb.AckRequest.Request(offsets=offsets)))
                with self._acking.watched(self._answer_s):
                    answer = self._acking.next()
                if not answer.HasField("result"):
                    raise SourceBroken("its answer lacks a result")
            except (grpc.RpcError, Unavailable, SourceBroken) as error:
                self._acking.close()
                refused = code_of(error) is Code.INVALID_ARGUMENT or is_final(error)
                kind = AckRefused if refused else Unavailable
                partition, offset = group[0]
                raise kind(
                    f"source {self._address}: ack of {len(group)} records from partition {partition}, "
                    f"offset {offset!r} on: {error_text(error)}"
                ) from error

    def close(self) -> None:
        """End both calls; unacked records stay unacked."""
        self._reading.end()
        self._acking.end()
        self._reading.close()
        self._acking.close()

    def _collect(self, results: list[Result], limit_s: float) -> str:
        """Append records to ``results`` until the end of transmission; return its error text, or ""."""
        with self._reading.watched(limit_s) as heard:
            while True:
                response = self._reading.next()
                heard()
                if isinstance(response, DecodeError):
                    raise SourceBroken(f"{self._where(results)}: it is not a ReadResponse: {response}")
                status = response.status
                if status.eot:
                    failed = status.code != pb.ReadResponse.Status.SUCCESS
                    return f"the source failed: {status.msg}" if failed else ""
                if not response.result.offset.offset:
                    raise SourceBroken(f"{self._where(results)}: it lacks an offset")
                results.append(response.result)

    def _where(self, results: Sequence[Result]) -> str:
        last = _name(results[-1]) if results else self._last
        after = f" (after {last})" if last else ""
        return f"source {self._address}, record {len(results) + 1} of a read{after}"


class _Call(Generic[Q, A]):
    """Bidirectional call, opened at first use and again after a loss, with a limit on the other side's silence."""

    def __init__(self, method: grpc.StreamStreamMultiCallable[Q, A], handshake: Q, fault: str) -> None:
        self._method = method
        self._handshake = handshake
        self._fault = fault
        self._is_open = False

    def open(self, limit_s: float) -> None:
        """Open the call unless it is open; SourceBroken if the other side's first answer is not a handshake."""
        if self._is_open:
            return
        self._requests: queue.SimpleQueue[Q | None] = queue.SimpleQueue()
        self._answers = self._method(iter(self._requests.get, None))
        self._silent_s = 0.0
        self._is_open = True
        self.send(self._handshake)
        with self.watched(limit_s):
            answer = self.next()
        if isinstance(answer, DecodeError) or not answer.handshake.sot:
            raise SourceBroken(self._fault)

    def send(self, request: Q) -> None:
        self._requests.put(request)

    def next(self) -> A:
        """Return the other side's next message.

        Raises:
            grpc.RpcError: The call is lost.
            Unavailable: The call ended, or was cancelled because the other side was silent.
        """
        try:
            return next(self._answers)
        except StopIteration:
            raise Unavailable("the stream ended") from None
        except grpc.RpcError as error:
            if self._silent_s:
                raise Unavailable(f"no answer within {self._silent_s:g} s") from error
            raise

    @contextlib.contextmanager
    def watched(self, limit_s: float) -> Iterator[Callable[[], None]]:
        """Cancel the call if the yielded function is not called for ``limit_s``; one thread per read."""
        done = threading.Event()
        heard_s = time.monotonic()

        def heard() -> None:
            nonlocal heard_s
            heard_s = time.monotonic()

        def watch() -> None:
            while not done.wait(max(0.01, heard_s + limit_s - time.monotonic())):
                if time.monotonic() >= heard_s + limit_s:
                    self._silent_s = limit_s
                    self._answers.cancel()
                    return

        thread = threading.Thread(target=watch, name="udsource-watch", daemon=True)
        thread.start()
        try:
            yield heard
        finally:
            done.set()
            thread.join()

    def end(self) -> None:
        """Half-close and wait shortly for the other side to end: some sources terminate when a call is cancelled."""
        if not self._is_open:
            return
        self._requests.put(None)
        with contextlib.suppress(grpc.RpcError, Unavailable), self.watched(_END_SECONDS):
            while True:
                self.next()

    def close(self) -> None:
        """Half-close and cancel, if the call is open."""
        if self._is_open:
            self._requests.put(None)
            self._answers.cancel()
        self._is_open = False


def _name(result: Result) -> str:
    return f"partition {result.offset.partition_id}, offset {result.offset.offset!r}"
