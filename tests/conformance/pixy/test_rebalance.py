"""Several gateways in one group: every record is delivered, and no acked one again."""

from __future__ import annotations

from pathlib import Path

import grpc
import pytest

from tests.gateway_thread import MakeTopic, StartGateway, Write, numbers, refusal
from tests.nightly.fleet import Fleet

pytestmark = [pytest.mark.smoke, pytest.mark.kafka, pytest.mark.timeout(600)]


@pytest.mark.nightly  # the smoke tests of the gateway do the same at greater length
def test_three_gateways_join_and_leave(kafka: str, tmp_path: Path) -> None:
    with Fleet(kafka, tmp_path) as fleet:
        first, second = fleet.join(), fleet.join()
        third = fleet.join()
        fleet.leave(first)
        second.go_idle()
        fleet.catch_up()
        fleet.activate(second)
        fleet.leave(third)
        fleet.finish()


@pytest.mark.nightly  # the smoke tests of the gateway do the same
def test_one_of_two_is_killed(kafka: str, tmp_path: Path) -> None:
    with Fleet(kafka, tmp_path) as fleet:
        first, _ = fleet.join(), fleet.join()
        fleet.kill(first)
        fleet.finish()


def test_acks_out_of_order_move_with_their_partition(
    start_gateway: StartGateway, kafka_topic: MakeTopic, write: Write
) -> None:
    topic = kafka_topic(2)
    for partition in range(2):
        write(topic, *numbers(6), partition=partition)
    first = start_gateway(ack_timeout_seconds=600)
    found = [first.consume(topic, no_ack=True) for _ in range(12)]
    assert {(answer.partition, answer.offset) for answer in found} == {(p, n) for p in range(2) for n in range(6)}
    for partition in range(2):
        first.ack(topic, 1, 3, partition=partition)
    second = start_gateway(ack_timeout_seconds=600)
    again = [second.consume(topic, no_ack=True) for _ in range(4)]
    assert [answer.offset for answer in again] == [0, 2, 4, 5]
    (moved,) = {answer.partition for answer in again}
    assert refusal(lambda: first.ack(topic, 0, partition=moved))[0] == grpc.StatusCode.INTERNAL
    first.ack(topic, 0, 2, 4, 5, partition=1 - moved)
    second.ack(topic, 0, 2, 4, 5, partition=moved)
    write(topic, *numbers(7)[6:], partition=1 - moved)
    assert first.consume(topic, no_ack=True).offset == 6
