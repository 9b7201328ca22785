"""Kafka-Pixy's file: its values, the setting that each becomes, and its errors."""

from __future__ import annotations

from typing import Any

import pytest

from dexorder_gateway.kafkapixy.cluster_config import ClusterConfig, ConsumeConfig, ProduceConfig, TopicSpec
from dexorder_gateway.kafkapixy.yaml_config import BadPixyConfig, PixyConfig, parse_pixy_config
from dexorder_gateway.kafkapixy.yaml_settings import largest_message_bytes, pixy_clusters

BASE = ClusterConfig("unused", "unused:1", topics=(TopicSpec("suite", 1),))
SECRET = "s3cret:*!'"


def in_proxy(settings: str) -> PixyConfig:
    """Parse a file with one cluster, whose settings are in flow style."""
    return parse_pixy_config(f"proxies: {{main: {settings}}}")


def cluster(settings: str = "", base: ClusterConfig = BASE) -> ClusterConfig:
    (made,) = pixy_clusters(in_proxy(settings), base)
    return made


def problems(text: str) -> list[str]:
    with pytest.raises(BadPixyConfig) as caught:
        parse_pixy_config(text)
    return caught.value.problems


# ---- settings

EVERY_SETTING = """
grpc_addr: 127.0.0.1:19191
tcp_addr: 0.0.0.0:19092
unix_addr: "/var/run/pixy.sock"
default_cluster: main
tls:
  certificate_path: /tls/server.crt
  key_path: /tls/server.key
  client_ca_path: /tls/ca.crt
logging:
  - name: console
    severity: info
proxies:
  other:
  main:
    client_id: pixy_1
    kafka:
      seed_peers:
        - kafka-1:9092
        - "[::1]:9093"
      version: 2.3.0
      tls: true
      ca_certificate_file: /kafka/ca.crt
      client_certificate_file: /kafka/client.crt
      client_key_file: /kafka/client.key
      insecure: yes
    net:
      dial_timeout: 3s
      read_timeout: 20s
      write_timeout: 25s
      sasl:
        enable: true
        handshake: true
        user: me
        password: 0123
        mechanism: SCRAM-SHA-512
    zoo_keeper:
      seed_peers:
        - zk:2181
      chroot: /kafka
      session_timeout: 20s
    producer:
      channel_buffer_size: 100
      max_message_bytes: 2000000
      compression: gzip
      flush_bytes: 4096
      flush_frequency: 250ms
      retry_backoff: 2s
      retry_max: 3
      required_acks: wait_for_local
      shutdown_timeout: 7s
      partitioner: random
      timeout: 1m5s
    consumer:
      disabled: on
      ack_timeout: 1m30s
      channel_buffer_size: 8
      fetch_max_bytes: 65536
      fetch_max_wait: 50ms
      long_polling_timeout: 1500ms
      max_pending_messages: 30
      max_retries: 4
      offsets_commit_interval: 200ms
      rebalance_delay: 250ms
      retry_backoff: 750ms
      subscription_timeout: 9s
"""


def test_every_setting_has_its_effect() -> None:
    file = parse_pixy_config(EVERY_SETTING)
    main, other = pixy_clusters(file, BASE)
    assert (file.grpc_addr, file.tcp_addr, file.unix_addr) == ("127.0.0.1:19191", "0.0.0.0:19092", "/var/run/pixy.sock")
    assert (main.name, main.kafka, other.name) == ("main", "kafka-1:9092,[::1]:9093", "other")
    assert main.options == {
        "client.id": "pixy_1",
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": "/kafka/ca.crt",
        "ssl.certificate.location": "/kafka/client.crt",
        "ssl.key.location": "/kafka/client.key",
        "enable.ssl.certificate.verification": "false",
        "ssl.endpoint.identification.algorithm": "none",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "me",
        "sasl.password": "0123",
        "socket.connection.setup.timeout.ms": "3000",
        "socket.timeout.ms": "25000",
    }
    assert main.produce == ProduceConfig(
        timeout_seconds=71.25,
        linger_ms=250.0,
        queue_messages=1_200,
        max_bytes=2_000_000,
        compression="gzip",
        batch_bytes=4_096,
        acks="leader",
        retries=3,
        retry_backoff_ms=2_000,
        replication_timeout_ms=65_000,
        partitioner="random",
        shutdown_seconds=7.0,
    )
    assert main.consume == ConsumeConfig(
        disabled=True,
        ack_timeout_seconds=90.0,
        channel_buffer_size=8,
        fetch_bytes=65_536,
        fetch_wait_ms=50,
        long_polling_timeout_ms=1_500,
        max_pending_messages=30,
        max_retries=4,
        offsets_commit_interval_ms=200,
        retry_backoff_ms=750,
        subscription_timeout_seconds=9.0,
        session_timeout_ms=20_000,
    )


def test_ignored_settings_are_named() -> None:
    assert parse_pixy_config(EVERY_SETTING).ignored_settings == [
        "proxies.main.kafka.version",
        "proxies.main.zoo_keeper.seed_peers",
        "proxies.main.zoo_keeper.chroot",
        "proxies.main.consumer.rebalance_delay",
        "logging",
    ]
    assert in_proxy("{net: {sasl: {handshake: false}}}").ignored_settings == ["proxies.main.net.sasl.handshake"]
    assert in_proxy("{producer: {timeout: 1s}}").ignored_settings == []


def test_defaults_are_kafka_pixys_except_for_the_flush() -> None:
    found = cluster()
    assert found == ClusterConfig(
        "main",
        "localhost:9092",
        options={"security.protocol": "PLAINTEXT", "socket.timeout.ms": "10000"},
        topics=BASE.topics,
        produce=ProduceConfig(
            timeout_seconds=70.0,
            linger_ms=ProduceConfig().linger_ms,
            queue_messages=49_152,
            compression="snappy",
            batch_bytes=1_048_576,
            replication_timeout_ms=10_000,
            shutdown_seconds=30.0,
        ),
        consume=ConsumeConfig(fetch_wait_ms=250),
    )


@pytest.mark.parametrize(
    "text",
    ["proxies: {main: }", "proxies: {main: {}}", "proxies: {main: {producer: , kafka: {seed_peers: null}, net: ~}}"],
)
def test_empty_part_or_value_counts_as_missing(text: str) -> None:
    assert parse_pixy_config(text).proxies["main"] == in_proxy("{}").proxies["main"]


def test_settings_that_the_file_does_not_have_are_the_environments() -> None:
    base = ClusterConfig(
        "unused",
        "unused:1",
        options={"client.rack": "a", "security.protocol": "SSL"},
        topics=BASE.topics,
        produce=ProduceConfig(queue_kbytes=7),
        consume=ConsumeConfig(new_group_start="earliest", session_timeout_ms=9_000),
    )
    first, second = pixy_clusters(parse_pixy_config("proxies: {a: , b: }"), base)
    assert first.options["security.protocol"] == second.options["security.protocol"] == "SSL"
    assert second.options["client.rack"] == "a"
    assert (second.produce.queue_kbytes, second.consume.new_group_start) == (7, "earliest")
    assert second.consume.session_timeout_ms == 9_000
    assert (first.topics, second.topics) == (BASE.topics, ())


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("proxies: {z: , a: , m: }", ["z", "a", "m"]),
        ("proxies: {z: , a: , m: }\ndefault_cluster: m", ["m", "z", "a"]),
        ("default_cluster: z\nproxies: {a: , z: }", ["z", "a"]),
    ],
)
def test_default_cluster_comes_first(text: str, names: list[str]) -> None:
    assert [c.name for c in pixy_clusters(parse_pixy_config(text), BASE)] == names


def test_merged_settings_and_anchors() -> None:
    text = (
        "proxies:\n  a: &a {consumer: &c {max_retries: 3}}\n  b:\n    <<: *a\n    consumer: {<<: *c, ack_timeout: 7s}"
    )
    first, second = pixy_clusters(parse_pixy_config(text), BASE)
    assert (first.consume.max_retries, first.consume.ack_timeout_seconds) == (3, 300.0)
    assert (second.consume.max_retries, second.consume.ack_timeout_seconds) == (3, 7.0)


@pytest.mark.parametrize(
    ("settings", "field", "value"),
    [
        ("{producer: {required_acks: no_response}}", "acks", "none"),
        ("{producer: {required_acks: wait_for_all}}", "acks", "all"),
        ("{producer: {partitioner: roundrobin}}", "partitioner", "roundrobin"),
        ("{producer: {flush_bytes: 0}}", "batch_bytes", None),
        ("{producer: {flush_frequency: 0}}", "linger_ms", 0.0),
        ("{producer: {flush_frequency: 1500us}}", "linger_ms", 1.5),
        ("{producer: {flush_frequency: 500000000}}", "linger_ms", 500.0),
        ("{producer: {retry_max: 2}}", "retry_backoff_ms", 10_000),
        ("{producer: {retry_backoff: 1s}}", "retries", 6),
        ("{producer: {retry_backoff: 1s}}", "timeout_seconds", 16.0),
        ("{producer: {retry_max: 1000000}}", "timeout_seconds", 86_400.0),
        ("{producer: {channel_buffer_size: 2000000}}", "queue_messages", 10_000_000),
        ("{producer: {shutdown_timeout: 0s}}", "shutdown_seconds", 0.0),
    ],
)
def test_producer(settings: str, field: str, value: Any) -> None:
    assert getattr(cluster(settings).produce, field) == value


@pytest.mark.parametrize(
    ("settings", "field", "value"),
    [
        ("{consumer: {offsets_commit_interval: 1us}}", "offsets_commit_interval_ms", 1),
        ("{consumer: {max_retries: 0}}", "max_retries", 0),
        ("{consumer: {ack_timeout: 0.5h}}", "ack_timeout_seconds", 1_800.0),
        ("{zoo_keeper: {session_timeout: 4s}}", "session_timeout_ms", 6_000),
        ("{zoo_keeper: {session_timeout: 1h}}", "session_timeout_ms", 1_800_000),
    ],
)
def test_consumer(settings: str, field: str, value: Any) -> None:
    assert getattr(cluster(settings).consume, field) == value


@pytest.mark.parametrize(
    ("settings", "options"),
    [
        ("{net: {read_timeout: 4s}}", {"socket.timeout.ms": "4000"}),
        ("{net: {dial_timeout: 10ms}}", {"socket.connection.setup.timeout.ms": "1000"}),
        ("{consumer: {fetch_max_wait: 1m}}", {"socket.timeout.ms": "61000"}),
        ("{kafka: {tls: true}}", {"security.protocol": "SSL"}),
        (
            "{net: {sasl: {enable: true, user: u, password: p}}}",
            {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"}
            | {"sasl.username": "u", "sasl.password": "p"},
        ),
        ("{net: {sasl: {user: u, password: p}}}", {"security.protocol": "PLAINTEXT"}),
        ("{kafka: {ca_certificate_file: /unused, insecure: true}}", {"security.protocol": "PLAINTEXT"}),
    ],
)
def test_connections(settings: str, options: dict[str, str]) -> None:
    found = dict(cluster(settings).options)
    assert found == {"security.protocol": "PLAINTEXT", "socket.timeout.ms": "10000"} | options


@pytest.mark.parametrize("written", ["0123", "1e5", "yes", "0x1F", "1_000", "2001-01-01", '"a b"', "a:b#c", "'null'"])
def test_password_is_the_text_in_the_file(written: str) -> None:
    text = f"proxies: {{a: {{net: {{sasl: {{enable: yes, user: u, password: {written} }}}}}}}}"
    (made,) = pixy_clusters(parse_pixy_config(text), BASE)
    assert made.options["sasl.password"] == written.strip("'\"")


@pytest.mark.parametrize(
    ("written", "address"), [(":19091", "[::]:19091"), ("pixy.example:1", "pixy.example:1"), ("[::1]:0", "[::1]:0")]
)
def test_grpc_address(written: str, address: str) -> None:
    assert parse_pixy_config(f"grpc_addr: '{written}'\nproxies: {{a: }}").grpc_addr == address


def test_files_that_will_be_read() -> None:
    assert dict(parse_pixy_config(EVERY_SETTING).files) == {
        "tls.certificate_path": "/tls/server.crt",
        "tls.key_path": "/tls/server.key",
        "tls.client_ca_path": "/tls/ca.crt",
        "proxies.main.kafka.ca_certificate_file": "/kafka/ca.crt",
        "proxies.main.kafka.client_certificate_file": "/kafka/client.crt",
        "proxies.main.kafka.client_key_file": "/kafka/client.key",
    }
    assert dict(in_proxy("{kafka: {ca_certificate_file: /unused}}").files) == {}


def test_largest_message() -> None:
    text = "proxies: {a: {producer: {max_message_bytes: 5000000}}, b: }"
    assert largest_message_bytes(parse_pixy_config(text)) == 5_000_000


# ---- errors


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        (
            "{consumer: {ack_timeout: Kaboom!}}",
            "consumer.ack_timeout: 'Kaboom!' is not a duration; use for example 500ms",
        ),
        ("{consumer: {ack_timeout: 300}}", "consumer.ack_timeout: 300 lacks a unit and means 300 ns"),
        ("{consumer: {ack_timeout: 0s}}", "consumer.ack_timeout: Input should be greater than 0 (got '0s')"),
        ("{consumer: {ack_timeout: -1s}}", "consumer.ack_timeout: Input should be greater than 0 (got '-1s')"),
        (
            "{consumer: {ack_timeout: [1s]}}",
            "consumer.ack_timeout: is not a duration; use for example 500ms or 1m30s",
        ),
        ("{consumer: {fetch_max_wait: 5m}}", "consumer.fetch_max_wait: is longer than 4m"),
        ("{consumer: {max_retries: -2}}", "consumer.max_retries: Input should be greater than or equal to -1"),
        ("{consumer: {max_pending_messages: 0}}", "consumer.max_pending_messages: Input should be greater"),
        ("{consumer: {channel_buffer_size: 4k}}", "consumer.channel_buffer_size: Input should be a valid int"),
        ("{consumer: {disabled: maybe}}", "consumer.disabled: Input should be a valid boolean"),
        ("{consumer: [1]}", "consumer: is not a mapping"),
        ("{consumer: {rebalance_delay: soon}}", "consumer.rebalance_delay: 'soon' is not a duration"),
        ("{consumer: {ack_time_out: 1s}}", "consumer.ack_time_out: is not a known setting"),
        ("{producer: {compression: brotli}}", "producer.compression: Input should be 'none', 'gzip'"),
        ("{producer: {required_acks: all}}", "producer.required_acks: Input should be 'no_response'"),
        ("{producer: {partitioner: sticky}}", "producer.partitioner: Input should be 'hash', 'random'"),
        ("{producer: {retry_max: 0}}", "producer.retry_max: Input should be greater than 0"),
        ("{producer: {flush_bytes: -1}}", "producer.flush_bytes: Input should be greater than or equal to 0"),
        ("{producer: {max_message_bytes: 999}}", "producer.max_message_bytes: Input should be greater than"),
        ("{producer: {flush_frequency: 16m}}", "producer.flush_frequency: is longer than 15m"),
        ("{kafka: {seed_peers: localhost:9092}}", "kafka.seed_peers: is not a list"),
        ("{kafka: {seed_peers: []}}", "kafka.seed_peers: is empty"),
        ("{kafka: {seed_peers: [a:1, b]}}", "kafka.seed_peers.1: is not host:port (got 'b')"),
        ("{kafka: {seed_peers: [':9092']}}", "kafka.seed_peers.0: is not host:port"),
        ("{kafka: {seed_peers: ['a:70000']}}", "kafka.seed_peers.0: is not host:port"),
        ("{kafka: {version: newest}}", "kafka.version: is not a version of Kafka"),
        ("{kafka: {tls: perhaps}}", "kafka.tls: Input should be a valid boolean"),
        (
            "{kafka: {client_key_file: /k}}",
            "kafka: client_certificate_file and client_key_file must be set together",
        ),
        ("{client_id: 'a b'}", "client_id: String should match pattern"),
        ("{net: {sasl: {enable: true, user: u}}}", "net.sasl: enable needs user and password"),
        ("{net: {sasl: {mechanism: GSSAPI}}}", "net.sasl.mechanism: Input should be 'PLAIN'"),
        ("{zookeeper: {}}", "zookeeper: is not a known setting"),
    ],
)
def test_invalid_value_names_its_place(settings: str, problem: str) -> None:
    (found,) = problems(f"proxies: {{main: {settings}}}")
    assert found.startswith(f"proxies.main.{problem}")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "proxies: is missing"),
        ("proxies:", "proxies: is missing"),
        ("proxies: {}", "proxies: is empty"),
        ("proxies: [a]", "proxies: is not a mapping"),
        ("proxies: {'': }", "proxies.: String should have at least 1 character"),
        ("- a", "the file: is not a mapping"),
        ("proxies: {a: }\ndefault_cluster: b", "the file: default_cluster 'b' is not in proxies"),
        ("proxies: {a: }\ngrpc_addr: 19091", "grpc_addr: is not host:port (got '19091')"),
        ("proxies: {a: }\ngrpc_adr: x", "grpc_adr: is not a known setting"),
        ("proxies: {a: }\ntls: {key_path: /k}", "tls: certificate_path and key_path must be set together"),
        ("proxies: {a: }\ntls: {client_ca_path: /c}", "tls: client_ca_path needs certificate_path"),
        ("proxies: {a: , a: }", "not valid YAML: duplicate key (line 1, column 16)"),
        ("proxies: {a: [}", "not valid YAML: "),
        ("proxies:\n\t- a", "not valid YAML: found character that cannot start any token (line 2, column 1)"),
        ("? [a]\n: b", "not valid YAML: a key is not a string (line 1, column 3)"),
        ("proxies: \x07", "not valid YAML: a character that YAML does not allow"),
        ("proxies: &a {b: *a}", "proxies.b.b: is not a known setting"),
        ("a: " + "[" * 5_000, "not valid YAML: "),
    ],
)
def test_invalid_file(text: str, problem: str) -> None:
    assert problems(text)[0].startswith(problem)


def test_all_errors_are_reported_at_once() -> None:
    found = problems("proxies: {a: {consumer: {disabled: x, max_retries: x}}, b: {producer: {timeout: x}}}\nx: y")
    assert [line.partition(":")[0] for line in found] == [
        "proxies.a.consumer.disabled",
        "proxies.a.consumer.max_retries",
        "proxies.b.producer.timeout",
        "x",
    ]


# ---- passwords


def test_password_is_in_no_repr_or_dump() -> None:
    file = in_proxy(f"{{net: {{sasl: {{enable: true, user: u, password: '{SECRET.replace(chr(39), chr(39) * 2)}'}}}}}}")
    clusters = pixy_clusters(file, BASE)
    assert clusters[0].options["sasl.password"] == SECRET
    assert SECRET not in f"{file!r} {file} {clusters!r} {file.model_dump()!r} {file.model_dump_json()}"


@pytest.mark.parametrize(
    "line",
    [
        "sasl: {password: [hunter2]}",
        "sasl: {password: {hunter2: x}}",
        "sasl: hunter2",
        "sasl: [hunter2]",
        "sasl: {password: *hunter2}",
        "sasl: {password: !hunter2 x}",
        "sasl: {password: 'hunter2}",
        "sasl: {password: hunter2, password: hunter2}",
        "sasl: {password: hunter2, user: {}}",
        "sasl: {password: @hunter2}",
        "sasl: {password: hunter2",
        "sasl: {enable: hunter2}",
        "password: hunter2",
        'sasl: {password: "\\hunter2"}',
        "sasl: {password: %hunter2}",
        "sasl: {passwort: hunter2}",
    ],
)
def test_password_is_in_no_error(line: str) -> None:
    found = problems(f"proxies: {{main: {{net: {{{line}}}}}}}")
    assert "hunter2" not in "".join(found).replace("password.hunter2", "")
