"""Numbered records through plain reads of source.v1, with `kill -9` of udsource between read and ack.

What comes after a kill is known beforehand: all that its group has not committed, each record once. And what it has
committed are, of each partition, the first records, as far as all of them were acked.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Self

from services.gen.source.v1 import source_pb2 as pb
from tests.service_process import ServiceProcess
from tests.soak.topic_log import TopicLog
from tests.unit.services.udsource.client import Acker, Reader, SourceClient, offset_of

PARTITIONS, RECORDS = 4, 200
"""Of the topic; records that are written in each life of udsource."""
PATIENCE_SECONDS = 300.0
_GROUP = "plain"
_MOST_READ, _MOST_ACKED = 50, 7
"""Records that one request asks for, and acks."""

Place = tuple[int, int]
"""Partition and offset."""


class PlainReads:
    """One reader of one topic, over many lives of udsource; a context manager.

    Attributes:
        written: Records in the topic.
        unacked: Records that came again, never acked before.
        uncommitted: Records that came again, acked but not committed when udsource was killed.
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
        """One life: read all that is due, ack some of it in any order, and be killed.

        Args:
            commits: Whether the kill waits until Kafka has what follows from the acks.
        """
        async with self._life() as (process, reader, acker):
            due = await self._read_what_is_due(reader)
            await self._ack(acker, some_of(due))
            if commits:
                await self._until_committed(process)
            process.kill()
        committed, acked = self._topic.committed(_GROUP), self._first_unacked()
        early = {p: offset for p, offset in committed.items() if offset > acked[p]}
        assert not early, f"committed beyond what was acked: {early}, {acked}"

    async def live_and_end(self) -> None:
        """The last life: everything is acked, and nothing is left."""
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
        with ServiceProcess("services.udsource", folder, environment) as process:
            client = SourceClient(process.listens_at)
            async with client.channel, asyncio.timeout(PATIENCE_SECONDS):
                yield process, await client.read(), await client.ack()

    async def _read_what_is_due(self, reader: Reader) -> list[Place]:
        """Write some more, then read all that is not committed, which is in the order of each partition."""
        numbers = range(self.written, self.written + RECORDS)
        self._topic.write((n % PARTITIONS, "", b"%d" % n, {}) for n in numbers)
        self.written += RECORDS
        committed = self._topic.committed(_GROUP)
        ends = sorted(self._topic.ends.items())
        due = [(p, offset) for p, end in ends for offset in range(committed.get(p, 0), end)]
        found = await reader.collect(len(due), most=_MOST_READ)
        places = list(map(offset_of, found))
        in_order = sorted(places, key=lambda place: place[0])  # keeps the order of each partition
        assert in_order == due, "something is missing, out of order, or came again without need"
        assert [number_of(record) for record in found] == [offset * PARTITIONS + p for p, offset in places]
        again = self._read.intersection(due)
        self.uncommitted += len(again & self._acked)
        self.unacked += len(again - self._acked)
        self._acked -= again  # whoever reads a record again has to ack it again
        self._read.update(due)
        return due

    async def _ack(self, acker: Acker, places: list[Place]) -> None:
        for first in range(0, len(places), _MOST_ACKED):
            await acker.ack(*places[first : first + _MOST_ACKED])
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
