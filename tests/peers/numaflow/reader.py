"""A dataplane in small: reads, acks and asks a user-defined source as Numaflow 1.4 to 1.8 does.

Stubs and messages are pynumaflow's own, so this runs with the interpreter of ``peer_python("numaflow")`` only. It waits
for the server-info file, connects, waits for an answer of IsReady, makes both handshakes and says hello; then each line
of JSON on standard input is a command and each is answered by one line on standard output:

    read {most, timeout_ms, vanish_after}    one ReadRequest, its records up to the eot; or SIGKILL after so many
    ack {places, wait, pad_bytes}            one AckRequest; waits for its one AckResponse
    nack {places, each}                      NackFn; ``each``: a request for each offset, as 1.8.3 sends it
    pending, partitions, ready               the unary calls
    open {read, ack}                         new streams with their handshakes, as a dataplane that restarts
    vanish                                   SIGKILL to itself
    close                                    no more requests, wait for the streams' ends, exit

An answer has ``error`` (code, details) when a call failed, ``ended`` when a stream was over, and ``violation`` when the
source did what kills a dataplane or confuses it; after that the process exits with status 3.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import queue
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import grpc
from google.protobuf.empty_pb2 import Empty
from pynumaflow.proto.sourcer import source_pb2 as pb
from pynumaflow.proto.sourcer import source_pb2_grpc as rpc

MARKER = "U+005C__END__"
MARKER_READS = 10
MOST_BYTES = 64 * 1024 * 1024
PAUSE_S = 0.1
PADDING_TAG = b"\x7a"  # field 15, bytes: unknown to every version of the message, so parsers skip it
VIOLATION_STATUS = 3


class Violation(Exception):
    """The source broke the contract."""


def require(holds: bool, what: str) -> None:
    if not holds:
        raise Violation(what)


def wait_for_info(path: Path) -> dict[str, Any]:
    """Wait until the server-info file has content and return it; the marker must follow soon."""
    while not path.exists() or not path.stat().st_size:
        time.sleep(PAUSE_S)
    for _ in range(MARKER_READS):
        text = path.read_text()
        if text.endswith(MARKER):
            return json.loads(text.removesuffix(MARKER))
        time.sleep(PAUSE_S)
    raise Violation(f"{path.name} does not end with the marker: {text!r}")


def accepts(path: Path) -> bool:
    """Return whether a server listens on the socket."""
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            return False
    return True


def to_offsets(places: Iterable[tuple[int, str]]) -> list[pb.Offset]:
    return [pb.Offset(offset=offset.encode(), partition_id=partition) for partition, offset in places]


def padding(size: int) -> bytes:
    """A field of ``size`` bytes that nobody knows."""
    length, varint = size, b""
    while length > 0x7F:
        varint += bytes((length & 0x7F | 0x80,))
        length >>= 7
    return PADDING_TAG + varint + bytes((length,)) + bytes(size) if size else b""


class Stream:
    """One bidirectional call behind its handshake."""

    def __init__(self, method: Callable[[Iterator[Any]], Any], handshake: Any) -> None:
        self._requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._answers = method(iter(self._requests.get, None))
        self.send(handshake)
        self.hello = self.receive()
        require(self.hello.handshake.sot, "the first answer has no handshake with sot")

    def send(self, message: Any) -> None:
        self._requests.put(message)

    def receive(self) -> Any:
        return next(self._answers)

    def end(self) -> str:
        """Send no more, take what still comes; the status of the call."""
        self._requests.put(None)
        try:
            for _ in self._answers:
                pass
        except grpc.RpcError:
            pass
        return self._answers.code().name

    def cancel(self) -> None:
        self._requests.put(None)
        self._answers.cancel()


class Dataplane:
    """One client. ``delivered``: places of the current ReadFn stream that may not come again on it."""

    def __init__(self, target: str) -> None:
        sizes = [("grpc.max_receive_message_length", MOST_BYTES), ("grpc.max_send_message_length", MOST_BYTES)]
        self.channel = grpc.insecure_channel(target, options=sizes)
        self.stub = rpc.SourceStub(self.channel)
        self.reads: Stream | None = None
        self.acks: Stream | None = None
        self.delivered: set[tuple[int, str]] = set()

    def wait_until_ready(self) -> bool:
        """Ask until there is an answer; whether the first one said ready, which a dataplane ignores."""
        while True:
            try:
                return self.stub.IsReady(Empty()).ready
            except grpc.RpcError:
                time.sleep(PAUSE_S)

    def open(self, *, read: bool = True, ack: bool = True) -> dict[str, Any]:
        if read:
            if self.reads is not None:
                self.reads.cancel()
            self.delivered.clear()
            handshake = pb.ReadRequest(handshake=pb.Handshake(sot=True))
            self.reads = Stream(self.stub.ReadFn, handshake)
            require(not self.reads.hello.status.eot, "the answer to the handshake is an eot")
        if ack:
            if self.acks is not None:
                self.acks.cancel()
            self.acks = Stream(self.stub.AckFn, pb.AckRequest(handshake=pb.Handshake(sot=True)))
            require(self.acks.hello.result.HasField("success"), "the answer to AckFn's handshake has no success")
        return {"open": True}

    def read(self, *, most: int, timeout_ms: int = 1_000, vanish_after: int | None = None) -> dict[str, Any]:
        assert self.reads is not None
        request = pb.ReadRequest.Request(num_records=most, timeout_in_ms=timeout_ms)
        self.reads.send(pb.ReadRequest(request=request))
        records: list[Any] = []
        while True:
            if len(records) == vanish_after:
                vanish()
            response = self.reads.receive()
            if response.status.eot:
                require(not response.HasField("result"), "the eot carries a result")
                if vanish_after is not None:  # not enough yet
                    self.reads.send(pb.ReadRequest(request=request))
                    continue
                return {"records": records, "status": status(response.status)}
            require(response.HasField("result"), "empty message: neither eot nor result")
            records.append(self._checked(response.result))

    def _checked(self, result: Any) -> list[Any]:
        offset, partition = result.offset.offset.decode(), result.offset.partition_id
        require(bool(offset), "an empty offset")
        require(result.HasField("event_time"), f"offset {offset} of partition {partition} has no event time")
        require(0 <= partition <= 0xFFFF, f"partition {partition} does not fit 16 bits")
        place = partition, offset
        require(place not in self.delivered, f"offset {offset} of partition {partition} came twice on one stream")
        self.delivered.add(place)
        event_time_ms = result.event_time.ToMilliseconds()
        payload = base64.b64encode(result.payload).decode()
        return [partition, offset, payload, list(result.keys), dict(result.headers), event_time_ms]

    def ack(self, *, places: list[tuple[int, str]], wait: bool = True, pad_bytes: int = 0) -> dict[str, Any]:
        assert self.acks is not None
        request = pb.AckRequest(request=pb.AckRequest.Request(offsets=to_offsets(places)))
        request.MergeFromString(padding(pad_bytes))  # kept, and sent, as a field that is not known
        self.acks.send(request)
        if wait:
            answer = self.acks.receive()
            require(answer.result.HasField("success"), "an AckResponse without success")
            require(not answer.HasField("handshake"), "a second handshake on AckFn")
        return {"acked": len(places) if wait else None}

    def nack(self, *, places: list[tuple[int, str]], each: bool = False) -> dict[str, Any]:
        groups = [[place] for place in places] if each else [places]
        # A repeated request is, on the wire, one field after the other; so this is right for both forms of the message.
        body = b"".join(nack_request(to_offsets(group)) for group in groups)
        call = self.channel.unary_unary("/source.v1.Source/NackFn", response_deserializer=pb.NackResponse.FromString)
        require(call(body).result.HasField("success"), "a NackResponse without success")
        self.delivered.difference_update((partition, offset) for partition, offset in places)
        return {"nacked": len(places)}

    def pending(self) -> dict[str, Any]:
        return {"pending": self.stub.PendingFn(Empty()).result.count}

    def partitions(self) -> dict[str, Any]:
        result = self.stub.PartitionsFn(Empty()).result
        total = result.total_partitions if "total_partitions" in result.DESCRIPTOR.fields_by_name else None
        return {"partitions": list(result.partitions), "total": total}

    def ready(self) -> dict[str, Any]:
        return {"ready": self.stub.IsReady(Empty()).ready}

    def close(self) -> dict[str, Any]:
        return {"closed": {name: s.end() for name, s in (("read", self.reads), ("ack", self.acks)) if s is not None}}


def nack_request(offsets: list[pb.Offset]) -> bytes:
    request = pb.NackRequest.Request(offsets=offsets)
    try:
        return pb.NackRequest(request=request).SerializeToString()
    except TypeError:  # the field is repeated from 1.8.3 on
        return pb.NackRequest(request=[request]).SerializeToString()


def status(given: Any) -> dict[str, Any]:
    kind = pb.ReadResponse.Status
    return {
        "code": kind.Code.Name(given.code),
        "error": kind.Error.Name(given.error) if given.HasField("error") else None,
        "msg": given.msg,
    }


def vanish() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


def say(**answer: Any) -> None:
    print(json.dumps(answer), flush=True)


def obey(dataplane: Dataplane, line: str) -> bool:
    """Do what a line says and answer it; whether more may follow."""
    command = json.loads(line)
    do = command.pop("do")
    if do == "vanish":
        vanish()
    try:
        say(**getattr(dataplane, do)(**command))
    except StopIteration:
        say(ended=do)
    except grpc.RpcError as error:
        say(error={"code": error.code().name, "details": error.details()})
    return do != "close"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--socket", type=Path, required=True, help="the source's unix socket")
    parser.add_argument("--info", type=Path, help="the server-info file; default sourcer-server-info beside the socket")
    given = parser.parse_args()
    try:
        info = wait_for_info(given.info or given.socket.with_name("sourcer-server-info"))
        listened = accepts(given.socket)
        dataplane = Dataplane(f"unix:{given.socket}")
        ready = dataplane.wait_until_ready()
        dataplane.open()
        say(hello=info, listened=listened, ready=ready)
        for line in sys.stdin:
            if not obey(dataplane, line):
                break
    except Violation as violation:
        say(violation=str(violation))
        os._exit(VIOLATION_STATUS)
    os._exit(0)  # threads of open calls would hold it up


if __name__ == "__main__":
    main()
