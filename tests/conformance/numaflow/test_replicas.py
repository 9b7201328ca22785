"""Several pods of one vertex: Kafka's group assigns the partitions, and those of a killed pod go to the others."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from tests.conformance.numaflow.vertex import StartUdsource
from tests.integration.services.udsource.client import produce
from tests.peers.numaflow_reader import NumaflowReader, Record
from tests.rig.processes import until

pytestmark = [pytest.mark.smoke, pytest.mark.kafka, pytest.mark.timeout(900)]
MakeTopic = Callable[[int], str]
PARTITIONS = 4


class Replica:
    """A dataplane that reads and acks in a thread until it is stopped.

    Attributes:
        acked: Records whose ack was answered.
        partitions: Partitions of its source at the last call.
        failure: The error that ended it before it was stopped.
    """

    def __init__(self, reader: NumaflowReader) -> None:
        self._reader = reader
        self._ending = threading.Event()
        self.acked: list[Record] = []
        self.partitions: list[int] = []
        self.failure: Exception | None = None
        self._thread = threading.Thread(target=self._work)
        self._thread.start()

    def _work(self) -> None:
        try:
            while not self._ending.is_set():
                batch = self._reader.read(50, 100)
                if batch.records:
                    self._reader.ack(batch.places)
                    self.acked += batch.records
                self.partitions = self._reader.partitions()[0]
        except Exception as error:
            self.failure = error

    def end(self) -> None:
        self._ending.set()
        self._thread.join()

    def check(self) -> None:
        assert self.failure is None, self.failure


def test_killed_replica_is_taken_over_and_nothing_is_lost(
    start_udsource: StartUdsource, kafka: str, kafka_topic: MakeTopic
) -> None:
    topic = kafka_topic(PARTITIONS)
    written: set[bytes] = set()

    def write(count: int) -> None:
        fresh = [b"%d" % number for number in range(len(written), len(written) + count)]
        produce(kafka, topic, [(index % PARTITIONS, payload) for index, payload in enumerate(fresh)])
        written.update(fresh)

    write(400)
    sources = [start_udsource(topic, run=name) for name in ("one", "two")]
    replicas = [Replica(source.connect()) for source in sources]
    try:

        def shared() -> bool:
            for replica in replicas:
                replica.check()
            parts = [replica.partitions for replica in replicas]
            return all(parts) and sorted(parts[0] + parts[1]) == list(range(PARTITIONS))

        until(shared, 300)
        write(400)
        until(lambda: all(replica.acked for replica in replicas), 300)
        sources[0].kill()
        write(400)
        until(lambda: replicas[0].failure is not None, 300)
        until(lambda: replicas[1].partitions == list(range(PARTITIONS)), 300)
        until(lambda: {record.payload for replica in replicas for record in replica.acked} == written, 300)
        replicas[1].check()
    finally:
        for replica in replicas:
            replica.end()
    taken_over = sources[1].connect()
    assert taken_over.pending() == 0
    places = [record.place for record in replicas[1].acked]
    assert len(set(places)) == len(places)  # again only what the killed one had not committed, and from the other
    ends = [len(written) // PARTITIONS] * PARTITIONS
    until(lambda: [sources[1].committed(partition) for partition in range(PARTITIONS)] == ends)
