"""SIGTERM: no new records are issued, acks and nacks still count, and the last of them ends the drain."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.conformance.numaflow.vertex import StartUdsource
from tests.integration.services.udsource.client import produce
from tests.rig.processes import until

pytestmark = [pytest.mark.smoke, pytest.mark.kafka, pytest.mark.timeout(600)]
MakeTopic = Callable[[int], str]


def test_acks_and_nacks_count_while_it_stops(start_udsource: StartUdsource, kafka: str, kafka_topic: MakeTopic) -> None:
    topic = kafka_topic(1)
    produce(kafka, topic, [(0, b"%d" % number) for number in range(50)])
    udsource = start_udsource(topic, drain_seconds=3_600)
    reader = udsource.connect()
    places = [record.place for record in reader.collect(20)]
    udsource.begin_stop()
    until(lambda: not reader.ready())
    assert reader.read(10, 50).records == []
    assert not udsource.info.exists()  # who connects now waits for the next process
    reader.ack(places[:8])
    reader.ack(places[8:15])
    reader.nack(places[15:])
    assert udsource.ended() == 0
    assert udsource.committed() == 15


def test_stop_waits_for_acks_only_within_the_drain_time(
    start_udsource: StartUdsource, kafka: str, kafka_topic: MakeTopic
) -> None:
    topic = kafka_topic(1)
    produce(kafka, topic, [(0, b"%d" % number) for number in range(20)])
    udsource = start_udsource(topic, drain_seconds=0.5)
    reader = udsource.connect()
    reader.ack([record.place for record in reader.collect(20)][:5])
    assert udsource.stop() == 0
    again = start_udsource(topic).connect()
    assert [record.offset for record in again.collect(15)] == list(range(5, 20))
