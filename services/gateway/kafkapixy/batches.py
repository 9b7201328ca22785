"""Batch of records that are written together, and the outcome of each."""

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
        partitions: Partition of each record; -1 while it is not known, and where the record failed.
        offsets: Offset of each record, likewise.
        failures: Index and error of the records that failed.
        done: Set to None when the outcome of all records is known; raises the error that ``fail`` got.
        next: Index of the first record that was not queued yet.
        queued: Records that were queued, without those that failed at once.
        reported: Queued records with a known outcome; counted in the producer's thread.
        settled: The same, as known on the event loop.
        has_reports: Whether the producer's thread has reports that the event loop does not know.
        expired: Whether it was answered before every outcome was known; later reports have no effect.
    """

    def __init__(self, topic: str, records: Sequence[NewRecord]) -> None:
        self.topic = topic
        self.records = records
        self.partitions = [-1] * len(records)
        self.offsets = [-1] * len(records)
        self.failures: list[tuple[int, SuiteError]] = []
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.next = self.queued = self.reported = self.settled = 0
        self.has_reports = self.expired = False

    @property
    def is_queued(self) -> bool:
        """True if all records were queued or failed."""
        return self.next == len(self.records)

    def value_bytes(self, index: int) -> int:
        """Return the size of a record's value."""
        return len(self.records[index][1] or b"")

    def fail_the_rest(self, reason: SuiteError) -> None:
        """Fail the records that were not queued yet."""
        self.failures += [(index, reason) for index in range(self.next, len(self.records))]
        self.next = len(self.records)

    def expire(self, reason: SuiteError) -> bool:
        """Fail the records without a known outcome; return False if there are none."""
        if self.done.done():
            return False
        self.expired = True
        self.fail_the_rest(reason)
        known = {index for index, _ in self.failures}
        self.failures += [(i, reason) for i, place in enumerate(self.partitions) if place < 0 and i not in known]
        self._finish()
        return True

    def fail(self, error: Exception) -> None:
        """Let ``done`` raise an unexpected error; the outcome stays unknown."""
        if not self.done.done():
            self.done.set_exception(error)

    def finish_if_settled(self) -> bool:
        """Set ``done`` if every outcome is known; return whether this call did."""
        # The future of a stream that went away is cancelled.
        if not self.is_queued or self.settled < self.queued or self.done.done():
            return False
        self._finish()
        return True

    def _finish(self) -> None:
        self.failures.sort(key=lambda failure: failure[0])
        self.done.set_result(None)
