"""Commits of a group, read and written at once by a consumer, in the thread that owns it; and the ids of topics."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Sequence
from typing import Any

from confluent_kafka import Consumer, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient

from dexorder_common.kafka.client_errors import COORDINATOR_CHANGING

_RETRY_SECONDS = 0.2


def committed(consumer: Consumer, partitions: Sequence[TopicPartition], timeout_seconds: float) -> list[TopicPartition]:
    """Return the commits of the consumer's group; retry while its coordinator changes, then raise KafkaException."""
    deadline_s = time.monotonic() + timeout_seconds
    while True:
        try:
            found = consumer.committed(list(partitions), timeout=max(0.1, deadline_s - time.monotonic()))
            _raise_first(found)
        except KafkaException as error:
            if error.args[0].code() not in COORDINATOR_CHANGING or time.monotonic() + _RETRY_SECONDS > deadline_s:
                raise
            time.sleep(_RETRY_SECONDS)
        else:
            return found


def commit_now(consumer: Consumer, positions: Sequence[TopicPartition], timeout_seconds: float) -> None:
    """Commit and wait for the answer; raise KafkaException if Kafka refuses or does not answer."""
    # A commit waits for a coordinator for up to a minute, which can't be configured; this query can.
    committed(consumer, positions, timeout_seconds)
    _raise_first(consumer.commit(offsets=list(positions), asynchronous=False) or ())


def metadata_of(part: TopicPartition) -> str:
    """Return a commit's metadata; bytes that are not UTF-8 are not ours."""
    try:
        return part.metadata or ""
    except UnicodeDecodeError as error:
        return error.object.decode(errors="replace")


async def topic_ids(admin: AdminClient, topics: Collection[str], timeout_seconds: float) -> dict[str, str]:
    """Return the ids that topics got when they were created; none for a topic that does not exist or is not known."""
    if not topics:
        return {}
    described = admin.describe_topics(TopicCollection(sorted(topics)), request_timeout=timeout_seconds)
    found = await asyncio.gather(*map(asyncio.wrap_future, described.values()), return_exceptions=True)
    answers: Any = zip(described, found, strict=True)
    return {topic: str(answer.topic_id) for topic, answer in answers if not isinstance(answer, BaseException)}


def _raise_first(partitions: Sequence[TopicPartition]) -> None:
    for part in partitions:
        if part.error is not None:
            raise KafkaException(part.error)
