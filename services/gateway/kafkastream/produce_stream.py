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


class Window:
    """Limit of the batches of a Produce stream that were read and not answered.

    Args:
        records: Maximum number of their records.
        size: Maximum number of their bytes.
    """

    def __init__(self, records: int, size: int) -> None:
        self._max_records = records
        self._max_bytes = size
        self._records = self._bytes = self._batches = 0

    def fits(self, records: int, size: int) -> bool:
        """Return whether a batch may be added; always if there is no other."""
        return not self._batches or (
            self._records + records <= self._max_records and self._bytes + size <= self._max_bytes
        )

    def add(self, records: int, size: int) -> None:
        """Add a batch."""
        self._count(1, records, size)

    def remove(self, records: int, size: int) -> None:
        """Remove a batch that was answered."""
        self._count(-1, records, size)

    def _count(self, sign: int, records: int, size: int) -> None:
        self._batches += sign
        self._records += sign * records
        self._bytes += sign * size


class ProduceStream:
    """One task adds batches, in order, and has them written; another takes them, in order, to answer them.

    Batches of a stream that was cancelled are written all the same; their outcome is dropped.
    """

    def __init__(self, window: Window) -> None:
        self._window = window
        self._unanswered: deque[NumberedBatch] = deque()
        self._room = asyncio.Event()
        self._added = asyncio.Event()
        self._ended = False
        self._failure: Exception | None = None

    async def add(self, numbered: NumberedBatch) -> None:
        """Wait until there is room for a batch, and add it; it will be answered."""
        count = len(numbered.batch.records)
        while not self._window.fits(count, numbered.size):
            self._room.clear()
            await self._room.wait()
        self._window.add(count, numbered.size)
        self._unanswered.append(numbered)
        self._added.set()

    def end(self, failure: Exception | None = None) -> None:
        """Note that no more batches come; the stream ends after the other answers, with ``failure`` if given."""
        self._ended = True
        self._failure = failure
        self._added.set()

    async def answers(self) -> AsyncIterator[NumberedBatch]:
        """Yield the batches with their outcome; one is answered when the next is requested. Raises ``end``'s failure."""
        while self._unanswered or not self._ended:
            if not self._unanswered:
                self._added.clear()
                await self._added.wait()
                continue
            numbered = self._unanswered.popleft()
            await numbered.batch.done
            yield numbered
            self._window.remove(len(numbered.batch.records), numbered.size)
            self._room.set()
        if self._failure is not None:
            raise self._failure
