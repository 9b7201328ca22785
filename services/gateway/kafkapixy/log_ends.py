"""Where the logs of the partitions that are read end; Kafka is asked now and then.

What a consumer knows of it comes with what it fetches, and it fetches nothing while its callers take nothing: just
then the lag grows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from concurrent.futures import wait
from typing import Any

import structlog
from confluent_kafka import IsolationLevel, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]

from services.gateway.kafkapixy.metrics import Place

log = structlog.get_logger(__name__)
_ASK_SECONDS = 3.0


class LogEnds:
    """For one event loop.

    Args:
        read_committed: Whether records of open transactions are beyond the end.
    """

    def __init__(self, admin: AdminClient, *, read_committed: bool) -> None:
        self._admin = admin
        self._isolation = IsolationLevel.READ_COMMITTED if read_committed else IsolationLevel.READ_UNCOMMITTED
        self._latest: Any = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        self._known: dict[Place, int] = {}

    def __call__(self, place: Place) -> int | None:
        """Where it ended when Kafka was asked last; for any thread."""
        return self._known.get(place)

    async def watch(self, places: Callable[[], Collection[Place]], every_seconds: float) -> None:
        """Keep up with what ``places`` gives. Never returns."""
        while True:
            await self._look(places())
            await asyncio.sleep(every_seconds)

    async def _look(self, places: Collection[Place]) -> None:
        known = {place: end for place, end in self._known.items() if place in places}
        if places:
            known |= await asyncio.to_thread(self._ask, places)
        self._known = known

    def _ask(self, places: Collection[Place]) -> dict[Place, int]:
        """Those that Kafka tells; a partition without a leader and a topic that is gone have none."""
        query: Any = {TopicPartition(topic, partition): self._latest for topic, partition in places}
        try:
            asked = self._admin.list_offsets(query, isolation_level=self._isolation, request_timeout=_ASK_SECONDS)
        except KafkaException as error:
            log.warning("could not ask for the logs' ends", reason=str(error))
            return {}
        done, _ = wait(asked.values(), 2 * _ASK_SECONDS)
        answered = ((place, future) for place, future in asked.items() if future in done and not future.exception())
        return {(place.topic, place.partition): future.result().offset for place, future in answered}
