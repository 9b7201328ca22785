"""Rules that a dataplane relies on between its handshakes and its end; one udsource and one topic for all tests."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest
from confluent_kafka import Producer

from tests.conformance.numaflow.vertex import Udsource
from tests.peers.numaflow_reader import NumaflowReader, Place, Record, Refused
from tests.rig.kafka import create_topic
from tests.rig.processes import until

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(900)]
PARTITIONS = 2
LARGE_BYTES = 12 * 1024 * 1024
"""More than the 4 MiB that gRPC takes by default, less than the test's broker takes."""
LARGEST_BYTES = 63 * 1024 * 1024


@dataclass
class Vertex:
    """The source, a dataplane connected to it, and a producer of numbered records."""

    udsource: Udsource
    reader: NumaflowReader
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def write(self, count: int, *, partition: int | None = None) -> set[bytes]:
        """Produce ``count`` records, alternating between all partitions or to one; return their payloads."""
        producer = Producer({"bootstrap.servers": self.udsource.kafka, "log_level": 2})
        payloads = [b"%d" % number for number in itertools.islice(self._numbers, count)]
        for index, payload in enumerate(payloads):
            place = index % PARTITIONS if partition is None else partition
            producer.produce(self.udsource.topic, payload, key=b"k", headers=[("h", b"v")], partition=place)
        assert producer.flush(60) == 0
        return set(payloads)


@pytest.fixture(scope="module")
def shared(kafka: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Vertex]:
    topic = create_topic(kafka, PARTITIONS, config={"max.message.bytes": str(2 * LARGE_BYTES)})
    folder = tmp_path_factory.mktemp("vertex")
    with Udsource(folder / "run", folder / "log", kafka=kafka, topic=topic) as udsource:
        yield Vertex(udsource, udsource.connect())


@pytest.fixture
def vertex(shared: Vertex) -> Vertex:
    """Return the vertex with new streams and nothing left to read."""
    shared.reader.open()
    shared.reader.drain()
    return shared


def payloads(records: list[Record]) -> set[bytes]:
    assert len({record.payload for record in records}) == len(records), "a record came twice"
    return {record.payload for record in records}


def test_batch_has_at_most_the_requested_records_and_ends_with_eot(vertex: Vertex) -> None:
    written = vertex.write(25)
    found: list[Record] = []
    while len(found) < 25:
        batch = vertex.reader.read(10)
        assert len(batch.records) <= 10
        assert (batch.code, batch.error, batch.msg) == ("SUCCESS", None, "")
        found += batch.records
    assert payloads(found) == written
    assert all((record.keys, record.headers) == (["k"], {"h": "v"}) for record in found)
    assert all(record.event_time_ms > 1_700_000_000_000 for record in found)


def test_batch_without_records_is_an_eot_alone(vertex: Vertex) -> None:
    batch = vertex.reader.read(10, 50)
    assert (batch.records, batch.code, batch.error) == ([], "SUCCESS", None)


def test_batch_of_acks_has_one_answer_and_is_committed(vertex: Vertex) -> None:
    vertex.write(40)
    found = vertex.reader.collect(40)
    vertex.reader.ack(record.place for record in found)
    assert vertex.reader.pending() == 0
    ends = [
        max(record.offset for record in found if record.partition == partition) + 1 for partition in range(PARTITIONS)
    ]
    until(lambda: [vertex.udsource.committed(partition) for partition in range(PARTITIONS)] == ends)


def test_acks_out_of_order_across_batches_commit_the_prefix_only(vertex: Vertex) -> None:
    vertex.write(30, partition=0)
    first, second, third = ([r.place for r in vertex.reader.collect(10)] for _ in range(3))
    base = first[0][1]
    vertex.reader.ack(third)
    vertex.reader.ack(reversed(second))
    assert vertex.reader.read(10, 50).records == []  # what the acks had to commit is behind it
    assert (vertex.udsource.committed() or 0) <= base
    assert vertex.reader.pending() == 10
    vertex.reader.ack(first)
    until(lambda: vertex.udsource.committed() == base + 30)


def test_read_does_not_wait_for_acks_and_delivers_no_duplicates(vertex: Vertex) -> None:
    found: set[bytes] = set()
    for _ in range(3):
        written = vertex.write(20)
        new = payloads(vertex.reader.collect(20))
        assert new == written
        found |= new
    assert vertex.reader.read(100, 300).records == []  # the first copies may still be acked
    vertex.reader.open(read=True, ack=False)
    assert payloads(vertex.reader.collect(60)) == found


@pytest.mark.parametrize("each", [False, True], ids=["one request", "a request for each offset"])
def test_only_nacked_records_are_redelivered(vertex: Vertex, each: bool) -> None:
    vertex.write(20)
    places = [record.place for record in vertex.reader.collect(20)]
    back, kept = set(places[3:17:2]), [p for p in places if p not in places[3:17:2]]
    vertex.reader.nack(back, each=each)
    again = [record.place for record in vertex.reader.collect(len(back))]
    assert set(again) == back and len(again) == len(back)
    assert vertex.reader.read(10, 300).records == []
    vertex.reader.ack([*kept, *again])
    assert vertex.reader.pending() == 0


def test_pending_counts_records_not_acked(vertex: Vertex) -> None:
    vertex.write(12)
    until(lambda: vertex.reader.pending() == 12)
    places = [record.place for record in vertex.reader.collect(12)]
    assert vertex.reader.pending() == 12
    vertex.reader.ack(places[2:7])
    assert vertex.reader.pending() == 7
    vertex.reader.nack(places[:2])
    assert vertex.reader.pending() == 7
    vertex.reader.ack([*places[:2], *places[7:]])
    assert vertex.reader.pending() == 0


def test_partitions_are_those_served(vertex: Vertex) -> None:
    def served() -> tuple[list[int], int]:
        vertex.reader.read(1, 50)  # the group is joined by reading
        return vertex.reader.partitions()

    until(lambda: served() == (list(range(PARTITIONS)), PARTITIONS))


def test_messages_are_large_both_ways(vertex: Vertex) -> None:
    producer = Producer({"bootstrap.servers": vertex.udsource.kafka, "message.max.bytes": 2 * LARGE_BYTES})
    producer.produce(vertex.udsource.topic, bytes(LARGE_BYTES), partition=0)
    assert producer.flush(60) == 0
    (record,) = vertex.reader.collect(1)
    assert len(record.payload) == LARGE_BYTES
    vertex.reader.ack([record.place], pad_bytes=LARGEST_BYTES)
    assert vertex.reader.pending() == 0


def never_handed_out(places: list[Place]) -> list[Place]:
    return [(0, max(offset for partition, offset in places if partition == 0) + 1), (PARTITIONS, 0)]


@pytest.mark.parametrize("which", [0, 1], ids=["offset", "partition"])
def test_ack_of_an_offset_never_issued_is_refused_and_changes_nothing(vertex: Vertex, which: int) -> None:
    vertex.write(10, partition=0)
    places = [record.place for record in vertex.reader.collect(10)]
    partition, offset = never_handed_out(places)[which]
    answers: list[Callable[[list[Place]], None]] = [vertex.reader.ack, vertex.reader.nack]
    for answer in answers:
        with pytest.raises(Refused, match=f"offset {offset} of partition {partition}, which was never") as caught:
            answer([*places, (partition, offset)])
        assert caught.value.code == "INVALID_ARGUMENT"
    until(lambda: vertex.reader.pending() == 10)  # an answer is remembered for a moment
    vertex.reader.open(read=False)
    vertex.reader.ack(places)
    assert vertex.reader.pending() == 0


def test_newest_reader_has_the_records(vertex: Vertex) -> None:
    written = vertex.write(10)
    places = [record.place for record in vertex.reader.collect(10)]
    newer = vertex.udsource.connect()
    assert payloads(newer.collect(10)) == written
    with pytest.raises(Refused, match="owns the records now") as caught:
        vertex.reader.read(10)
    assert caught.value.code == "FAILED_PRECONDITION"
    vertex.reader.ack(places)  # of the first copies, which spares the second ones their acks
    assert newer.pending() == 0
    newer.ack(places)


def vanish_in_read(reader: NumaflowReader) -> list[Record]:
    reader.vanish_in_read(1_000, after=100)
    return []


def vanish_between(reader: NumaflowReader) -> list[Record]:
    reader.collect(500)
    reader.vanish()
    return []


def vanish_in_ack(reader: NumaflowReader) -> list[Record]:
    some = reader.collect(500)[::2]
    reader.vanish_in_ack(record.place for record in some)
    return some


@pytest.mark.parametrize("vanish", [vanish_in_read, vanish_between, vanish_in_ack])
def test_reader_that_vanishes_loses_nothing(vertex: Vertex, vanish: Callable[[NumaflowReader], list[Record]]) -> None:
    written = vertex.write(1_000)
    maybe_acked = vanish(vertex.udsource.connect())  # what it acked at its end counts or comes again
    vertex.reader.open()
    found = vertex.reader.drain()
    assert written - payloads(found) <= payloads(maybe_acked)
    places = {record.place for record in [*found, *maybe_acked]}
    assert len(places) == 1_000
    ends = [max(offset for number, offset in places if number == partition) + 1 for partition in range(PARTITIONS)]
    until(lambda: [vertex.udsource.committed(partition) for partition in range(PARTITIONS)] == ends)
