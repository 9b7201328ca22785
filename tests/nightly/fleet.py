"""Gateways of one group under load: they join, leave and are killed, and every record is accounted for."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Self

from confluent_kafka import Consumer, TopicPartition

from dexorder_common.kafka.commits import committed_ranges
from tests.gateway_process import GatewayProcess
from tests.gateway_thread import WAIT_SECONDS
from tests.nightly.numbered import COMMIT_MS, KafkaWriter, Ledger, NoCommits, Place, Reader
from tests.rig.kafka import create_topic
from tests.rig.processes import until

PATIENCE_S = 240.0
SESSION_TIMEOUT_MS = 6_000
"""The minimum that Kafka allows; after it a killed gateway's partitions go to others."""
PARTITIONS = 6
READERS = 2


class Member(GatewayProcess):
    """Gateway of the fleet and its callers."""

    def __init__(self, folder: Path, kafka: str, topic: str, ledger: Ledger, **settings: Any) -> None:
        super().__init__(folder, kafka, **settings)
        self._topic = topic
        self._ledger = ledger
        self._readers: list[Reader] = []

    @property
    def active(self) -> bool:
        """Whether it has callers."""
        return bool(self._readers)

    def start_readers(self) -> None:
        """Start callers that read."""
        self._readers = [Reader(self, self._topic, self._ledger).start() for _ in range(READERS)]

    def stop_readers(self) -> None:
        """Let the callers ack their records and stop."""
        while self._readers:
            self._readers.pop().stop()

    def go_idle(self) -> None:
        """Stop the callers, and wait until the gateway has left the group; ``start_readers`` makes it join again."""
        left = len(self.logged("no requests, leaving the group"))
        self.stop_readers()
        until(lambda: len(self.logged("no requests, leaving the group")) > left, PATIENCE_S, self.tail)

    def leave(self) -> None:
        """Send SIGTERM while callers read; return when the process has ended."""
        self.begin_stop()
        try:
            assert self.process.wait(PATIENCE_S) == 0, self.tail()
        finally:
            self.kill()

    def kill(self) -> None:
        """Send SIGKILL; no effect on a process that has ended."""
        self.process.kill()
        self.process.wait()
        self.stop_readers()
        super().kill()


class Fleet:
    """Topic with a ledger, a writer, and gateways that read; a context manager.

    Args:
        writes: Whether a writer adds numbers to Kafka all the time, without a gateway.
        settings: Settings of every gateway.
    """

    def __init__(self, kafka: str, folder: Path, *, writes: bool = True, **settings: Any) -> None:
        self._kafka = kafka
        self._folder = folder
        self._settings = {
            "session_timeout_ms": SESSION_TIMEOUT_MS,
            "offsets_commit_interval_ms": COMMIT_MS,
            "long_polling_timeout_ms": 500,
            "subscription_timeout_seconds": 1.0,
            "drain_seconds": 60.0,
            **settings,
        }
        self.topic = create_topic(kafka, PARTITIONS)
        self.ledger = Ledger()
        self.members: list[Member] = []
        self._lives = itertools.count()
        self._stack = ExitStack()
        self._writer = KafkaWriter(kafka, self.topic, PARTITIONS, self.ledger) if writes else None

    def __enter__(self) -> Self:
        if self._writer:
            self._stack.enter_context(self._writer)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def start(self) -> Member:
        """Start one more gateway without callers."""
        folder = self._folder / f"gateway-{next(self._lives)}"
        member = Member(folder, self._kafka, self.topic, self.ledger, **self._settings)
        self._stack.callback(member.kill)
        self.members.append(member)
        return member.wait_ready()

    def join(self) -> Member:
        """Start one more gateway with callers; return when it delivers records."""
        member = self.start()
        self.activate(member)
        return member

    def activate(self, member: Member) -> None:
        """Start the callers of a member; return when it delivers records."""
        before = self.ledger.count(member)
        member.start_readers()
        until(lambda: self.ledger.count(member) > before, PATIENCE_S, self.tails)

    def leave(self, member: Member) -> None:
        """Send SIGTERM to a member; return when the others have read all earlier records."""
        self.members.remove(member)
        member.leave()
        self.catch_up()

    def kill(self, member: Member) -> float:
        """Kill a member; return the seconds until the others have read all earlier records."""
        killed_s = time.monotonic()
        member.process.kill()
        committed = self._committed()
        if time.monotonic() - killed_s < SESSION_TIMEOUT_MS / 2_000:  # no other member can have taken over yet
            self.ledger.no_commits(member, NoCommits(killed_s, committed=partial(is_acked, committed)))
        else:
            self.ledger.no_commits(member, NoCommits(killed_s))
        self.members.remove(member)
        member.kill()
        self.catch_up()
        return time.monotonic() - killed_s

    def catch_up(self) -> None:
        """Wait until every record written so far is read."""
        written = set(self.ledger.written)
        until(lambda: written <= self.ledger.reads.keys(), PATIENCE_S, self.tails)

    def wind_up(self) -> None:
        """Read and ack everything, and let all members leave."""
        if self._writer:
            self._writer.stop()
        until(self._all_done, PATIENCE_S, self.tails)
        while self.members:
            self.members.pop().leave()

    def check(self) -> None:
        """Check after ``wind_up``: every record was read, those acked in time only once, and all acks are committed."""
        self.ledger.fail_if_wrong()
        assert self._committed() == self._ends()

    def finish(self) -> None:
        """Wind up and check."""
        self.wind_up()
        self.check()

    def _all_done(self) -> bool:
        """Return whether all written records are acked; or all in Kafka, if some were not written."""
        if self.ledger.all_acked():
            return True
        time.sleep(1.0)
        return self._committed() == self._ends()

    @property
    def names(self) -> list[str]:
        """Names of the members, for `address`."""
        return [member.log_file.parent.name for member in self.members]

    def address(self, part: str) -> str:
        """Return host:port of the member with that name."""
        return self.members[self.names.index(part)].address

    def tails(self) -> str:
        """Return the last log lines of each gateway."""
        return "\n".join(f"== {member.log_file}\n{member.tail()}" for member in self.members)

    def _committed(self) -> list[tuple[int, str]]:
        with_group = self._consumer()
        try:
            found = with_group.committed(self._parts, timeout=WAIT_SECONDS)
            return [(part.offset, part.metadata or "") for part in found]
        finally:
            with_group.close()

    def _ends(self) -> list[tuple[int, str]]:
        consumer = self._consumer()
        try:
            return [(consumer.get_watermark_offsets(part, timeout=WAIT_SECONDS)[1], "") for part in self._parts]
        finally:
            consumer.close()

    def _consumer(self) -> Consumer:
        return Consumer({"bootstrap.servers": self._kafka, "group.id": self.topic, "log_level": 2})

    @property
    def _parts(self) -> list[TopicPartition]:
        return [TopicPartition(self.topic, partition) for partition in range(PARTITIONS)]


def is_acked(committed: Sequence[tuple[int, str]], place: Place) -> bool:
    """Return whether a record is acked by these commits: offset and metadata of each partition."""
    partition, at = place
    offset, metadata = committed[partition]
    return at < offset or any(start <= at < end for start, end in committed_ranges(offset, metadata, end=at + 1))
