"""Kafka-Pixy's command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from dexorder_common.config import BadSettings, read_settings
from dexorder_gateway.config import GatewaySettings
from dexorder_gateway.pixy_flags import read_flags


def settings(*arguments: str) -> GatewaySettings:
    return read_settings(GatewaySettings, pixy_flags=read_flags(arguments))


def refused(*arguments: str) -> str:
    with pytest.raises(BadSettings) as caught:
        settings(*arguments)
    return str(caught.value)


def test_flags_without_a_file_are_the_whole_configuration(tmp_path: Path) -> None:
    for name in ("ca", "crt", "key"):
        (tmp_path / name).touch()
    made = settings(
        *(
            "-kafkaPeers",
            "k1:9092,k2:9092",
            "--grpcAddr=127.0.0.1:1",
            "-tcpAddr=127.0.0.1:2",
            "-unixAddr",
            "/run/p.sock",
        ),
        *("-zookeeperPeers=zk:2181/chroot", "-logging", '[{"name": "console"}]', "-tls", "-insecureTLS=true"),
        *(
            "-caCertFile",
            f"{tmp_path}/ca",
            "-clientCertFile",
            f"{tmp_path}/crt",
            "-clientCertKeyFile",
            f"{tmp_path}/key",
        ),
    )
    assert (made.listen, made.http_listen, made.http_unix) == ("127.0.0.1:1", "127.0.0.1:2", Path("/run/p.sock"))
    (cluster,) = made.clusters()
    assert (cluster.name, cluster.kafka, cluster.topics) == ("default", "k1:9092,k2:9092", ())
    secured = {
        "security.protocol": "SSL",
        "ssl.ca.location": f"{tmp_path}/ca",
        "ssl.certificate.location": f"{tmp_path}/crt",
        "ssl.key.location": f"{tmp_path}/key",
        "enable.ssl.certificate.verification": "false",
    }
    assert secured.items() <= cluster.options.items()
    assert made.pixy is not None
    assert made.pixy.ignored_settings == ["proxies.default.zoo_keeper.seed_peers", "logging"]


def test_addresses_that_are_not_given_are_kafka_pixys_ports_on_loopback() -> None:
    made = settings("-kafkaPeers", "k:1", "-tcpAddr", "", "-tls=false")
    assert (made.listen, made.http_listen, made.http_unix) == ("127.0.0.1:19091", "127.0.0.1:19092", None)
    assert made.clusters()[0].options["security.protocol"] == "PLAINTEXT"


@pytest.mark.parametrize(("default", "changed"), [("", "a"), ("default_cluster: b\n", "b")])
def test_flags_override_the_file_in_its_default_cluster(tmp_path: Path, default: str, changed: str) -> None:
    path = tmp_path / "pixy.yaml"
    path.write_text(
        f"{default}tcp_addr: 127.0.0.1:7\ngrpc_addr: 127.0.0.1:8\n"
        "proxies: {a: {kafka: {seed_peers: ['a:1']}}, b: {kafka: {seed_peers: ['b:1']}, producer: {timeout: 3s}}}"
    )
    made = settings("-config", str(path), "-tcpAddr", "127.0.0.1:9", "-kafkaPeers", "c:1, d:1")
    assert (made.listen, made.http_listen) == ("127.0.0.1:8", "127.0.0.1:9")
    expected = {"a": "a:1", "b": "b:1", changed: "c:1,d:1"}
    assert {cluster.name: cluster.kafka for cluster in made.clusters()} == expected
    assert settings("-config", str(path)).http_listen == "127.0.0.1:7"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("-grpcAdr", "x"), "'-grpcAdr' is not a flag of Kafka-Pixy; these are: -grpcAddr -tcpAddr"),
        (("grpcAddr", "x"), "'grpcAddr' is not a flag"),
        (("-tls", "true"), "'true' is not a flag"),  # Go would end the flags there, and ignore the others
        (("-",), "'-' is not a flag"),
        (("-kafkaPeers",), "-kafkaPeers needs a value"),
        (("-tls=maybe",), "-tls: 'maybe' is not true or false"),
        (("-grpcAddr", "19091"), "Kafka-Pixy's flags: -grpcAddr: is not host:port (got '19091')"),
        (("-kafkaPeers", "k:1,k"), "Kafka-Pixy's flags: -kafkaPeers: is not host:port (got 'k')"),
        (("-config", "/no/such/file"), "/no/such/file can't be read"),
        (("-tls", "-caCertFile", "/no/ca"), "/no/ca can't be read"),
    ],
)
def test_bad_flags_are_named(arguments: tuple[str, ...], text: str) -> None:
    assert text in refused(*arguments)


def test_a_variable_for_the_same_setting_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEXORDER_GATEWAY_KAFKA", "k:1")
    assert "DEXORDER_GATEWAY_KAFKA is set, and so is proxies in Kafka-Pixy's flags" in refused("-kafkaPeers", "k:2")


@pytest.mark.parametrize("text", ["", "- a", "proxies: x", "proxies: {a: x}", "proxies: {a: {kafka: x}}"])
def test_a_file_of_another_shape_is_refused_by_its_place(tmp_path: Path, text: str) -> None:
    path = tmp_path / "pixy.yaml"
    path.write_text(text)
    assert str(path) in refused("-config", str(path), "-kafkaPeers", "k:1")
