"""A Kafka topic: partitions with offsets, a gateway that produces to it, readers that wait for more.

The log is durable: a record that was appended stays. A producer whose answer is lost sends the record again, under
another offset.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from zlib import crc32

from google.protobuf.message import Message

from dexorder_protos.kafkapixy import kafkapixy_pb2 as pixy_pb
from tests.simulation.disk import Moment
from tests.simulation.loop import SECOND_NS, Process
from tests.simulation.network import Network

PRODUCE = "/KafkaPixy/Produce"


@dataclass(frozen=True)
class Record:
    """One record, as the data source gives it to the pipeline."""

    partition: int
    offset: int
    headers: tuple[tuple[str, str], ...]
    payload: bytes
    appended_ns: int


class Log:
    """All partitions of a topic."""

    def __init__(self, partitions: int) -> None:
        self.partitions: list[list[Record]] = [[] for _ in range(partitions)]
        self._waiting: list[asyncio.Future[None]] = []

    def grow(self) -> None:
        """Add a partition, as an operator does; keys may move to it."""
        self.partitions.append([])

    def append(self, key: bytes, headers: tuple[tuple[str, str], ...], payload: bytes) -> Record:
        """Add a record to the partition of its key."""
        partition = crc32(key) % len(self.partitions)
        now_ns = round(asyncio.get_running_loop().time() * SECOND_NS)
        record = Record(partition, len(self.partitions[partition]), headers, payload, now_ns)
        self.partitions[partition].append(record)
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_result(None)
        self._waiting.clear()
        return record

    def after(self, position: dict[int, int], most: int) -> list[Record]:
        """Return at most ``most`` records of each partition after a position."""
        found = []
        for number, records in enumerate(self.partitions):
            start = position.get(number, 0)
            found += records[start : start + most]
        return found

    async def wait(self, position: dict[int, int]) -> None:
        """Wait until there are records after a position."""
        while all(len(records) <= position.get(number, 0) for number, records in enumerate(self.partitions)):
            more = asyncio.get_running_loop().create_future()
            self._waiting.append(more)
            await more


def serve_gateway(network: Network, process: Process, log: Log, moment: Moment) -> None:
    """Serve the gateway's Produce in a process."""

    async def produce(request: pixy_pb.ProdRq) -> Message:
        await moment(process, "before a record is in Kafka")
        headers = tuple((each.key, each.value.decode()) for each in request.headers)
        record = log.append(request.key_value, headers, request.message)
        await asyncio.sleep(0.002)
        await moment(process, "when a record is in Kafka, before its answer")
        return pixy_pb.ProdRs(partition=record.partition, offset=record.offset)

    network.serve(process, PRODUCE, produce)
