"""Gateways of one group under load: kills, stops, joins, leaves, and a Kafka that is unavailable."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dexorder_protos.kafkapixy import kafkapixy_pb2 as pb
from tests.gateway_process import GatewayProcess
from tests.nightly import gateway_life
from tests.nightly.controlled_kafka import ControlledKafka
from tests.nightly.fleet import Fleet
from tests.rig.kafka import create_topic
from tests.seeds import seeded

pytestmark = [pytest.mark.smoke, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def broker(kafka_jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlledKafka]:
    kafka = ControlledKafka(tmp_path_factory.mktemp("broker"))
    yield kafka
    kafka.thaw()
    kafka.broker.stop()


def test_one_of_two_gateways_is_killed(broker: ControlledKafka, tmp_path: Path) -> None:
    with Fleet(broker.address, tmp_path) as fleet:
        gateway_life.kills(fleet, 1)
        fleet.finish()


def test_gateways_join_and_leave(broker: ControlledKafka, tmp_path: Path) -> None:
    with Fleet(broker.address, tmp_path) as fleet:
        gateway_life.joins_and_leaves(fleet, 5)
        fleet.leave(seeded("who leaves").choice([member for member in fleet.members if member.active]))
        fleet.finish()
        assert fleet.ledger.repeats().acked_too_late == 0, "no gateway was killed"


def test_restarted_gateway_delivers_exactly_the_unacked_records(broker: ControlledKafka, tmp_path: Path) -> None:
    topic = create_topic(broker.address, 4)
    with GatewayProcess(tmp_path / "first", broker.address, drain_seconds=0.5, ack_timeout_seconds=600) as first:
        first.wait_ready()
        for _ in range(80):
            first.stub.Produce(pb.ProdRq(topic=topic, key_undefined=True))
        places = [(answer.partition, answer.offset) for answer in consume(first, topic, 80)]
        assert len(set(places)) == 80
        acked = set(seeded("acked records").sample(places, 48))
        for partition, offset in acked:
            first.ack(topic, offset, partition=partition)
        assert first.stop() == 0
    with GatewayProcess(tmp_path / "second", broker.address, ack_timeout_seconds=600) as second:
        again = [(answer.partition, answer.offset) for answer in consume(second.wait_ready(), topic, 32)]
        assert sorted(again) == sorted(set(places) - acked)


def consume(gateway: GatewayProcess, topic: str, count: int) -> list[pb.ConsRs]:
    return [gateway.consume(topic, no_ack=True) for _ in range(count)]


def test_kafka_is_unavailable_for_ten_seconds(broker: ControlledKafka, tmp_path: Path) -> None:
    patient = Fleet(broker.address, tmp_path, writes=False, subscription_timeout_seconds=60)
    with patient as fleet, gateway_life.writing(fleet) as writers:
        gateway_life.outage(fleet, writers, stop=broker.freeze, start=broker.thaw, seconds=10)
        writers.stop()
        fleet.finish()
