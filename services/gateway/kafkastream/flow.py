"""How much may be on its way on a stream. Pure."""

from __future__ import annotations

from services.gateway.kafkapixy.pending_runs import Unacked
from services.gateway.kafkapixy.types import Demand

MAX_BATCH_RECORDS = 1_000
"""Of a response of a Consume stream."""
MAX_PRODUCE_RECORDS = 10_000
"""Of a request of a Produce stream: all others wait while it is read, and its answer has to fit into one response."""
MAX_RANGES = 10_000
"""Of a request of a Consume stream, likewise."""
MAX_REFUSED_ACKS = 1_000
"""Refused acks that wait for their caller to take them; with more than that its requests are not read."""
BATCH_BYTES = 1 << 20
"""A response is full with so many bytes: gRPC clients take 4 MiB if they are not told otherwise."""


class Window:
    """Batches of a Produce stream that were read and not answered.

    Args:
        records: Most of them.
        size: Most bytes of them.
    """

    def __init__(self, records: int, size: int) -> None:
        self._most_records = records
        self._most_bytes = size
        self._records = self._bytes = self._batches = 0

    def fits(self, records: int, size: int) -> bool:
        """Whether a batch may be taken; one always may when there is no other."""
        return not self._batches or (
            self._records + records <= self._most_records and self._bytes + size <= self._most_bytes
        )

    def add(self, records: int, size: int) -> None:
        """It was taken."""
        self._count(1, records, size)

    def remove(self, records: int, size: int) -> None:
        """Its answer was."""
        self._count(-1, records, size)

    def _count(self, sign: int, records: int, size: int) -> None:
        self._batches += sign
        self._records += sign * records
        self._bytes += sign * size


class Credit:
    """Records that the caller of a Consume stream is ready to take.

    Args:
        batch_records: Most records of a response; 0 for MOST_BATCH_RECORDS.
        most_held: How much it may have unacked before it gets nothing new.
    """

    def __init__(self, batch_records: int, max_unacked: Unacked) -> None:
        self._batch_records = min(batch_records or MAX_BATCH_RECORDS, MAX_BATCH_RECORDS)
        self._most_held = max_unacked
        self.left = 0

    def ask(self, caller: int) -> Demand:
        """What it would take now."""
        return Demand(caller, min(self.left, self._batch_records), BATCH_BYTES, self._most_held)
