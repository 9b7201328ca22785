"""Commits of a consumer group, read and written without being a member.

By a consumer that never subscribes: the admin client can do the same, but librdkafka 2.16 kills the process when the
group's coordinator is not ready and the asking client has no group (seen at the first question to a fresh broker).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from confluent_kafka import Consumer, KafkaException, TopicPartition

from services.common.kafka.client_errors import COORDINATOR_CHANGING
from services.common.model.errors import Unavailable

T = TypeVar("T")
REQUEST_TIMEOUT_S = 5.0

_PAUSE_S = 0.05


def _patiently(call: Callable[[], T]) -> T:
    """Repeat a call while the coordinator is not ready."""
    deadline_s = time.monotonic() + REQUEST_TIMEOUT_S
    while True:
        try:
            return call()
        except KafkaException as error:
            if error.args[0].code() not in COORDINATOR_CHANGING or time.monotonic() > deadline_s:
                raise
        time.sleep(_PAUSE_S)


class GroupOffsets:
    """One group's commits of one topic. Calls run one after the other."""

    def __init__(self, options: Mapping[str, Any], group: str, topic: str) -> None:
        self._topic = topic
        self._group = group
        # The session's time limit is also how long a commit waits for a coordinator.
        limits = {"enable.auto.commit": False, "session.timeout.ms": 6_000}
        self._consumer = Consumer({**options, **limits, "group.id": group})
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="group")

    async def committed(self, partitions: Iterable[int]) -> dict[int, int]:
        """Partition -> committed offset; partitions without a commit are absent.

        Raises:
            KafkaException: Kafka does not answer in time.
        """
        asked = [TopicPartition(self._topic, p) for p in partitions]
        answer = await self._run(lambda: _patiently(lambda: self._consumer.committed(asked, timeout=REQUEST_TIMEOUT_S)))
        for part in answer:
            if part.error is not None:
                raise Unavailable(f"commit of group {self._group}, partition {part.partition}: {part.error.str()}")
        return {p.partition: p.offset for p in answer if p.offset >= 0}

    async def commit(self, positions: Mapping[int, int]) -> None:
        """Commit partition -> offset; returns once Kafka has it.

        Raises:
            KafkaException: Kafka refuses, for example because the group has members.
            Unavailable: Kafka does not answer in time, or refuses one partition.
        """
        wanted = [TopicPartition(self._topic, p, o) for p, o in positions.items()]
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                answer = await self._run(
                    lambda: _patiently(lambda: self._consumer.commit(offsets=wanted, asynchronous=False))
                )
        except TimeoutError:
            raise Unavailable(f"group {self._group} was not committed in {REQUEST_TIMEOUT_S:g} s") from None
        for part in answer or ():
            if part.error is not None:
                raise Unavailable(f"commit of group {self._group}, partition {part.partition}: {part.error.str()}")

    async def close(self, *, reachable: bool) -> None:
        """Give the connections up; without Kafka closing would wait for it."""
        if reachable:
            await self._run(self._consumer.close)
        self._thread.shutdown(wait=False)

    async def _run(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)
