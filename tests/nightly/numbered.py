"""Numbered records that threads write, read and ack through gateways; the whole set is compared at the end."""

from __future__ import annotations

import itertools
import math
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import grpc
from confluent_kafka import KafkaError, Producer

from dexorder_common.rpc.client_retry import Failure, is_failure
from dexorder_protos.kafkapixy import kafkapixy_pb2 as pb
from tests.gateway_thread import GatewayUser
from tests.nightly.runner import Loop
from tests.seeds import seeded

COMMIT_MS = 200
"""The gateways' offsets_commit_interval_ms."""
COMMIT_SLACK_S = 3.0
"""Time after the interval at which an ack may still not be in Kafka, on a busy machine."""
BEHIND = 30
"""Limit of records of a partition that are written but not yet read, so that the load follows the machine."""
CALL_SECONDS = 120.0
_GOING = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED}
"""The gateway or Kafka is stopping or starting, or the test has closed the connection."""


def is_going(error: grpc.RpcError) -> bool:
    """Return whether a gateway or Kafka goes or comes, or a proxy between this caller and the gateway does."""
    late = error.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    return error.code() in _GOING or (is_failure(error, Failure.UNANSWERED) and not late)


Place = tuple[int, int]
"""Partition and offset."""


@dataclass(frozen=True)
class NoCommits:
    """A time in which a gateway could not commit, as it or Kafka was dead.

    Attributes:
        committed: Returns whether a record was committed as acked before; always False if that is not known.
    """

    since_s: float
    until_s: float = math.inf
    committed: Callable[[Place], bool] = lambda _: False

    def may_lose(self, read: Read) -> bool:
        """Return whether the record's ack may have been too late."""
        in_time_s = self.since_s - COMMIT_MS / 1_000 - COMMIT_SLACK_S
        return in_time_s < read.acked_s < self.until_s + COMMIT_SLACK_S and not self.committed(read.place)


@dataclass
class Read:
    """One read of a record; ``acked_s`` is the time at which its ack was answered with OK.

    The record was sent at some time between ``since_s``, when it was asked for, and ``at_s``.
    """

    gateway: GatewayUser
    place: Place
    since_s: float
    at_s: float
    acked_s: float = math.inf


@dataclass
class Repeats:
    """Second and further reads, by the fate of the earlier ones."""

    unacked: int = 0
    acked_too_late: int = 0
    """Acked, but the gateway was killed, or Kafka unavailable, before the commit."""
    wrong: list[int] = field(default_factory=list)
    """Numbers that were acked and committed, and were delivered again nevertheless."""


class Ledger:
    """Fate of each number. All methods are thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.written: set[int] = set()
        """Numbers that were acknowledged as written."""
        self.reads: defaultdict[int, list[Read]] = defaultdict(list)
        self.unexpected: Counter[str] = Counter()
        """Answers that no caller should get."""
        self._acked: set[int] = set()
        self._uncertain: set[int] = set()
        """Numbers with an ack that may have arrived, though its answer did not."""
        self._places: defaultdict[int, set[Place]] = defaultdict(set)
        self._behind: Counter[int] = Counter()
        self._count: Counter[GatewayUser] = Counter()
        self._no_commits: defaultdict[GatewayUser, list[NoCommits]] = defaultdict(list)

    def write(self, number: int, partition: int) -> None:
        """Record that the number was acknowledged; a negative partition is unknown."""
        with self._lock:
            self.written.add(number)
            if number not in self.reads:
                self._behind[partition] += 1

    def read(self, number: int, answer: pb.ConsRs, gateway: GatewayUser, since_s: float) -> Read:
        """Record that a reader received the number."""
        with self._lock:
            if number in self.written and number not in self.reads:
                self._behind[answer.partition] -= 1
            read = Read(gateway, (answer.partition, answer.offset), since_s, time.monotonic())
            self.reads[number].append(read)
            self._places[number].add(read.place)
            self._count[gateway] += 1
            return read

    def ack(self, number: int, read: Read) -> None:
        """Record that an ack was answered with OK."""
        with self._lock:
            read.acked_s = time.monotonic()
            self._acked.add(number)

    def ack_is_uncertain(self, number: int) -> None:
        """Record that the answer to an ack was lost: the record is delivered again, or it was committed."""
        with self._lock:
            self._uncertain.add(number)

    def no_commits(self, gateway: GatewayUser, when: NoCommits) -> None:
        """Record that the gateway could not commit for a time."""
        self._no_commits[gateway].append(when)

    def behind(self, partition: int) -> int:
        """Return the number of records of the partition that are written but not yet read."""
        return self._behind[partition]

    def count(self, gateway: GatewayUser) -> int:
        """Return the number of records read from the gateway so far."""
        return self._count[gateway]

    def all_acked(self) -> bool:
        """Return whether every written number is acked, as far as its readers know; Kafka's commits show the rest."""
        with self._lock:
            return self.written <= self._acked | self._uncertain

    def unacked(self) -> dict[int, list[Read]]:
        """Return the numbers that were never acked with an answer, with their reads."""
        with self._lock:
            return {number: self.reads.get(number, []) for number in sorted(self.written - self._acked)}

    def skipped(self) -> list[int]:
        """Return the numbers that were written and never read."""
        return sorted(self.written - self.reads.keys())

    def doubled(self) -> list[int]:
        """Return the numbers that Kafka has more than once."""
        return sorted(number for number, places in self._places.items() if len(places) > 1)

    def repeats(self) -> Repeats:
        """Return second and further reads."""
        seen = Repeats()
        for number, reads in self.reads.items():
            for index, again in enumerate(reads[1:], 1):
                acked = [read for read in reads[:index] if read.acked_s < again.since_s]
                if not acked:
                    seen.unacked += 1
                elif all(map(self._was_too_late, acked)):
                    seen.acked_too_late += 1
                else:
                    seen.wrong.append(number)
        return seen

    def _was_too_late(self, read: Read) -> bool:
        return any(when.may_lose(read) for when in self._no_commits[read.gateway])

    def fail_if_wrong(self) -> None:
        """Fail on skipped or duplicate numbers, repeated reads after an ack in time, and unexpected answers."""
        assert self.written, "nothing was written"
        skipped = self.skipped()
        assert not skipped, f"{len(skipped)} skipped: {skipped[:20]}"
        assert not self.doubled(), f"duplicate in Kafka: {self.doubled()[:20]}"
        wrong = self.repeats().wrong
        assert not wrong, f"read again after an ack: {[(n, self.reads[n]) for n in wrong[:5]]}"
        assert not self.unexpected, self.unexpected


class Reader(Loop):
    """One caller of one gateway that acks each record some records later, in random order."""

    HOLDS = 4

    def __init__(self, gateway: GatewayUser, topic: str, ledger: Ledger) -> None:
        super().__init__()
        self._gateway = gateway
        self._ledger = ledger
        self._topic = topic
        self._request = pb.ConsNAckRq(topic=topic, group=topic, no_ack=True)
        self._held: list[tuple[pb.ConsRs, Read]] = []
        self._chance = seeded("order of acks")

    def step(self) -> None:
        since_s = time.monotonic()
        try:
            answer = self._gateway.stub.ConsumeNAck(self._request, timeout=CALL_SECONDS)
        except grpc.RpcError as error:
            self.last()  # no records, or the gateway stops and waits for these acks
            if is_going(error):
                self.pause()
            elif error.code() != grpc.StatusCode.NOT_FOUND:
                self._ledger.unexpected[f"ConsumeNAck: {error.code()} {error.details()}"] += 1
            return
        self._held.append((answer, self._ledger.read(int(answer.message), answer, self._gateway, since_s)))
        if len(self._held) > self.HOLDS:
            self._ack_one()

    def last(self) -> None:
        while self._held:
            self._ack_one()

    def _ack_one(self) -> None:
        answer, read = self._held.pop(self._chance.randrange(len(self._held)))
        place = pb.AckRq(topic=self._topic, group=self._topic, partition=answer.partition, offset=answer.offset)
        try:
            self._gateway.stub.Ack(place, timeout=CALL_SECONDS)
        except grpc.RpcError as error:
            # INTERNAL: the partition went to another gateway, which delivers the record again.
            if is_going(error):
                self._ledger.ack_is_uncertain(int(answer.message))
            elif error.code() != grpc.StatusCode.INTERNAL:
                self._ledger.unexpected[f"Ack: {error.code()} {error.details()}"] += 1
            return
        self._ledger.ack(int(answer.message), read)


class KafkaWriter(Loop):
    """Writer of numbers directly to Kafka, to each partition as fast as it is read."""

    def __init__(self, kafka: str, topic: str, partitions: int, ledger: Ledger) -> None:
        super().__init__()
        self._producer = Producer({"bootstrap.servers": kafka, "linger.ms": 0, "log_level": 2})
        self._topic = topic
        self._partitions = range(partitions)
        self._ledger = ledger
        self._numbers = itertools.count()

    def step(self) -> None:
        for partition in self._partitions:
            if self._ledger.behind(partition) < BEHIND:
                number = next(self._numbers)
                report = partial(self._report, number)
                self._producer.produce(self._topic, b"%d" % number, partition=partition, on_delivery=report)
        self._producer.poll(0)
        self.pause()

    def last(self) -> None:
        assert self._producer.flush(CALL_SECONDS) == 0

    def _report(self, number: int, error: KafkaError | None, message: Any) -> None:
        if error is None:
            self._ledger.write(number, message.partition())
        else:
            self._ledger.unexpected[f"the test's own producer: {error.str()}"] += 1


class PixyWriter(Loop):
    """Writer of numbers through one gateway, as one caller.

    Args:
        numbers: Source of numbers, shared by all writers of a ledger.
    """

    REFUSALS = frozenset({grpc.StatusCode.RESOURCE_EXHAUSTED})
    """Statuses with which a record may be refused."""

    def __init__(
        self, gateway: GatewayUser, topic: str, ledger: Ledger, numbers: Callable[[], int], *, async_mode: bool
    ) -> None:
        super().__init__()
        self._gateway = gateway
        self._topic = topic
        self._ledger = ledger
        self._numbers = numbers
        self.async_mode = async_mode
        self.accepted: list[int] = []
        self.refused = 0

    def step(self) -> None:
        if len(self._ledger.written) - len(self._ledger.reads) > 5 * BEHIND:
            self.pause()
            return
        number = self._numbers()
        request = pb.ProdRq(topic=self._topic, key_undefined=True, message=b"%d" % number, async_mode=self.async_mode)
        try:
            answer = self._gateway.stub.Produce(request, timeout=CALL_SECONDS)
        except grpc.RpcError as error:
            self.refused += 1
            if not is_going(error) and error.code() not in self.REFUSALS:
                self._ledger.unexpected[f"Produce: {error.code()} {error.details()}"] += 1
            self.pause()
            return
        self.accepted.append(number)
        self._ledger.write(number, answer.partition)
