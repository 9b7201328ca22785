"""A Produce stream between its requests and its responses."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass

from services.gateway.kafkapixy.batches import Batch


@dataclass(frozen=True, slots=True)
class NumberedBatch:
    """Batch with the caller's number of it, and the bytes of its records."""

    batch_id: int
    batch: Batch
    size: int


class ProduceStream:
    """One task adds batches, in order, and has them written; another takes them, in order, to answer them.

    Batches of a stream that was cancelled are written all the same; their outcome is dropped.

    Args:
        max_records: Maximum number of records of the batches that are not answered.
        max_bytes: Maximum size of these records.
    """

    def __init__(self, max_records: int, max_bytes: int) -> None:
        self._max_records = max_records
        self._max_bytes = max_bytes
        self._records = self._bytes = 0
        self._unanswered: deque[NumberedBatch] = deque()
        self._room = asyncio.Event()
        self._added = asyncio.Event()
        self._ended = False
        self._failure: Exception | None = None

    async def add(self, numbered: NumberedBatch) -> None:
        """Wait until there is room for a batch, which the only one always has, and add it; it will be answered."""
        records, size = len(numbered.batch.records), numbered.size
        while self._unanswered and (
            self._records + records > self._max_records or self._bytes + size > self._max_bytes
        ):
            self._room.clear()
            await self._room.wait()
        self._records += records
        self._bytes += size
        self._unanswered.append(numbered)
        self._added.set()

    def end(self, failure: Exception | None = None) -> None:
        """Note that no more batches come; the stream ends after the other answers, with ``failure`` if given."""
        self._ended = True
        self._failure = failure
        self._added.set()

    async def answers(self) -> AsyncIterator[NumberedBatch]:
        """Yield the batches with their outcome, then raise the failure given to ``end``.

        A batch counts as answered when the next one is requested.
        """
        while self._unanswered or not self._ended:
            if not self._unanswered:
                self._added.clear()
                await self._added.wait()
                continue
            numbered = self._unanswered[0]
            await numbered.batch.done
            yield numbered
            self._unanswered.popleft()
            self._records -= len(numbered.batch.records)
            self._bytes -= numbered.size
            self._room.set()
        if self._failure is not None:
            raise self._failure
