"""Fuzzer of port 5567, a separate process that reads orders from stdin.

    python -m tests.nightly.broker_fuzz tcp://127.0.0.1:5567 SEED

One order a line: ``{"frames": N, "rate": R}``, R frames a second, 0 for full speed. The answer, one line of
JSON, comes when they are sent: how many of which kind. A mutant that came out sound may be given a job: it is rejected.
"""

from __future__ import annotations

import json
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from random import Random
from typing import Any

import zmq
from google.protobuf.message import Message

from dexorder_common.messaging.frames import VERSION, WorkFrame, decode_work, encode_work
from dexorder_protos.dexorder.ingest.v1 import ingest_pb2 as pb
from tests.nightly.message_fuzz import changed, mutated

BATCH_SECONDS = 0.01
PEERS = 8
FLOOD = 50
MOST_BYTES = 60_000
ZMTP_GREETING = b"\xff\0\0\0\0\0\0\0\x01\x7f\x03\0NULL" + bytes(48)
ZMTP_READY = b"\x04\x26\x05READY\x0bSocket-Type\0\0\0\x06DEALER"
SENT: list[WorkFrame] = [
    pb.WorkerReady(exchanges=["SIM"], job_type=pb.REALTIME),
    pb.WorkComplete(job_id="0" * 32, success=True),
    pb.WorkComplete(job_id="0" * 32, success=False, error_message="why"),
    pb.WorkHeartbeat(job_id="0" * 32),
    pb.WorkReject(job_id="0" * 32, reason="why"),
    pb.DataRequest(request_id="r", job_id="0" * 32, ticker="BTC/USDT.SIM"),
    pb.WorkStop(job_id="0" * 32),
]


class Fuzzer:
    """Peers, each a DEALER, that send random frames."""

    def __init__(self, address: str, seed: int) -> None:
        self.address = address
        self.random = Random(seed)
        self.context = zmq.Context()
        self.peers = [self.peer(b"fuzz-%d" % number) for number in range(PEERS)]
        self.sent: Counter[str] = Counter()
        # kind, share in a thousand; what floods sends many frames each time
        self.kinds: list[tuple[Callable[[], str], int]] = [
            (self.mutant, 430),
            (self.version, 80),
            (self.type, 80),
            (self.foreign_job, 180),
            (self.many_parts, 60),
            (self.empty_parts, 50),
            (self.garbage, 70),
            (self.oversized, 8),
            (self.raw, 30),
            (self.churn, 8),
            (self.flood, 4),
        ]

    def peer(self, identity: bytes | None = None) -> zmq.Socket[bytes]:
        made = self.context.socket(zmq.DEALER)
        for option, value in ((zmq.LINGER, 0), (zmq.SNDTIMEO, 20_000), (zmq.RECONNECT_IVL, 10)):
            made.setsockopt(option, value)
        if identity is not None:
            made.setsockopt(zmq.IDENTITY, identity)
        made.connect(self.address)
        return made

    def take_orders(self) -> None:
        """Execute and answer the orders on stdin, until its end."""
        for line in sys.stdin:
            print(json.dumps(self.run(**json.loads(line))), flush=True)
        for peer in self.peers:
            peer.close()
        self.context.term()

    def run(self, frames: int, rate: float) -> Counter[str]:
        """Send a number of frames; return the numbers by kind."""
        self.sent = Counter()
        kinds, weights = zip(*self.kinds, strict=True)
        started_s = time.monotonic()
        while self.sent.total() < frames:
            kind: Callable[[], str] = self.random.choices(kinds, weights)[0]
            self.sent[kind()] += 1
            ahead_s = self.sent.total() / rate - (time.monotonic() - started_s) if rate else 0.0
            if ahead_s > BATCH_SECONDS:
                self.reject_jobs()
                time.sleep(ahead_s)
        self.reject_jobs()
        return self.sent

    def reject_jobs(self) -> None:
        for peer in self.peers:
            while peer.poll(0):
                message: Any = decode_work(peer.recv_multipart())
                peer.send_multipart(encode_work(pb.WorkReject(job_id=message.job_id, reason="a mutant got it")))
                self.sent["jobs caught and rejected"] += 1

    def send(self, *frames: bytes) -> None:
        self.random.choice(self.peers).send_multipart(frames)

    def mutant(self) -> str:
        sound = self.random.choice(SENT)
        version, body = encode_work(sound)
        self.send(version, body[:1] + self.changed(sound))
        return "mutated"

    def changed(self, message: Message) -> bytes:
        """Return a changed message that fits into a frame; larger ones are another kind."""
        while len(body := changed(message, self.random)) > MOST_BYTES:
            pass
        return body

    def version(self) -> str:
        self.send(self.random.randbytes(self.random.randint(0, 4)), encode_work(self.random.choice(SENT))[1])
        return "wrong version"

    def type(self) -> str:
        self.send(VERSION, bytes([self.random.choice([0, 1, 31, 38, 255])]) + self.random.randbytes(20))
        return "unknown type"

    def foreign_job(self) -> str:
        kind = self.random.choice([pb.WorkComplete, pb.WorkHeartbeat, pb.WorkReject])
        self.send(*encode_work(kind(job_id=self.random.randbytes(16).hex())))
        return "foreign job_id"

    def many_parts(self) -> str:
        self.send(*(self.random.randbytes(3) for _ in range(self.random.choice([3, 10, 300]))))
        return "many parts"

    def empty_parts(self) -> str:
        self.send(*[b""] * self.random.randint(1, 5))
        return "empty parts"

    def garbage(self) -> str:
        self.send(*(self.random.randbytes(self.random.randint(0, 2_000)) for _ in range(self.random.randint(1, 3))))
        return "garbage"

    def oversized(self) -> str:
        with self.peer() as peer:  # it costs the connection
            peer.setsockopt(zmq.LINGER, 1_000)
            peer.send_multipart([VERSION, b"\x20" + bytes(self.random.choice([65_536, 300_000]))])
        return "oversized"

    def churn(self) -> str:
        """Connect under an identity that is in use; its former owner is no longer read, so it leaves."""
        at = self.random.randrange(len(self.peers))
        old, self.peers[at] = self.peers[at], self.peer(self.peers[at].getsockopt(zmq.IDENTITY))  # type: ignore[arg-type]
        self.peers[at].send_multipart(encode_work(SENT[0]))
        time.sleep(BATCH_SECONDS)
        old.close()
        return "peers under a used identity"

    def flood(self) -> str:
        """Send valid offers of slots for which there is no job, up to the limit of an ingestor."""
        offers: list[WorkFrame] = [
            SENT[0],
            pb.WorkerReady(exchanges=["MOON"]),
            pb.WorkerReady(exchanges=["SIM", "SIM"]),
        ]
        for _ in range(FLOOD - 1):
            self.send(*encode_work(self.random.choice(offers)))
            self.sent["flood of offers"] += 1
        self.send(*encode_work(SENT[0]))
        return "flood of offers"

    def raw(self) -> str:
        """Send bytes over TCP that are not ZMTP, or stop being ZMTP."""
        host, port = self.address.removeprefix("tcp://").split(":")
        junk = self.random.choice(
            [
                b"GET / HTTP/1.1\r\n\r\n",
                self.random.randbytes(self.random.randint(1, 500)),
                ZMTP_GREETING[:30],
                b"\x01\x00\x03abc" * 50,
                ZMTP_GREETING + self.random.randbytes(60),
                ZMTP_GREETING + ZMTP_READY + b"\x04\xff",
                ZMTP_GREETING + ZMTP_READY + b"\x02" + b"\x7f" + b"\xff" * 7,  # a frame of 2**63 - 1 bytes
                ZMTP_GREETING + ZMTP_READY + mutated(b"\x01\x01\x01\x00\x0a" + bytes(10), self.random),
            ]
        )
        with suppress(OSError), socket.create_connection((host, int(port)), timeout=20) as made:
            made.sendall(junk)
        return "raw TCP"


if __name__ == "__main__":
    Fuzzer(sys.argv[1], int(sys.argv[2])).take_orders()
