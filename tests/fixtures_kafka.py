"""Fixtures for a Kafka broker: ``kafka`` is shared by the whole run."""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from dexorder.setup.config import SetupError
from dexorder.setup.jars import jar_folder
from dexorder.supervisor.kafka import HOST, new_cluster_id
from dexorder.testing.kafka import RunningKafka, create_topic
from dexorder.testing.processes import free_ports, until


@pytest.fixture(scope="session")
def kafka_jars() -> Path:
    """Return the folder of Kafka's jars; a run without them fails instead of skipping these tests."""
    try:
        return jar_folder("kafka")
    except SetupError as error:
        pytest.fail(f"This test needs the embedded Kafka. {error}", pytrace=False)


CREATES_TOPICS = "DEXORDER_TEST_AUTO_CREATE"
"""Environment variable: if it is set, the broker of ``kafka`` creates topics automatically, as a stock broker does."""


needs_missing_topics = pytest.mark.skipif(
    CREATES_TOPICS in os.environ, reason="the broker creates every topic that is asked for"
)


@pytest.fixture(scope="session")
def kafka(kafka_jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Run one broker for the whole session and return its ``bootstrap.servers``."""
    creates = "true" if CREATES_TOPICS in os.environ else "false"
    settings = f"auto.create.topics.enable={creates}\n"
    broker = RunningKafka(tmp_path_factory.mktemp("kafka"), properties=lambda *_: settings)
    yield broker.bootstrap
    broker.stop()


@pytest.fixture
def kafka_topic(kafka: str) -> Callable[[int], str]:
    """Return a function that creates a new topic with a number of partitions and returns its name."""

    def make(partitions: int) -> str:
        return create_topic(kafka, partitions)

    return make


class TwoBrokers:
    """Cluster of two brokers; the first is the controller too. The groups' offsets are on both."""

    SETTINGS = "offsets.topic.replication.factor=2\n"

    def __init__(self, folder: Path) -> None:
        self.second_data = folder / "2/kafka/data"
        self._folder = folder
        first, controller, second, unused = free_ports(4)
        self._second_ports = second, unused
        self._voters = f"1@{HOST}:{controller}"
        self.first = RunningKafka(folder / "1", (first, controller), properties=lambda *_: self.SETTINGS)
        meta = (folder / "1/kafka/data/meta.properties").read_text()
        data = self.second_data
        data.mkdir(parents=True)
        lines = [line for line in meta.splitlines() if not line.startswith(("node.id", "directory.id"))]
        (data / "meta.properties").write_text("\n".join([*lines, "node.id=2", f"directory.id={new_cluster_id()}", ""]))
        self.second: RunningKafka | None = None
        self.start_second()
        self.bootstrap = f"{self.first.bootstrap},{HOST}:{second}"

    def start_second(self) -> None:
        """Start the second broker, and wait until the cluster has both."""

        def settings(port: int, _: int) -> str:
            own = f"process.roles=broker\nnode.id=2\nlisteners=PLAINTEXT://{HOST}:{port}\n"
            return f"{self.SETTINGS}{own}controller.quorum.voters={self._voters}\n"

        self.second = RunningKafka(self._folder / "2", self._second_ports, properties=settings)
        admin = AdminClient({"bootstrap.servers": self.first.bootstrap})
        until(lambda: len(admin.list_topics(timeout=10).brokers) == 2)

    def kill_second(self) -> None:
        """Kill the second broker; its partitions have no leader then."""
        if self.second is not None:
            self.second.stop(signal.SIGKILL)
            self.second = None

    def stop(self) -> None:
        """Kill both."""
        self.kill_second()
        self.first.stop(signal.SIGKILL)


@pytest.fixture(scope="module")
def two_brokers(kafka_jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoBrokers]:
    """Run two brokers for the tests of a module."""
    cluster = TwoBrokers(tmp_path_factory.mktemp("brokers"))
    yield cluster
    cluster.stop()
