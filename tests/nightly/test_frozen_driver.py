"""A driver that was frozen for longer than Spark's own timeouts works afterwards, or ends; it never only says so."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.nightly.controlled_kafka import ControlledKafka
from tests.nightly.source_rig import PATIENCE_SECONDS, Rig
from tests.rig.processes import until

FREEZE_SECONDS = float(os.environ.get("DEXORDER_NIGHTLY_FREEZE_SECONDS", "150"))
"""Spark takes an executor without a heartbeat for lost after 120 s by default."""
LATER_SECONDS = 60.0
"""Time after the freeze in which Spark would notice the loss."""
pytestmark = [pytest.mark.nightly, pytest.mark.timeout(FREEZE_SECONDS + 900)]


@pytest.fixture
def rig(kafka_jars: Path, tmp_path: Path) -> Iterator[Rig]:
    kafka = ControlledKafka(tmp_path / "kafka")
    try:
        with Rig(kafka, tmp_path) as running:
            yield running
    finally:
        kafka.broker.stop()


def test_a_frozen_driver_works_afterwards_or_ends(rig: Rig) -> None:
    rig.warm_up()
    rig.produce()
    with rig.frozen_driver():
        time.sleep(FREEZE_SECONDS)
    ended_s = time.monotonic() + LATER_SECONDS
    while time.monotonic() < ended_s:
        if is_serving(rig):
            rig.produce()
            until(lambda: rig.is_settled() or not is_serving(rig), PATIENCE_SECONDS, rig.tails)
        time.sleep(1)
    rig.revive()
    rig.finish().fail_if_wrong()
    assert "Removing executor" not in rig.driver.log_file.read_text(), "it would end minutes later, in any batch"


def is_serving(rig: Rig) -> bool:
    if not rig.driver.lives:
        return False
    with grpc.insecure_channel(rig.driver.listens_at) as channel:
        try:
            stub: Any = health_pb2_grpc.HealthStub(channel)
            answer = stub.Check(health_pb2.HealthCheckRequest(), timeout=10)
        except grpc.RpcError:
            return False
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)
