"""Creates the topics the suite needs; what exists is left alone."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import structlog
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from services.gateway.config import WantedTopic

log = structlog.get_logger(__name__)


def missing_topics(wanted: Sequence[WantedTopic], existing: Mapping[str, int]) -> list[WantedTopic]:
    """Those of the wanted topics that are not there. ``existing``: name to partitions."""
    return [topic for topic in wanted if topic.name not in existing]


async def create_topics(admin: AdminClient, topics: Sequence[WantedTopic], *, replication: int) -> None:
    """Create them; one that somebody else created meanwhile is fine.

    Raises:
        KafkaException: The cluster refuses one or can't be reached; the others may have been created.
    """
    created = admin.create_topics(
        [NewTopic(t.name, num_partitions=t.partitions, replication_factor=replication) for t in topics],
        operation_timeout=10.0,
        request_timeout=10.0,
    )
    answers = await asyncio.gather(*(asyncio.wrap_future(f) for f in created.values()), return_exceptions=True)
    for topic, answer in zip(topics, answers, strict=True):
        if answer is None:
            log.info("topic created", topic=topic.name, partitions=topic.partitions)
        elif not isinstance(answer, KafkaException) or answer.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise answer
