"""The topic of keys in Kafka: made with its settings, and read from its start by a thread.

It has one partition, so that its order decides, and the log's time, so that no gateway's clock matters. It keeps
records for twice the time that is needed. No group reads it: each gateway reads all.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from typing import Any

import structlog
from confluent_kafka import (
    OFFSET_BEGINNING,
    TIMESTAMP_LOG_APPEND_TIME,
    Consumer,
    KafkaException,
    Message,
    TopicPartition,
)
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its stubs export only the first
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)
from confluent_kafka.cimpl import NewTopic

from dexorder_common.kafka.client_errors import error_text
from dexorder_common.kafka.new_topics import create_topics
from dexorder_common.model.errors import Unavailable
from dexorder_gateway.keys.claims import KEPT_MS
from dexorder_gateway.keys.ledger import Read, Reader, Take

log = structlog.get_logger(__name__)
PARTITION = 0
TOPIC_CONFIG = {
    "message.timestamp.type": "LogAppendTime",
    "cleanup.policy": "delete",
    "retention.ms": str(2 * KEPT_MS),
    "segment.ms": str(KEPT_MS // 2),
}
_OPTIONS: dict[str, Any] = {
    "group.id": "dexorder-keys",  # librdkafka needs one; it never commits
    "enable.auto.commit": False,
    "auto.offset.reset": "earliest",
    "allow.auto.create.topics": False,
    "isolation.level": "read_uncommitted",
    "fetch.min.bytes": 1,
}
_POLL_SECONDS = 0.25
_AT_ONCE = 500
_QUERY_SECONDS = 10.0


async def prepare(admin: AdminClient, topic: str, *, replication: int) -> None:
    """Make the topic, or give its settings to one that is there; raise Unavailable if that fails."""
    try:
        existing = await asyncio.to_thread(admin.list_topics, timeout=_QUERY_SECONDS)
        new = NewTopic(topic, num_partitions=1, replication_factor=replication, config=TOPIC_CONFIG)
        made = topic not in existing.topics and await create_topics(admin, [new])
    except KafkaException as error:
        raise Unavailable(f"topic {topic!r}, for idempotency keys, can't be made: {error_text(error)}") from error
    if not made:
        await _adopt(admin, topic)


async def _adopt(admin: AdminClient, topic: str) -> None:
    """Set the settings of a topic that was made by an operator, or by a broker that creates topics by itself."""
    entries = [
        ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in TOPIC_CONFIG.items()
    ]
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
    try:
        changed = admin.incremental_alter_configs([resource], request_timeout=_QUERY_SECONDS)
        await asyncio.to_thread(changed[resource].result)
    except KafkaException as error:
        log.warning("the settings of a topic can't be set", topic=topic, reason=error_text(error))


class TopicReader(Reader):
    """Reads until it is closed; starts at once, in the running event loop.

    Args:
        options: Properties of the consumer.
        take: Called in the event loop with the records, in their order.
    """

    def __init__(self, topic: str, options: Mapping[str, Any], take: Take) -> None:
        self.failure = ""
        self._topic = topic
        self._options = {**options, **_OPTIONS}
        self._take = take
        self._loop = asyncio.get_running_loop()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="keys", daemon=True)
        self._thread.start()

    async def close(self) -> None:
        """Stop reading."""
        self._stopping.set()
        await asyncio.to_thread(self._thread.join)

    def _run(self) -> None:
        try:
            consumer = Consumer(self._options)
            try:
                consumer.assign([TopicPartition(self._topic, PARTITION, OFFSET_BEGINNING)])
                while not self._stopping.is_set():
                    self._read(consumer)
            finally:
                consumer.close()
        except Exception as error:
            self.failure = error_text(error)
            log.exception("the topic of keys is no longer read", topic=self._topic)

    def _read(self, consumer: Consumer) -> None:
        first = consumer.poll(_POLL_SECONDS)  # `consume` alone waits until it has as many as it may return
        if first is None:
            return
        messages = [first, *consumer.consume(_AT_ONCE, timeout=0)]
        records = [record for message in messages if (record := self._checked(message)) is not None]
        if records:
            asyncio.run_coroutine_threadsafe(self._pass_on(records), self._loop).result()

    def _checked(self, message: Message) -> Read | None:
        """Return a record; None, with the failure, for an error or a record without the log's time."""
        if (error := message.error()) is not None:
            self._fail(error.str())
            return None
        kind, at_ms = message.timestamp()
        if kind != TIMESTAMP_LOG_APPEND_TIME:
            self._fail(f"topic {self._topic!r} needs message.timestamp.type=LogAppendTime")
            return None
        self.failure = ""
        return Read(message.key() or b"", message.value() or b"", at_ms)

    def _fail(self, failure: str) -> None:
        if failure != self.failure:
            self.failure = failure
            log.warning("the topic of keys can't be read", topic=self._topic, reason=failure)

    async def _pass_on(self, records: list[Read]) -> None:
        self._take(records)
