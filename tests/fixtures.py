"""Fixtures that a run starts once: Kafka, Spark, gateways. Each imports what it needs when a test asks for it.

A test of a pure module pays for none of them.
"""

from __future__ import annotations

import itertools
import os
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from dexorder_common.lake.catalog import CatalogSettings
    from tests.gateway_thread import Filled, GatewayThread, MakeTopic, StartGateway, Write
    from tests.two_brokers import TwoBrokers

CREATES_TOPICS = "DEXORDER_TEST_AUTO_CREATE"
"""Environment variable: if it is set, the broker of ``kafka`` creates topics automatically, as a stock broker does."""

needs_missing_topics = pytest.mark.skipif(
    CREATES_TOPICS in os.environ, reason="the broker creates every topic that is asked for"
)

_catalog_numbers = itertools.count()


def jars(name: str) -> Path:
    """Return the folder of Kafka's or Spark's jars; a run without them fails instead of skipping the test."""
    from dexorder.setup.config import SetupError
    from dexorder.setup.jars import jar_folder
    from dexorder.setup.java import java_env

    try:
        folder = jar_folder(name)
        if name == "spark":
            os.environ.update(java_env())
    except SetupError as error:
        pytest.fail(f"This test needs {name.capitalize()}. {error}", pytrace=False)
    return folder


@pytest.fixture(scope="session")
def kafka_jars() -> Path:
    """Return the folder of Kafka's jars."""
    return jars("kafka")


@pytest.fixture(scope="session")
def kafka(kafka_jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Run one broker for the whole session and return its ``bootstrap.servers``."""
    from tests.rig.kafka import RunningKafka

    creates = "true" if CREATES_TOPICS in os.environ else "false"
    settings = f"auto.create.topics.enable={creates}\ngroup.min.session.timeout.ms=1000\n"
    broker = RunningKafka(tmp_path_factory.mktemp("kafka"), properties=lambda *_: settings)
    yield broker.bootstrap
    broker.stop()


@pytest.fixture
def kafka_topic(kafka: str) -> Callable[[int], str]:
    """Return a function that creates a new topic with a number of partitions and returns its name."""
    from tests.rig.kafka import create_topic

    return lambda partitions: create_topic(kafka, partitions)


@pytest.fixture(scope="module")
def two_brokers(kafka_jars: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoBrokers]:
    """Run two brokers for the tests of a module."""
    from tests.two_brokers import TwoBrokers

    cluster = TwoBrokers(tmp_path_factory.mktemp("brokers"))
    yield cluster
    cluster.stop()


@pytest.fixture
def start_gateway(kafka: str) -> Iterator[StartGateway]:
    """Start gateways with these settings; they stop with the test."""
    from tests.gateway_thread import GatewayThread

    running: list[GatewayThread] = []

    def start(**given: Any) -> GatewayThread:
        running.append(GatewayThread(**{"kafka": kafka, "drain_seconds": 0.0, **given}))
        return running[-1].wait_ready()

    yield start
    for each in running:
        each.stop()


@pytest.fixture
def filled(start_gateway: StartGateway, kafka_topic: MakeTopic, write: Write) -> Filled:
    """Return a function that makes a topic with this many records, and starts a gateway with these settings."""

    def make(records: int, *, partitions: int = 1, **given: Any) -> tuple[str, GatewayThread]:
        from tests.gateway_thread import numbers

        topic = kafka_topic(partitions)
        write(topic, *numbers(records))
        return topic, start_gateway(**given)

    return make


@pytest.fixture(scope="module")
def shared_gateway(kafka: str) -> Iterator[GatewayThread]:
    """Run one gateway for all tests of a module with default settings."""
    from tests.gateway_thread import GatewayThread

    started = GatewayThread(kafka=kafka, drain_seconds=0.0, long_polling_timeout_ms=500).wait_ready()
    yield started
    started.stop()


@pytest.fixture
def write(kafka: str) -> Write:
    """Write values to a partition without the gateway."""
    from confluent_kafka import Producer

    from tests.gateway_thread import WAIT_SECONDS

    def write(topic: str, *values: bytes, partition: int = 0) -> None:
        producer = Producer({"bootstrap.servers": kafka, "log_level": 2})
        for value in values:
            producer.produce(topic, value, partition=partition)
        assert producer.flush(WAIT_SECONDS) == 0

    return write


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Return a session as the driver builds it, with an unused catalog."""
    jars("spark")
    from dexorder_common.lake.catalog import CatalogSettings
    from dexorder_spark.config import SparkSettings
    from dexorder_spark.runtime.session import build_session

    catalog = CatalogSettings.local(tmp_path_factory.mktemp("spark"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # pyspark's own
        session = build_session(SparkSettings(listen="127.0.0.1:0", metrics_listen="", poll_ms=20), catalog)
    yield session
    session.stop()


@pytest.fixture
def catalog(tmp_path: Path) -> CatalogSettings:
    """Return settings of a catalog for one test, with the pipeline's tables."""
    from dexorder_common.lake.catalog import CatalogSettings
    from dexorder_spark.tables.table import TABLES
    from tests.empty_tables import make_tables

    settings = CatalogSettings.local(tmp_path, f"test{next(_catalog_numbers)}")
    make_tables(settings.load(), TABLES)
    return settings


@pytest.fixture
def trading(spark: SparkSession, catalog: CatalogSettings) -> CatalogSettings:
    """Return the settings of the same catalog, configured in Spark as well."""
    from dexorder_spark.runtime.session import catalog_conf

    for key, value in catalog_conf(catalog).items():
        spark.conf.set(key, value)
    return catalog
