"""Creation of topics."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import structlog
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

log = structlog.get_logger(__name__)
_TIMEOUT_SECONDS = 10.0


async def create_topics(admin: AdminClient, topics: Sequence[NewTopic]) -> set[str]:
    """Create topics; return the names of the new ones.

    Raises:
        KafkaException: One can't be created; others may have been.
    """
    created = admin.create_topics(list(topics), operation_timeout=_TIMEOUT_SECONDS, request_timeout=_TIMEOUT_SECONDS)
    answers = await asyncio.gather(*(asyncio.wrap_future(f) for f in created.values()), return_exceptions=True)
    made = set[str]()
    for topic, answer in zip(topics, answers, strict=True):
        if answer is None:
            made.add(topic.topic)
            log.info("topic created", topic=topic.topic, partitions=topic.num_partitions)
        elif not isinstance(answer, KafkaException) or answer.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise answer
    return made
