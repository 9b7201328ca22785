"""Fixtures for a Kafka broker: ``kafka`` is shared by the whole run."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dexorder.setup.config import SetupError
from dexorder.setup.jars import jar_folder
from dexorder.testing.kafka import RunningKafka, create_topic


@pytest.fixture(scope="session")
def kafka_jars() -> Path:
    """Return the folder of Kafka's jars; a run without them fails instead of skipping these tests."""
    try:
        return jar_folder("kafka")
    except SetupError as error:
        pytest.fail(f"This test needs the embedded Kafka. {error}", pytrace=False)


@pytest.fixture(scope="session")
def kafka(kafka_jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Run one broker for the whole session and return its ``bootstrap.servers``."""
    broker = RunningKafka(tmp_path_factory.mktemp("kafka"))
    yield broker.bootstrap
    broker.stop()


@pytest.fixture
def kafka_topic(kafka: str) -> Callable[[int], str]:
    """Return a function that creates a new topic with a number of partitions and returns its name."""

    def make(partitions: int) -> str:
        return create_topic(kafka, partitions)

    return make
