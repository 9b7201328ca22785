"""The gateway with Kafka-Pixy's file: as a command, with gRPC and HTTP, and the effect of its settings."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1.health_pb2 import HealthCheckResponse
from structlog.testing import capture_logs

from dexorder.supervisor.orphan_guard import guarded
from dexorder_common.config import BadSettings
from dexorder_gateway.config import GatewaySettings
from dexorder_gateway.server import gateway
from dexorder_protos.kafkapixy import kafkapixy_pb2 as pb
from dexorder_protos.kafkapixy import kafkapixy_pb2_grpc as rpc
from tests.conformance.pixy.http_client import HttpClient
from tests.gateway_thread import GatewayThread, GatewayUser, records, refusal
from tests.paths import ROOT
from tests.rig.processes import free_ports, until

MakeTopic = Callable[[int], str]
StartWith = Callable[..., GatewayThread]
STOP_SECONDS = 60.0


@pytest.fixture
def start_with(tmp_path: Path) -> Iterator[StartWith]:
    """Return a function that starts gateways with a file's text; they stop with the test."""
    running: list[GatewayThread] = []

    def start(text: str, **given: Any) -> GatewayThread:
        path = tmp_path / f"pixy-{len(running)}.yaml"
        path.write_text(text)
        running.append(GatewayThread(pixy_config=path, **{"drain_seconds": 0.0, **given}))
        return running[-1]

    yield start
    for each in running:
        each.stop()


def cluster(kafka: str, settings: str = "") -> str:
    return f"{{kafka: {{seed_peers: ['{kafka}']}}, {settings}}}"


@pytest.fixture
def start_cluster(kafka: str, start_with: StartWith) -> StartWith:
    """Return a function that starts a gateway whose only cluster has these settings."""
    return lambda settings: start_with(f"proxies: {{main: {cluster(kafka, settings)}}}").wait_ready()


# ---- as a command


@pytest.mark.kafka
def test_command_serves_grpc_and_http(kafka: str, kafka_topic: MakeTopic, tmp_path: Path) -> None:
    socket, file, log_file = tmp_path / "pixy.sock", tmp_path / "pixy.yaml", tmp_path / "log"
    http = f"127.0.0.1:{free_ports(1)[0]}"
    file.write_text(
        f"grpc_addr: 127.0.0.1:0\ntcp_addr: {http}\nunix_addr: {socket}\n"
        f"logging: [{{name: console, severity: info}}]\nproxies:\n  main: {cluster(kafka)}\n"
    )
    environment = {
        "DEXORDER_GATEWAY_METRICS_LISTEN": "",
        "DEXORDER_GATEWAY_NEW_GROUP_START": "earliest",
        "DEXORDER_LOG_FORMAT": "json",
    }
    command = [*guarded(), sys.executable, "-m", "dexorder"]
    with log_file.open("wb") as log:
        process = subprocess.Popen(
            [*command, "gateway", "--pixy-config", str(file)],
            cwd=ROOT,
            stdout=log,
            stderr=log,
            env=os.environ | environment,
        )

    def logged(event: str) -> list[dict[str, Any]]:
        lines = log_file.read_text().split("\n")[:-1]
        return [entry for entry in map(json.loads, lines) if entry["event"] == event]

    try:
        until(lambda: bool(logged("listening")) or process.poll() is not None)
        assert process.poll() is None, log_file.read_text()
        tcp = GatewayUser()
        tcp.connect(logged("listening")[0]["address"])
        tcp.wait_ready()
        topic = kafka_topic(1)
        assert tcp.stub.Produce(pb.ProdRq(cluster="main", topic=topic, message=b"over tcp")).offset == 0
        for offset, address in enumerate((http, f"unix:{socket}"), 1):
            answer = HttpClient(address).post(f"/clusters/main/topics/{topic}/messages?sync", b"over http")
            assert answer == (200, {"partition": 0, "offset": offset})
        assert tcp.consume(topic, auto_ack=True).message == b"over tcp"
        warned = [entry for entry in logged("settings without effect") if entry["level"] == "warning"]
        assert [entry["settings"] for entry in warned] == ["logging"]
        tcp._channel.close()
        process.terminate()
        assert process.wait(STOP_SECONDS) == 0
        assert not socket.exists()
    finally:
        process.kill()
        process.wait()


def test_command_ends_with_the_place_of_the_error(tmp_path: Path) -> None:
    file = tmp_path / "pixy.yaml"
    file.write_text("proxies: {main: {consumer: {ack_timeout: 5 minutes}}}")
    done = subprocess.run(
        [sys.executable, "-m", "dexorder", "gateway", "--pixy-config", file], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 1
    assert (
        f"{file}: proxies.main.consumer.ack_timeout: '5 minutes' is not a duration; use for example 500ms"
        in done.stderr
    )
    assert "Traceback" not in done.stderr


# ---- effect of the settings


@pytest.mark.kafka
def test_sync_record_does_not_wait_for_the_flush_and_flushes_async_ones(
    kafka: str, kafka_topic: MakeTopic, start_cluster: StartWith
) -> None:
    running = start_cluster("producer: {flush_frequency: 15m}")
    topic = kafka_topic(1)
    for number in range(3):
        running.stub.Produce(pb.ProdRq(topic=topic, message=b"async %d" % number, async_mode=True))
    assert records(kafka, topic) == []
    for offset in (3, 4):
        assert running.stub.Produce(pb.ProdRq(topic=topic, message=b"sync"), timeout=60).offset == offset
    assert [m.value() for m in records(kafka, topic)] == [b"async 0", b"async 1", b"async 2", b"sync", b"sync"]


@pytest.mark.kafka
def test_full_batch_goes_out_before_the_flush(kafka: str, kafka_topic: MakeTopic, start_cluster: StartWith) -> None:
    running = start_cluster("producer: {flush_frequency: 15m, flush_bytes: 2000, compression: none}")
    topic = kafka_topic(1)
    for _ in range(4):
        running.stub.Produce(pb.ProdRq(topic=topic, message=bytes(900), async_mode=True))
    until(lambda: len(records(kafka, topic)) >= 2)


@pytest.mark.kafka
@pytest.mark.parametrize(
    ("partitioner", "expected"),
    [
        ("hash", lambda found: len(set(found)) == 1),
        ("random", lambda found: len(set(found)) > 1),
        ("roundrobin", lambda found: found == [n % 4 for n in range(40)]),
    ],
    ids=["hash", "random", "roundrobin"],
)
def test_partitioners(
    kafka: str,
    kafka_topic: MakeTopic,
    start_cluster: StartWith,
    partitioner: str,
    expected: Callable[[list[int]], bool],
) -> None:
    running = start_cluster(f"producer: {{partitioner: {partitioner}}}")
    topic = kafka_topic(4)
    found = [running.stub.Produce(pb.ProdRq(topic=topic, key_value=b"k")).partition for _ in range(40)]
    assert expected(found), found


@pytest.mark.kafka
@pytest.mark.parametrize(("acks", "offset"), [("wait_for_all", 0), ("wait_for_local", 0), ("no_response", -1)])
def test_acks(kafka: str, kafka_topic: MakeTopic, start_cluster: StartWith, acks: str, offset: int) -> None:
    running = start_cluster(f"producer: {{required_acks: {acks}}}")
    topic = kafka_topic(1)
    answer = running.stub.Produce(pb.ProdRq(topic=topic, message=b"v"))
    assert (answer.partition, answer.offset) == (0, offset)
    until(lambda: [m.value() for m in records(kafka, topic)] == [b"v"])


@pytest.mark.kafka
def test_disabled_consumer(kafka_topic: MakeTopic, start_cluster: StartWith) -> None:
    running = start_cluster("consumer: {disabled: true}")
    for topic in (kafka_topic(1), "not-there"):
        code, text = refusal(lambda: running.stub.ConsumeNAck(pb.ConsNAckRq(topic=topic, group="g")))  # noqa: B023
        assert code == grpc.StatusCode.UNAVAILABLE and "disabled" in text
    assert running.stub.Produce(pb.ProdRq(topic=kafka_topic(1))).offset == 0


# ---- several clusters


@pytest.mark.kafka
def test_unavailable_cluster_does_not_affect_others(kafka: str, kafka_topic: MakeTopic, start_with: StartWith) -> None:
    (dead,) = free_ports(1)
    with capture_logs() as logged:
        running = start_with(
            f"proxies:\n  away: {cluster(f'127.0.0.1:{dead}')}\n  here: {cluster(kafka)}\ndefault_cluster: here\n"
        ).wait_ready()
        topic = kafka_topic(1)
        assert running.stub.Produce(pb.ProdRq(topic=topic, message=b"v")).offset == 0
        assert running.consume(topic, auto_ack=True).message == b"v"
        away: list[Callable[[], object]] = [
            lambda: running.stub.Produce(pb.ProdRq(cluster="away", topic=topic)),
            lambda: running.stub.ConsumeNAck(pb.ConsNAckRq(cluster="away", topic=topic, group="g", auto_ack=True)),
        ]
        for call in away:
            assert refusal(call)[0] == grpc.StatusCode.UNAVAILABLE
        until(lambda: any(entry.get("cluster") == "away" for entry in logged))
        running.wait_ready()
    lines = [each for each in logged if each["event"] == "cluster is unavailable" and each["cluster"] == "away"]
    assert "Connection refused" in lines[-1]["reason"]
    unknown = refusal(lambda: running.stub.Produce(pb.ProdRq(cluster="none", topic=topic)))
    assert unknown[0] == grpc.StatusCode.INVALID_ARGUMENT


def test_without_any_cluster_health_is_not_serving(start_with: StartWith) -> None:
    first, second = free_ports(2)
    clusters = "".join(f"  c{port}: {cluster(f'127.0.0.1:{port}')}\n" for port in (first, second))
    start_with(f"proxies:\n{clusters}").wait_for_health(HealthCheckResponse.NOT_SERVING)


# ---- files that Kafka's client refuses


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ("kafka: {tls: true, ca_certificate_file: %s}", "ssl.ca.location failed"),
        ("kafka: {tls: true, client_certificate_file: %s, client_key_file: %s}", "ssl.certificate.location failed"),
    ],
)
async def test_options_that_librdkafka_refuses_name_the_cluster(tmp_path: Path, settings: str, why: str) -> None:
    broken, file = tmp_path / "broken.pem", tmp_path / "pixy.yaml"
    write(broken, "no certificate")
    write(file, f"proxies: {{main: {{{settings.replace('%s', str(broken))}}}}}")
    with pytest.raises(BadSettings, match=f"cluster 'main': .*{why}"):
        await serve(pixy_config=file, listen="127.0.0.1:0", metrics_listen="")


def write(path: Path, text: str) -> None:
    path.write_text(text)


async def serve(**given: Any) -> None:
    async with gateway(GatewaySettings(**given)):
        raise AssertionError("it serves")


async def test_unix_socket_of_the_environment(tmp_path: Path) -> None:
    kafka = f"127.0.0.1:{free_ports(1)[0]}"
    first = GatewayThread(kafka=kafka, unix=tmp_path / "g.sock", drain_seconds=0.0)
    try:
        with grpc.insecure_channel(f"unix:{tmp_path}/g.sock") as channel:
            stub = rpc.KafkaPixyStub(channel)
            assert refusal(lambda: stub.Produce(pb.ProdRq()))[0] == grpc.StatusCode.INVALID_ARGUMENT
        with pytest.raises(OSError, match="another process does"):
            await serve(kafka=kafka, unix=tmp_path / "g.sock", listen="127.0.0.1:0", metrics_listen="")
    finally:
        first.stop()
