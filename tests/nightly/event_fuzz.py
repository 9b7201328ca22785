"""Malformed frames on 5570 and 5571, from a separate process that takes orders on stdin.

    python -m tests.nightly.event_fuzz router|sub tcp://127.0.0.1:5571 SEED

One order a line: ``{"frames": N, "rate": R}``, R frames a second, 0 for as fast as it goes. The answer, one line of
JSON, comes when they are sent: how many of which kind. On 5570 the peers speak ZMTP by hand, since a real XPUB sends
nothing that nobody has subscribed to. A mutant that came out sound is an event like others.
"""

from __future__ import annotations

import select
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress

from dexorder_protos.dexorder.events.v1 import user_events_pb2 as pb
from tests.integration.events.container import INFORMATIONAL, USER_EVENT, VERSION, event, topic
from tests.nightly.broker_fuzz import BATCH_SECONDS, FLOOD, PEERS, ZMTP_GREETING, Fuzzer
from tests.nightly.message_fuzz import mutated

FUZZED_USER = "fuzzed"
"""A session of this user is open, so its topic is subscribed to."""
READY = b"\x04\x19\x05READY\x0bSocket-Type\0\0\0\x03PUB"
LIFE_S = 0.8
"""A hand-made peer answers no heartbeat; it reconnects before it is disconnected."""
MORE, LONG = 1, 2


class RouterFuzzer(Fuzzer):
    """Fuzzer of 5571 with DEALERs: `Fuzzer`'s kinds with our own messages."""

    def __init__(self, address: str, seed: int) -> None:
        super().__init__(address, seed)
        self.count = 0
        self.kinds = [
            (self.mutant, 480),
            (self.mutant_payload, 100),
            (self.version, 80),
            (self.type, 80),
            (self.many_parts, 60),
            (self.empty_parts, 50),
            (self.garbage, 80),
            (self.oversized, 8),
            (self.raw, 30),
            (self.churn, 8),
            (self.flood, 4),
        ]

    def reject_jobs(self) -> None:
        """Read answers, or not: some peers never read."""
        for peer in self.peers[: PEERS // 2]:
            while peer.poll(0):
                ack = pb.EventAck.FromString(peer.recv_multipart()[1][1:])
                self.sent[f"answered {pb.AckStatus.Name(ack.status)}"] += 1

    def sound(self) -> bytes:
        """Return a valid event."""
        self.count += 1
        priority, way = self.random.randrange(3), self.random.randrange(7)
        return event(FUZZED_USER, f"f-{self.random.random()}-{self.count}", priority, [way]).SerializeToString()

    def mutant(self) -> str:
        self.send(VERSION, USER_EVENT + self.changed(pb.UserEvent.FromString(self.sound())))
        return "mutated"

    def mutant_payload(self) -> str:
        made = pb.UserEvent.FromString(self.sound())
        made.payload = mutated(made.payload, self.random)
        self.send(VERSION, USER_EVENT + made.SerializeToString())
        return "mutated payload"

    def version(self) -> str:
        self.send(self.random.randbytes(self.random.randint(0, 4)), USER_EVENT + self.sound())
        return "wrong version"

    def type(self) -> str:
        self.send(VERSION, bytes([self.random.choice([0, 1, 31, 33, 255])]) + self.sound())
        return "unknown type"

    def churn(self) -> str:
        """Connect a peer with a routing id that is in use."""
        at = self.random.randrange(len(self.peers))
        old, self.peers[at] = self.peers[at], self.peer(b"fuzz-%d" % at)
        self.peers[at].send_multipart([VERSION, USER_EVENT + self.sound()])
        time.sleep(BATCH_SECONDS)
        old.close()
        return "peers under a used identity"

    def flood(self) -> str:
        """Repeat one event, sometimes with other bytes."""
        same = self.sound()
        for _ in range(FLOOD):
            self.send(VERSION, USER_EVENT + (same if self.random.random() < 0.9 else same + same))
            self.sent["flood of repeats"] += 1
        return "flood of repeats"


class RawPublisher:
    """PUB socket that sends any bytes."""

    def __init__(self, address: str) -> None:
        host, port = address.removeprefix("tcp://").split(":")
        self.until_s = time.monotonic() + LIFE_S
        self.socket = socket.create_connection((host, int(port)), timeout=20)
        self.socket.sendall(ZMTP_GREETING + READY)

    def send(self, *frames: bytes) -> None:
        """Send one message."""
        out = b""
        for number, frame in enumerate(frames):
            more = MORE if number < len(frames) - 1 else 0
            if len(frame) < 256:
                out += bytes([more, len(frame)]) + frame
            else:
                out += bytes([more | LONG]) + len(frame).to_bytes(8, "big") + frame
        if select.select([self.socket], [], [], 0)[0]:  # subscriptions and heartbeats
            self.socket.recv(65_536)
        self.socket.sendall(out)


class SubFuzzer(RouterFuzzer):
    """Fuzzer of 5570 with hand-made PUBs."""

    def __init__(self, address: str, seed: int) -> None:
        super().__init__(address, seed)
        self.raw_peers = [RawPublisher(address) for _ in range(PEERS)]
        kinds: list[tuple[Callable[[], str], int]] = [(self.topic, 100), (self.stranger, 50)]
        self.kinds = [each for each in self.kinds if each[0] not in (self.churn, self.flood)] + kinds

    def reject_jobs(self) -> None:
        """Read nothing: 5570 has no answers."""

    def send(self, *frames: bytes) -> None:
        at = self.random.randrange(len(self.raw_peers))
        try:
            if time.monotonic() > self.raw_peers[at].until_s:
                raise ConnectionResetError
            self.raw_peers[at].send(topic(FUZZED_USER), *frames)
        except OSError:
            self.raw_peers[at].socket.close()
            self.raw_peers[at] = RawPublisher(self.address)
            self.sent["peers that came anew"] += 1

    def topic(self) -> str:
        """Return a topic that resembles the subscribed one, or has its beginning."""
        made = mutated(topic(FUZZED_USER), self.random)
        with suppress(OSError):
            self.random.choice(self.raw_peers).send(made, VERSION, USER_EVENT + self.sound())
        return "mutated topic"

    def stranger(self) -> str:
        """Return a valid event of another user under a subscribed topic."""
        self.send(VERSION, USER_EVENT + event("honest", f"s-{self.random.random()}", INFORMATIONAL).SerializeToString())
        return "another user's event"

    def oversized(self) -> str:
        self.send(VERSION, USER_EVENT + bytes(self.random.choice([65_537, 300_000])))
        return "oversized"


if __name__ == "__main__":
    {"router": RouterFuzzer, "sub": SubFuzzer}[sys.argv[1]](sys.argv[2], int(sys.argv[3])).take_orders()
