"""Embedded broker: settings, command, durability of its records."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient

from dexorder.setup.config import SetupError
from dexorder.setup.java import Java
from dexorder.supervisor import kafka as broker
from tests.paths import ROOT
from tests.rig.kafka import RunningKafka, create_topic
from tests.rig.processes import free_ports

JAVA = Java(Path("/opt/java"), "21.0.8", "PATH")


def settings(text: str) -> dict[str, str]:
    return dict(line.split("=", 1) for line in text.splitlines())


def test_every_listener_is_on_loopback() -> None:
    found = settings(broker.kafka_properties(Path("/d/data"), port=9001, controller_port=9002))
    assert found["listeners"] == "PLAINTEXT://127.0.0.1:9001,CONTROLLER://127.0.0.1:9002"
    assert found["advertised.listeners"] == "PLAINTEXT://127.0.0.1:9001"
    assert found["controller.quorum.voters"] == "1@127.0.0.1:9002"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("auto.create.topics.enable", "false"),
        ("offsets.topic.replication.factor", "1"),
        ("transaction.state.log.replication.factor", "1"),
        ("transaction.state.log.min.isr", "1"),
        ("group.initial.rebalance.delay.ms", "0"),
        ("log.dirs", "/d/data"),
    ],
)
def test_one_node_needs_these_settings(name: str, value: str) -> None:
    assert settings(broker.kafka_properties(Path("/d/data"), port=1, controller_port=2))[name] == value


def test_backslash_in_a_path_is_escaped() -> None:
    assert "log.dirs=/d/a\\\\b\n" in broker.kafka_properties(Path("/d/a\\b"), port=1, controller_port=2)


def test_command_is_java_itself_with_a_bounded_heap() -> None:
    command = broker.kafka_command(JAVA, Path("/jars"), Path("/d/server.properties"))
    assert command[0] == "/opt/java/bin/java"
    assert command[-2:] == ["kafka.Kafka", "/d/server.properties"]
    assert command[command.index("-cp") + 1] == "/jars/*"
    assert f"-Xmx{broker.HEAP_MB}m" in command
    assert 256 <= broker.HEAP_MB <= 512


def test_cluster_ids_have_kafkas_form_and_differ() -> None:
    ids = {broker.new_cluster_id() for _ in range(300)}
    assert len(ids) == 300
    assert all(len(each) == 22 and not each.startswith("-") for each in ids)


def test_formatted_storage_is_unchanged(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "meta.properties").write_text("cluster.id=mine\n")
    # No such Java: formatting would fail.
    broker.format_storage(JAVA, Path("/jars"), tmp_path, port=1, controller_port=2)
    assert (tmp_path / "data" / "meta.properties").read_text() == "cluster.id=mine\n"


def test_second_broker_on_a_folder_is_refused_while_the_first_lives(tmp_path: Path) -> None:
    """The lock must outlive ``exec``: the first process takes it and becomes another program, as the broker does."""
    code = (
        "import os, sys; from pathlib import Path; from dexorder.supervisor import kafka\n"
        "kafka.hold_lock(Path(sys.argv[1]))\n"
        "os.execv('/bin/sh', ['/bin/sh', '-c', 'echo ready; exec cat'])\n"
    )
    root = ROOT
    command = [sys.executable, "-c", code, str(tmp_path)]
    with subprocess.Popen(command, cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == b"ready\n"
        with pytest.raises(SetupError, match=f"process {first.pid}, runs on"):
            broker.hold_lock(tmp_path)
        first.kill()
    os.close(broker.hold_lock(tmp_path))


def test_error_of_waiting_names_the_address() -> None:
    (port,) = free_ports(1)
    with pytest.raises(TimeoutError, match=f"127.0.0.1:{port} did not answer within 0.2 s"):
        broker.wait_ready(f"127.0.0.1:{port}", 0.2)


def produce(bootstrap: str, topic: str, value: bytes) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all"})
    errors: list[object] = []
    producer.produce(topic, value, on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(30) == 0
    assert errors == [None]


def read_one(bootstrap: str, topic: str, group: str) -> bytes:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "auto.offset.reset": "earliest"})
    try:
        consumer.subscribe([topic])
        message = consumer.poll(30)
        assert message is not None
        assert message.error() is None
        value = message.value()
        assert isinstance(value, bytes)
        return value
    finally:
        consumer.close()


@pytest.mark.smoke
@pytest.mark.kafka
def test_restarted_broker_has_its_records_and_cluster_id_after_a_kill(kafka_jars: Path, tmp_path: Path) -> None:
    first = RunningKafka(tmp_path)
    topic = create_topic(first.bootstrap, 1)
    produce(first.bootstrap, topic, b"kept")
    assert read_one(first.bootstrap, topic, "before") == b"kept"
    cluster = AdminClient({"bootstrap.servers": first.bootstrap}).list_topics(timeout=30).cluster_id
    first.stop(signal.SIGKILL)

    second = RunningKafka(tmp_path)
    try:
        assert read_one(second.bootstrap, topic, "after") == b"kept"
        assert AdminClient({"bootstrap.servers": second.bootstrap}).list_topics(timeout=30).cluster_id == cluster
    finally:
        second.stop()


@pytest.mark.kafka
def test_topic_with_a_typing_error_is_refused(kafka: str) -> None:
    producer = Producer({"bootstrap.servers": kafka, "topic.metadata.propagation.max.ms": 0, "log_level": 0})
    errors: list[object] = []
    producer.produce("no-such-topic", b"x", on_delivery=lambda error, _: errors.append(error))
    producer.flush(30)
    assert len(errors) == 1
    assert errors[0] is not None
