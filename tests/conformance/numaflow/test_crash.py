"""SIGKILL of the source at the worst moments; the process started in its place has the records that were not acked."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.conformance.numaflow.vertex import StartUdsource
from tests.integration.services.udsource.client import produce
from tests.peers.numaflow_reader import Refused
from tests.rig.processes import until

pytestmark = [pytest.mark.smoke, pytest.mark.kafka, pytest.mark.timeout(900)]
MakeTopic = Callable[[int], str]
MANY = 100_000


def test_killed_between_read_and_acks_out_of_order(
    start_udsource: StartUdsource, kafka: str, kafka_topic: MakeTopic
) -> None:
    topic = kafka_topic(1)
    produce(kafka, topic, [(0, b"%d" % number) for number in range(40)])
    udsource = start_udsource(topic)
    reader = udsource.connect()
    batches = [[record.place for record in reader.collect(10)] for _ in range(4)]
    reader.ack(batches[0])
    reader.ack(batches[2])
    until(lambda: udsource.committed() == 10)
    udsource.kill()
    with pytest.raises(Refused) as caught:
        reader.ack(batches[1])
    assert caught.value.code == "UNAVAILABLE"
    again = start_udsource(topic)
    reader = again.connect()
    assert [record.offset for record in reader.drain()] == list(range(10, 40))
    until(lambda: again.committed() == 40)


def test_ack_that_is_repeated_after_a_restart_counts(
    start_udsource: StartUdsource, kafka: str, kafka_topic: MakeTopic
) -> None:
    """Numaflow after 1.8 connects again in the process, repeats its last ack until it is taken, and only then reads.

    Its pod keeps its name, so that the partitions wait for the restarted container: the first read has records, long
    before the session of the killed one ends (10 s).
    """
    topic = kafka_topic(1)
    produce(kafka, topic, [(0, b"%d" % number) for number in range(40)])
    udsource = start_udsource(topic, instance="pod")
    reader = udsource.connect()
    places = [record.place for record in reader.collect(20)]
    reader.ack(places[:5])
    until(lambda: udsource.committed() == 5)
    udsource.kill()
    again = start_udsource(topic, instance="pod")
    reader = again.connect()
    reader.ack(places)
    found = reader.read(1_000, 5_000).records
    assert found
    found += reader.collect(20 - len(found))
    assert [record.offset for record in found] == list(range(20, 40))
    until(lambda: again.committed() == 20)


@pytest.mark.nightly
def test_hundred_thousand_acks_in_one_message(
    start_udsource: StartUdsource, kafka: str, kafka_topic: MakeTopic
) -> None:
    topic = kafka_topic(4)
    produce(kafka, topic, [(number % 4, b"x") for number in range(MANY)])
    udsource = start_udsource(topic)
    reader = udsource.connect()
    places = [record.place for record in reader.collect(MANY, most=5_000)]
    assert len(set(places)) == MANY
    reader.ack(places)
    assert reader.pending() == 0
    until(lambda: [udsource.committed(partition) for partition in range(4)] == [MANY // 4] * 4)
