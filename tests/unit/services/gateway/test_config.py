"""Settings: their values and errors."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from dexorder_common.config import BadSettings, load_settings, read_settings
from dexorder_gateway.config import GatewaySettings
from dexorder_gateway.kafkapixy.cluster_config import TopicSpec, parse_topics


@pytest.mark.parametrize(
    ("text", "topics"),
    [
        ("", ()),
        ("a:1", (TopicSpec("a", 1),)),
        ("dexorder.ohlc:4, a_b-C:12,", (TopicSpec("dexorder.ohlc", 4), TopicSpec("a_b-C", 12))),
    ],
)
def test_topics(text: str, topics: tuple[TopicSpec, ...]) -> None:
    assert parse_topics(text) == topics


@pytest.mark.parametrize("text", ["a", "a:", "a:0", "a:-1", "a:x", "a:²", "a b:1", ":1", "..:1", "a:1,a:2", "a:1:2"])
def test_bad_topics_name_their_variable(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("DEXORDER_GATEWAY_TOPICS", text)
    with pytest.raises(SystemExit, match="DEXORDER_GATEWAY_"):
        load_settings(GatewaySettings)


def test_one_cluster_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEXORDER_GATEWAY_KAFKA", "kafka:9093")
    monkeypatch.setenv("DEXORDER_GATEWAY_KAFKA_OPTIONS", '{"sasl.password": "secret"}')
    monkeypatch.setenv("DEXORDER_GATEWAY_ACK_TIMEOUT_SECONDS", "7")
    (cluster,) = load_settings(GatewaySettings).clusters()
    assert (cluster.name, cluster.kafka, cluster.consume.ack_timeout_seconds) == ("default", "kafka:9093", 7)
    assert dict(cluster.options) == {"sasl.password": "secret"}
    names = ["dexorder.ohlc", "dexorder.ticks", "dexorder.tickers", "dexorder.funding"]
    assert [t.name for t in cluster.topics] == names
    assert "secret" not in repr(cluster)


WriteFile = Callable[[str], Path]


@pytest.fixture
def pixy_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WriteFile:
    """Return a function that writes Kafka-Pixy's file and sets its path in the environment."""

    def write(text: str) -> Path:
        path = tmp_path / "pixy.yaml"
        path.write_text(text)
        monkeypatch.setenv("DEXORDER_PIXY_CONFIG", str(path))
        return path

    return write


def refused(**given: object) -> str:
    with pytest.raises(BadSettings) as caught:
        read_settings(GatewaySettings, **given)
    return str(caught.value)


def test_file_sets_addresses_and_clusters(pixy_file: WriteFile, tmp_path: Path) -> None:
    for name in ("crt", "key", "ca"):
        (tmp_path / name).touch()
    pixy_file(
        "grpc_addr: 127.0.0.2:1\ntcp_addr: 127.0.0.2:2\nunix_addr: /run/pixy.sock\n"
        "proxies: {a: {kafka: {seed_peers: ['k:1']}}, b: }\n"
        f"tls: {{certificate_path: {tmp_path}/crt, key_path: {tmp_path}/key, client_ca_path: {tmp_path}/ca}}"
    )
    settings = load_settings(GatewaySettings)
    assert (settings.listen, settings.unix) == ("127.0.0.2:1", None)
    assert (settings.http_listen, settings.http_unix) == ("127.0.0.2:2", Path("/run/pixy.sock"))
    assert settings.tls_certificate == tmp_path / "crt" and settings.tls_client_ca == tmp_path / "ca"
    assert [(c.name, c.kafka, c.topics) for c in settings.clusters()] == [("a", "k:1", ()), ("b", "localhost:9092", ())]


def test_settings_missing_in_the_file(pixy_file: WriteFile, monkeypatch: pytest.MonkeyPatch) -> None:
    pixy_file("proxies: {a: , b: {producer: {max_message_bytes: 5000000}}}")
    settings = load_settings(GatewaySettings)
    assert (settings.listen, settings.http_listen, settings.topics) == ("127.0.0.1:19091", "127.0.0.1:19092", "")
    assert settings.max_message_bytes > 5_000_000
    for name, value in {
        "LISTEN": "127.0.0.1:7",
        "UNIX": "/run/u.sock",
        "TOPICS": "t:2",
        "MAX_MESSAGE_BYTES": "2000",
        "NEW_GROUP_START": "earliest",
        "KAFKA_OPTIONS": '{"client.rack": "r"}',
    }.items():
        monkeypatch.setenv(f"DEXORDER_GATEWAY_{name}", value)
    settings = load_settings(GatewaySettings)
    assert (settings.listen, settings.unix, settings.max_message_bytes) == ("127.0.0.1:7", Path("/run/u.sock"), 2_000)
    first, second = settings.clusters()
    assert (first.topics, second.topics) == ((TopicSpec("t", 2),), ())
    assert {c.options["client.rack"] for c in (first, second)} == {"r"}
    assert {c.consume.new_group_start for c in (first, second)} == {"earliest"}


@pytest.mark.parametrize(
    ("name", "value", "place"),
    [
        ("KAFKA", "k:1", "proxies"),
        ("CLUSTER", "main", "proxies"),
        ("ACK_TIMEOUT_SECONDS", "3", "proxies"),
        ("LISTEN", "127.0.0.1:1", "grpc_addr"),
        ("HTTP_LISTEN", "127.0.0.1:1", "tcp_addr"),
        ("HTTP_UNIX", "/u", "unix_addr"),
    ],
)
def test_setting_in_both_places_names_both(
    pixy_file: WriteFile, monkeypatch: pytest.MonkeyPatch, name: str, value: str, place: str
) -> None:
    path = pixy_file("grpc_addr: 127.0.0.1:0\ntcp_addr: 127.0.0.1:0\nunix_addr: /run/pixy.sock\nproxies: {main: }")
    monkeypatch.setenv(f"DEXORDER_GATEWAY_{name}", value)
    assert f"DEXORDER_GATEWAY_{name} is set, and so is {place} in {path}" in refused()


@pytest.mark.parametrize("key", ["grpc_addr", "tcp_addr"])
def test_address_beyond_loopback_needs_tls_and_identity_or_allow_insecure(
    pixy_file: WriteFile, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, key: str
) -> None:
    (tmp_path / "pem").touch()
    text = f"{key}: 0.0.0.0:19091\nproxies: {{main: }}\n"
    path = pixy_file(f"{text}tls: {{certificate_path: {tmp_path}/pem, key_path: {tmp_path}/pem}}")
    assert f"0.0.0.0:19091 ({key} in {path}) accepts calls from anyone" in refused()
    path = pixy_file(text)
    assert f"0.0.0.0:19091 ({key} in {path}) is reachable from outside without TLS" in refused()
    monkeypatch.setenv("DEXORDER_ALLOW_INSECURE", "1")
    assert "0.0.0.0:19091" in load_settings(GatewaySettings).call_addresses()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("proxies: {main: {consumer: {ack_timeout: x}}}", "proxies.main.consumer.ack_timeout: 'x' is not a duration"),
        ("proxies: [", "not valid YAML: "),
        (
            "proxies: {main: {kafka: {tls: 1, ca_certificate_file: /no}}}",
            "proxies.main.kafka.ca_certificate_file: /no can't be read: No such file",
        ),
        ("proxies: {main: }\ntls: {certificate_path: /, key_path: /no}", "tls.certificate_path: / can't be read: Is a"),
    ],
)
def test_invalid_file_is_named_with_the_place(pixy_file: WriteFile, text: str, problem: str) -> None:
    path = pixy_file(text)
    assert f"{path}: {problem}" in refused()


def test_every_invalid_place_has_its_own_line(pixy_file: WriteFile) -> None:
    path = pixy_file("proxies: {a: {net: x}, b: {net: x}}")
    assert refused().splitlines()[1:] == [f"  {path}: proxies.{c}.net: is not a mapping" for c in "ab"]


def test_file_that_is_missing_or_not_text(tmp_path: Path) -> None:
    assert f"DEXORDER_PIXY_CONFIG: {tmp_path}/no can't be read: No such file" in refused(pixy_config=tmp_path / "no")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\xfd")
    assert f"{tmp_path}/binary is not UTF-8 text" in refused(pixy_config=tmp_path / "binary")


def test_flag_overrides_the_variable_and_an_empty_variable_means_none(
    pixy_file: WriteFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pixy_file("proxies: {environment: }")
    (tmp_path / "flag.yaml").write_text("proxies: {flag: }")
    (cluster,) = load_settings(GatewaySettings, pixy_config=tmp_path / "flag.yaml").clusters()
    assert cluster.name == "flag"
    monkeypatch.setenv("DEXORDER_PIXY_CONFIG", "")
    assert load_settings(GatewaySettings).pixy is None


def test_password_of_the_file_is_in_no_repr_or_dump(pixy_file: WriteFile) -> None:
    pixy_file("proxies: {main: {net: {sasl: {enable: yes, user: u, password: hunter2}}}}")
    settings = load_settings(GatewaySettings)
    assert settings.clusters()[0].options["sasl.password"] == "hunter2"
    assert "hunter2" not in f"{settings!r} {settings} {settings.clusters()!r} {settings.model_dump()}"
