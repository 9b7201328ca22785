"""Records that are written together, and what becomes of each."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from services.common.model.errors import SuiteError

Headers = list[tuple[str, str | bytes | None]]
NewRecord = tuple[bytes | None, bytes | None, Headers | None, int]
"""Key, value, headers, milliseconds since the epoch; None for no key, a null value, no headers; 0 for now."""


class Batch:
    """Records for one topic, in order.

    Made and waited for on the event loop; ``RecordProducer`` queues them and learns in its thread where they are.

    Attributes:
        partitions: Where each record is; -1 while that is not known, and where it failed.
        offsets: Likewise.
        failures: Index and reason of those that failed.
        done: Set, to None, when it is known what became of all of them; raises what ``fail`` was told.
        next: Index of the first record that was not queued yet.
        queued: Records that were, without those that failed at once.
        reported: Of these, the ones of which it is known what became of them; counted in the producer's thread.
        settled: Of these, the ones of which the event loop knows it.
        touched: Whether the producer's thread has something to tell.
        expired: Whether it was answered before all was known; what is reported later tells nobody anything.
    """

    def __init__(self, topic: str, records: Sequence[NewRecord]) -> None:
        self.topic = topic
        self.records = records
        self.partitions = [-1] * len(records)
        self.offsets = [-1] * len(records)
        self.failures: list[tuple[int, SuiteError]] = []
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.next = self.queued = self.reported = self.settled = 0
        self.touched = self.expired = False

    @property
    def is_queued(self) -> bool:
        """Whether all of it was."""
        return self.next == len(self.records)

    def value_bytes(self, index: int) -> int:
        """Size of a record's value."""
        return len(self.records[index][1] or b"")

    def fail_the_rest(self, reason: SuiteError) -> None:
        """What was not queued yet never will be."""
        self.failures += [(index, reason) for index in range(self.next, len(self.records))]
        self.next = len(self.records)

    def expire(self, reason: SuiteError) -> bool:
        """Whether just now what is not known yet counts as failed."""
        if self.done.done():
            return False
        self.expired = True
        self.fail_the_rest(reason)
        known = {index for index, _ in self.failures}
        self.failures += [(i, reason) for i, place in enumerate(self.partitions) if place < 0 and i not in known]
        self._finish()
        return True

    def fail(self, error: Exception) -> None:
        """It can't be known what became of it, for a reason nobody foresaw: ``done`` raises that."""
        if not self.done.done():
            self.done.set_exception(error)

    def finish_if_settled(self) -> bool:
        """Whether just now it became known what became of all of it."""
        # The future of a stream that went away is cancelled.
        if not self.is_queued or self.settled < self.queued or self.done.done():
            return False
        self._finish()
        return True

    def _finish(self) -> None:
        self.failures.sort(key=lambda failure: failure[0])
        self.done.set_result(None)
