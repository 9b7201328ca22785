"""``dexorder up --only gateway`` without a Kafka: user events are served, and KafkaPixy says why it is not."""

from __future__ import annotations

import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from dexorder.supervisor.plan import KAFKA_PIXY, Ports
from dexorder_gateway.events.service import NAMES
from dexorder_protos.kafkapixy import kafkapixy_pb2 as pb
from dexorder_protos.kafkapixy import kafkapixy_pb2_grpc as rpc
from tests.rig.kafka import RunningKafka
from tests.rig.processes import until
from tests.rig.suite import Suite, running_suite

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


@pytest.fixture
def suite(tmp_path: Path) -> Iterator[Suite]:
    environment = {
        "XDG_STATE_HOME": str(tmp_path / "registry"),
        "DEXORDER_PUBLISHER_OUTBOX": str(tmp_path / "outbox.db"),
    }
    with running_suite(tmp_path / "state", "--only", "gateway", **environment) as running:
        yield running


def health(channel: grpc.Channel, service: str) -> int:
    stub: Any = health_pb2_grpc.HealthStub(channel)
    return int(stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=20).status)


def events(suite: Suite, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "dexorder", "events", *arguments, "--gateway", suite.address("gateway")]


def test_it_is_ready_and_serves_user_events_while_kafka_pixy_is_unavailable(suite: Suite) -> None:
    found = suite.status()
    assert found["ready"] and list(found["parts"]) == ["gateway"]
    kafka = f"127.0.0.1:{Ports.from_base(suite.base_port).kafka}"
    assert found["parts"]["gateway"]["detail"].startswith("KafkaPixy is unavailable: Kafka")
    assert f"until a Kafka runs at {kafka}" in (suite.directory / "up.log").read_text()
    with grpc.insecure_channel(suite.address("gateway")) as channel:
        assert {name: health(channel, name) for name in ("", *NAMES)} == dict.fromkeys(("", *NAMES), SERVING)
        assert health(channel, KAFKA_PIXY) == NOT_SERVING
        stub = rpc.KafkaPixyStub(channel)
        reasons: list[str] = []

        def names_the_address() -> bool:  # which it does after the first attempt has failed
            with pytest.raises(grpc.RpcError) as refused:
                stub.Produce(pb.ProdRq(topic="t", message=b"m"), timeout=20)
            assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
            reasons.append(str(refused.value.details()))
            return f"Kafka at {kafka}: " in reasons[-1]

        until(names_the_address, explain=lambda: str(reasons[-1:]))
    with urllib.request.urlopen(f"http://127.0.0.1:{Ports.from_base(suite.base_port).web}/healthz", timeout=20) as page:
        assert page.status == 200
    key = str(suite.directory / "jwt-keys" / "suite.key")
    tail = events(suite, "tail", "--user", "alice", "--key", key, "--count", "1")
    with subprocess.Popen(tail, stdout=subprocess.PIPE, text=True) as session:
        sent = suite.dexorder(*events(suite, "send", "alice", "ORDER_FILLED", "--priority", "CRITICAL")[3:])
        assert sent.returncode == 0 and "DELIVERED via WEB" in sent.stdout, sent.stdout + sent.stderr
        assert "ORDER_FILLED" in session.communicate(timeout=60)[0]


@pytest.mark.smoke
@pytest.mark.kafka
def test_kafka_pixy_serves_as_soon_as_a_kafka_is_there(suite: Suite, kafka_jars: Path, tmp_path: Path) -> None:
    ports = Ports.from_base(suite.base_port)
    broker = RunningKafka(tmp_path / "broker", (ports.kafka, ports.kafka_controller))
    try:
        with grpc.insecure_channel(suite.address("gateway")) as channel:
            until(lambda: health(channel, KAFKA_PIXY) == SERVING)
            answer = rpc.KafkaPixyStub(channel).Produce(pb.ProdRq(topic="dexorder.ohlc", message=b"m"), timeout=60)
            assert answer.offset == 0
            assert suite.status()["parts"]["gateway"]["detail"] == ""
            broker.stop(signal.SIGKILL)
            until(lambda: health(channel, KAFKA_PIXY) == NOT_SERVING)
            assert health(channel, "") == SERVING and suite.status()["ready"]
    finally:
        broker.stop(signal.SIGKILL)
