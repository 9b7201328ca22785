"""Numbered records through plain reads of source.v1, with `kill -9` of udsource between read and ack.

The records after a kill are known in advance: all that the group has not committed, each once. The committed records of
a partition are its first ones, up to the first that is not acked.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Self

from dexorder_protos.source.v1 import source_pb2 as pb
from tests.integration.services.udsource.client import Acker, Reader, SourceClient, offset_of
from tests.nightly.topic_log import TopicLog
from tests.rig.processes import ServiceProcess

PARTITIONS, RECORDS = 4, 200
"""Partitions of the topic; records written in each life of udsource."""
PATIENCE_SECONDS = 300.0
_GROUP = "plain"
_MAX_READ, _MAX_ACKED = 50, 7
"""Records that one request reads, and acks."""

Place = tuple[int, int]
"""Partition and offset."""


class PlainReads:
    """One reader of one topic, over many lives of udsource; a context manager.

    Attributes:
        written: Records in the topic.
        unacked: Records read again that were never acked.
        uncommitted: Records read again that were acked but not committed when udsource was killed.
    """

    def __init__(self, kafka: str, folder: Path) -> None:
        self.written = self.unacked = self.uncommitted = 0
        self._kafka = kafka
        self._folder = folder
        self._topic = TopicLog(kafka, PARTITIONS)
        self._read: set[Place] = set()
        self._acked: set[Place] = set()
        self._lives = itertools.count()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._topic.__exit__()

    async def live_and_die(self, *, commits: bool) -> None:
        """Start udsource, read all due records, ack some in any order, and kill it.

        Args:
            commits: Wait before the kill until Kafka has the commits that follow from the acks.
        """
        async with self._life() as (process, reader, acker):
            due = await self._read_what_is_due(reader)
            await self._ack(acker, some_of(due))
            if commits:
                await self._until_committed(process)
            process.kill()
        committed, acked = self._topic.committed(_GROUP), self._first_unacked()
        early = {p: offset for p, offset in committed.items() if offset > acked[p]}
        assert not early, f"committed without an ack: {early}, {acked}"

    async def live_and_end(self) -> None:
        """Start udsource a last time, ack everything, and check that nothing is left."""
        async with self._life() as (process, reader, acker):
            await self._ack(acker, await self._read_what_is_due(reader))
            await self._until_committed(process)
            assert self._topic.committed(_GROUP) == self._topic.ends
            assert process.stop() == 0, process.tail()

    @asynccontextmanager
    async def _life(self) -> AsyncIterator[tuple[ServiceProcess, Reader, Acker]]:
        settings = {
            "LISTEN": "127.0.0.1:0",
            "METRICS_LISTEN": "",
            "SOCKET": "",
            "KAFKA": self._kafka,
            "TOPIC": self._topic.name,
            "GROUP": _GROUP,
        }
        environment = {f"DEXORDER_UDSOURCE_{name}": value for name, value in settings.items()}
        folder = self._folder / f"plain-{next(self._lives)}"
        with ServiceProcess("dexorder_udsource", folder, environment) as process:
            client = SourceClient(process.listens_at)
            async with client.channel, asyncio.timeout(PATIENCE_SECONDS):
                yield process, await client.read(), await client.ack()

    async def _read_what_is_due(self, reader: Reader) -> list[Place]:
        """Write more records, then read all that are not committed, in the order of each partition."""
        numbers = range(self.written, self.written + RECORDS)
        self._topic.write((n % PARTITIONS, "", b"%d" % n, {}) for n in numbers)
        self.written += RECORDS
        committed = self._topic.committed(_GROUP)
        ends = sorted(self._topic.ends.items())
        due = [(p, offset) for p, end in ends for offset in range(committed.get(p, 0), end)]
        found = await reader.collect(len(due), most=_MAX_READ)
        places = list(map(offset_of, found))
        in_order = sorted(places, key=lambda place: place[0])  # keeps the order of each partition
        assert in_order == due, "a record is missing, out of order, or needlessly repeated"
        assert [number_of(record) for record in found] == [offset * PARTITIONS + p for p, offset in places]
        again = self._read.intersection(due)
        self.uncommitted += len(again & self._acked)
        self.unacked += len(again - self._acked)
        self._acked -= again  # a record that is read again must be acked again
        self._read.update(due)
        return due

    async def _ack(self, acker: Acker, places: list[Place]) -> None:
        for first in range(0, len(places), _MAX_ACKED):
            await acker.ack(*places[first : first + _MAX_ACKED])
        self._acked.update(places)

    async def _until_committed(self, process: ServiceProcess) -> None:
        wanted = self._first_unacked()

        def committed() -> dict[int, int]:
            return dict.fromkeys(wanted, 0) | self._topic.committed(_GROUP)

        await poll(lambda: committed() == wanted, lambda: f"{committed()} is not {wanted}\n{process.tail()}")

    def _first_unacked(self) -> dict[int, int]:
        """Partition -> its first record that was never acked."""
        return {
            p: next(offset for offset in itertools.count() if (p, offset) not in self._acked) for p in self._topic.ends
        }


def some_of(due: list[Place]) -> list[Place]:
    """Of each partition the first ones, and some of those behind the first that is left out; shuffled."""
    chosen: list[Place] = []
    for _, each in itertools.groupby(due, key=lambda place: place[0]):
        places = list(each)
        hole = random.randrange(len(places))
        chosen += places[:hole] + [place for place in places[hole + 1 :] if random.random() < 0.5]
    random.shuffle(chosen)
    return chosen


def number_of(record: pb.ReadResponse) -> int:
    return int(record.result.payload)


async def poll(condition: Callable[[], bool], explain: Callable[[], str]) -> None:
    """Until it is true."""
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not condition():  # noqa: ASYNC110 - Kafka tells nobody
                await asyncio.sleep(0.1)
    except TimeoutError:
        raise AssertionError(explain()) from None
