"""Reads and writes a group's commits at once, in the thread that owns the consumer."""

from __future__ import annotations

import time
from collections.abc import Sequence

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

COORDINATOR_CHANGING = {
    KafkaError.NOT_COORDINATOR,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError._WAIT_COORD,
}
"""The group's coordinator is being found or moves."""
_AGAIN_SECONDS = 0.2


def committed(consumer: Consumer, partitions: Sequence[TopicPartition], timeout_seconds: float) -> list[TopicPartition]:
    """The commits of the consumer's group, through a coordinator that moves meanwhile.

    Raises:
        KafkaException: It is refused, or there is no answer in time.
    """
    deadline_s = time.monotonic() + timeout_seconds
    while True:
        try:
            found = consumer.committed(list(partitions), timeout=max(0.1, deadline_s - time.monotonic()))
            _raise_first(found)
        except KafkaException as error:
            if error.args[0].code() not in COORDINATOR_CHANGING or time.monotonic() + _AGAIN_SECONDS > deadline_s:
                raise
            time.sleep(_AGAIN_SECONDS)
        else:
            return found


def commit_now(consumer: Consumer, positions: Sequence[TopicPartition], timeout_seconds: float) -> None:
    """Commit and wait for the answer.

    Raises:
        KafkaException: It is refused, or the coordinator does not answer.
    """
    # A commit waits for a coordinator for most of a minute and cannot be told otherwise; this question can.
    committed(consumer, positions, timeout_seconds)
    _raise_first(consumer.commit(offsets=list(positions), asynchronous=False) or ())


def metadata_of(part: TopicPartition) -> str:
    """A commit's metadata; bytes that are no text can only be somebody else's."""
    try:
        return part.metadata or ""
    except UnicodeDecodeError as error:
        return error.object.decode(errors="replace")


def _raise_first(partitions: Sequence[TopicPartition]) -> None:
    for part in partitions:
        if part.error is not None:
            raise KafkaException(part.error)
