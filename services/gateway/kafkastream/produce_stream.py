"""A Produce stream between its requests and its answers."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import dataclass

from services.gateway.kafkapixy.batches import Batch
from services.gateway.kafkastream.flow import Window


@dataclass(frozen=True, slots=True)
class NumberedBatch:
    """A batch and the caller's number of it.

    Attributes:
        size: Bytes of its records.
    """

    batch_id: int
    batch: Batch
    size: int


class ProduceStream:
    """One task admits batches, in order, and sees that they are written; another takes them, in order, to be answered.

    What became of a batch whose stream is gone does not matter to anyone, it is written all the same.
    """

    def __init__(self, window: Window) -> None:
        self._window = window
        self._unanswered: deque[NumberedBatch] = deque()
        self._room = asyncio.Event()
        self._came = asyncio.Event()
        self._over = False
        self._failure: Exception | None = None

    async def admit(self, numbered: NumberedBatch) -> None:
        """Wait until there is room for a batch; it will be answered."""
        count = len(numbered.batch.records)
        while not self._window.fits(count, numbered.size):
            self._room.clear()
            await self._room.wait()
        self._window.add(count, numbered.size)
        self._unanswered.append(numbered)
        self._came.set()

    def end(self, failure: Exception | None = None) -> None:
        """No more batches; after the answers to the others the stream ends, with this failure if there is one."""
        self._over = True
        self._failure = failure
        self._came.set()

    async def answers(self) -> AsyncIterator[NumberedBatch]:
        """The batches as they are done. One that was given out counts as answered when the next is asked for.

        Raises:
            Exception: As ``end`` was told.
        """
        while self._unanswered or not self._over:
            if not self._unanswered:
                self._came.clear()
                await self._came.wait()
                continue
            numbered = self._unanswered.popleft()
            await numbered.batch.done
            yield numbered
            self._window.remove(len(numbered.batch.records), numbered.size)
            self._room.set()
        if self._failure is not None:
            raise self._failure
