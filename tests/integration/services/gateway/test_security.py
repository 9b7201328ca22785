"""Passwords and certificates to Kafka, configured in Kafka-Pixy's file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest
from grpc_health.v1.health_pb2 import HealthCheckResponse
from structlog.testing import capture_logs

from dexorder.supervisor.kafka import HOST
from dexorder_protos.kafkapixy import kafkapixy_pb2 as pb
from tests.fixtures_tls import Authority, Pair
from tests.gateway_thread import GatewayThread, refusal
from tests.rig.kafka import RunningKafka, create_topic
from tests.rig.processes import free_ports, until

pytestmark = pytest.mark.kafka
PASSWORDS = {"plain": "plain-pass", "scram": "scram-pass"}
WRONG = "not-the-password"


@dataclass(frozen=True)
class SecureKafka:
    """Start a broker that requires a login at one port and a certificate at another."""

    broker: RunningKafka
    authority: Authority
    login_port: int
    certificate_port: int
    client: Pair


@pytest.fixture(scope="module")
def secure(kafka_jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureKafka]:
    folder = tmp_path_factory.mktemp("secure")
    authority = Authority(folder / "tls")
    login, certificate = free_ports(2)
    pair = authority.server()
    keystore = folder / "keystore.pem"
    keystore.write_bytes(pair.key.read_bytes() + pair.certificate.read_bytes())
    broker = RunningKafka(
        folder / "broker",
        properties=lambda port, controller: _properties(port, controller, login, certificate, keystore, authority.ca),
        scram=[f"SCRAM-SHA-{bits}=[name=scram,password={PASSWORDS['scram']}]" for bits in (256, 512)],
    )
    yield SecureKafka(broker, authority, login, certificate, authority.client("gateway"))
    broker.stop()


def _properties(port: int, controller: int, login: int, certificate: int, keystore: Path, ca: Path) -> str:
    names = {"PLAINTEXT": port, "LOGIN": login, "CERTIFICATE": certificate}
    listeners = ",".join(f"{name}://{HOST}:{number}" for name, number in names.items())
    module = "org.apache.kafka.common.security"
    at_login = "listener.name.login"
    lines = {
        "listeners": f"{listeners},CONTROLLER://{HOST}:{controller}",
        "advertised.listeners": listeners,
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,LOGIN:SASL_SSL,CERTIFICATE:SSL",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": keystore,
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": ca,
        "listener.name.certificate.ssl.client.auth": "required",
        f"{at_login}.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
        f"{at_login}.plain.sasl.jaas.config": (
            f'{module}.plain.PlainLoginModule required user_plain="{PASSWORDS["plain"]}";'
        ),
        f"{at_login}.scram-sha-256.sasl.jaas.config": f"{module}.scram.ScramLoginModule required;",
        f"{at_login}.scram-sha-512.sasl.jaas.config": f"{module}.scram.ScramLoginModule required;",
    }
    return "".join(f"{name}={value}\n" for name, value in lines.items())


def login(kafka: SecureKafka, user: str, password: str, mechanism: str = "", tls: str = "") -> str:
    """Return a cluster of the file, in flow style."""
    how = f", mechanism: {mechanism}" if mechanism else ""
    trust = tls or f"ca_certificate_file: {kafka.authority.ca}"
    return (
        f"{{kafka: {{seed_peers: ['{HOST}:{kafka.login_port}'], tls: true, {trust}}}, "
        f"net: {{sasl: {{enable: true, user: {user}, password: {password}{how}}}}}}}"
    )


def certificate(kafka: SecureKafka, pair: Pair | None) -> str:
    own = f", client_certificate_file: {pair.certificate}, client_key_file: {pair.key}" if pair else ""
    return (
        f"{{kafka: {{seed_peers: ['{HOST}:{kafka.certificate_port}'], tls: true, "
        f"ca_certificate_file: {kafka.authority.ca}{own}}}}}"
    )


def file(folder: Path, clusters: dict[str, str]) -> Path:
    path = folder / "pixy.yaml"
    path.write_text("proxies:\n" + "".join(f"  {name}: {said}\n" for name, said in clusters.items()))
    return path


@pytest.fixture(scope="module")
def gateway(secure: SecureKafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayThread]:
    """Start one gateway with every way to log in, including wrong ones."""
    scram, plain = PASSWORDS["scram"], PASSWORDS["plain"]
    clusters = {
        "plain": login(secure, "plain", plain),
        "scram-256": login(secure, "scram", scram, "SCRAM-SHA-256"),
        "scram-512": login(secure, "scram", scram, "SCRAM-SHA-512"),
        "insecure": login(secure, "plain", plain, tls="insecure: true"),
        "certificate": certificate(secure, secure.client),
        "wrong-plain": login(secure, "plain", WRONG),
        "wrong-scram": login(secure, "scram", WRONG, "SCRAM-SHA-512"),
        "stranger": login(secure, "plain", plain, tls="insecure: false"),
        "no-certificate": certificate(secure, None),
    }
    path = file(tmp_path_factory.mktemp("gateway"), clusters)
    running = GatewayThread(pixy_config=path, drain_seconds=0.0)
    yield running
    running.stop()


def produce(gateway: GatewayThread, cluster: str, topic: str) -> bool:
    """Return False while the gateway has no answer from the cluster."""
    try:
        gateway.stub.Produce(pb.ProdRq(cluster=cluster, topic=topic, message=cluster.encode()))
    except grpc.RpcError as error:
        assert error.code() == grpc.StatusCode.UNAVAILABLE
        return False
    return True


@pytest.mark.parametrize("cluster", ["plain", "scram-256", "scram-512", "insecure", "certificate"])
def test_record_is_written_and_read(gateway: GatewayThread, secure: SecureKafka, cluster: str) -> None:
    topic = create_topic(secure.broker.bootstrap, 1)
    until(lambda: produce(gateway, cluster, topic))
    assert gateway.consume(topic, cluster=cluster, auto_ack=True).message == cluster.encode()


@pytest.mark.parametrize(
    ("cluster", "why"),
    [
        ("wrong-plain", "SASL authentication error: Authentication failed: Invalid username or password"),
        ("wrong-scram", "SASL authentication error: Authentication failed during authentication due to invalid cred"),
        ("stranger", "broker certificate could not be verified"),
        ("no-certificate", "alert bad certificate"),
    ],
)
def test_refused_connection_names_the_reason(gateway: GatewayThread, cluster: str, why: str) -> None:
    def call() -> str:
        code, text = refusal(lambda: gateway.stub.Produce(pb.ProdRq(cluster=cluster, topic="t")))
        assert code == grpc.StatusCode.UNAVAILABLE and WRONG not in text
        return text

    until(lambda: why in call())


def test_refused_connections_affect_no_other_cluster(gateway: GatewayThread) -> None:
    gateway.wait_ready()


def test_wrong_password_is_not_serving_and_is_not_logged(secure: SecureKafka, tmp_path: Path) -> None:
    path = file(tmp_path, {"main": login(secure, "plain", WRONG)})
    with capture_logs() as logged:
        gateway = GatewayThread(pixy_config=path, drain_seconds=0.0)
        try:
            until(lambda: any("Invalid username" in str(entry.get("reason")) for entry in logged))
            gateway.wait_for_health(HealthCheckResponse.NOT_SERVING)
        finally:
            gateway.stop()
    assert WRONG not in repr(logged)
