"""Topic of one test, seen by Kafka: its records, and the commits of groups."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Self

import tenacity
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from tests.rig.kafka import create_topic

Record = tuple[int, str, bytes, Mapping[str, str]]
"""Partition, key, value, headers."""
_WAIT_SECONDS = 60.0
_COORDINATOR_MOVES = (
    KafkaError.NOT_COORDINATOR,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
)


def _passes(error: BaseException) -> bool:
    """Return whether a busy broker is moving the group's coordinator."""
    return isinstance(error, KafkaException) and error.args[0].code() in _COORDINATOR_MOVES


class TopicLog:
    """Topic with one writer; a context manager that closes the connections.

    Attributes:
        name: Name of the topic.
        ends: Partition -> offset after the last written record; partitions without one are absent.
    """

    def __init__(self, kafka: str, partitions: int) -> None:
        self.name = create_topic(kafka, partitions)
        self.ends: dict[int, int] = {}
        self._parts = [TopicPartition(self.name, partition) for partition in range(partitions)]
        self._options: dict[str, Any] = {"bootstrap.servers": kafka, "log_level": 2, "reconnect.backoff.max.ms": 500}
        self._producer = Producer({**self._options, "linger.ms": 5, "acks": "all"})
        self._readers: dict[str, Consumer] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for reader in self._readers.values():
            reader.close()

    def write(self, records: Iterable[Record]) -> None:
        """Write records, each partition's in order; return when Kafka has all of them."""
        for partition, key, value, headers in [*records]:  # all made before the first is sent: they arrive together
            self._producer.produce(
                self.name,
                value,
                key=key.encode(),
                partition=partition,
                on_delivery=self._written,
                headers=[(name, text.encode()) for name, text in headers.items()],
            )
        assert self._producer.flush(_WAIT_SECONDS) == 0

    @tenacity.retry(
        retry=tenacity.retry_if_exception(_passes),
        wait=tenacity.wait_fixed(0.2),
        stop=tenacity.stop_after_delay(_WAIT_SECONDS),
        reraise=True,
    )
    def committed(self, group: str) -> dict[int, int]:
        """Return partition -> committed offset; partitions without a commit are absent.

        Raises:
            KafkaException: Kafka does not answer, or refuses permanently.
        """
        if group not in self._readers:  # it never subscribes, so it is not a member
            self._readers[group] = Consumer({**self._options, "group.id": group})
        found = self._readers[group].committed(self._parts, timeout=_WAIT_SECONDS)
        for part in found:
            if part.error is not None:
                raise KafkaException(part.error)
        return {part.partition: part.offset for part in found if part.offset >= 0}

    def _written(self, error: KafkaError | None, message: Any) -> None:
        assert error is None, error
        self.ends[message.partition()] = max(self.ends.get(message.partition(), 0), message.offset() + 1)
