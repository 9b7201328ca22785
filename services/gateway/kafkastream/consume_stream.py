"""A Consume stream between its requests and its responses: one more caller of a subscription."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from services.gateway.kafkapixy.pending_runs import Amount
from services.gateway.kafkapixy.subscription import Subscription
from services.gateway.kafkapixy.types import Deliveries, Demand, RefusedAck, Span

MAX_BATCH_RECORDS = 1_000
"""Records of a response."""
BATCH_BYTES = 1 << 20
"""A response with this many bytes is full: gRPC clients accept 4 MiB by default."""
MAX_REFUSED_ACKS = 1_000
"""Refused acks that wait to be sent; above it the stream's requests are not read."""


@dataclass(slots=True)
class Output:
    """Contents of the next response."""

    deliveries: Deliveries = field(default_factory=list)
    refused: list[RefusedAck] = field(default_factory=list)


class ConsumeStream:
    """One task passes the requests in, another takes the responses out; ``close`` must follow.

    Args:
        max_batch_records: Maximum number of records of a response; 0 for MAX_BATCH_RECORDS.
        max_unacked: Amount that the caller may have unacked before it gets nothing new.
    """

    def __init__(
        self, subscription: Subscription, max_batch_records: int, max_unacked: Amount, *, auto_ack: bool
    ) -> None:
        self._subscription = subscription
        self._max_batch_records = min(max_batch_records or MAX_BATCH_RECORDS, MAX_BATCH_RECORDS)
        self._max_unacked = max_unacked
        self._credit = 0
        self._auto_ack = auto_ack
        self._next = Output()
        self._changed = asyncio.Event()
        self._taken = asyncio.Event()
        self._no_more_requests = False
        self._failure: Exception | None = None
        self._number = subscription.attach(self)

    def close(self) -> None:
        """Give back the unacked records."""
        self._subscription.detach(self._number)

    async def request(self, credit: int, acks: Sequence[Span], give_backs: Sequence[Span]) -> None:
        """Apply one request; return when the next may come: a caller must take its refused acks to be read."""
        self._credit += credit
        if acks:
            self._next.refused += self._subscription.ack_spans(self._number, acks)
        if give_backs:
            self._subscription.give_back_spans(self._number, give_backs)
        self._changed.set()
        while len(self._next.refused) > MAX_REFUSED_ACKS:
            self._taken.clear()
            await self._taken.wait()

    def end(self) -> None:
        """Note that no more requests come."""
        self._no_more_requests = True
        self._changed.set()

    @property
    def done(self) -> bool:
        """Never while it waits: ``close`` ends that."""
        return False

    def demand(self) -> Demand:
        """Return what it would take now."""
        records = min(self._credit, self._max_batch_records)
        return Demand(self._number, records, BATCH_BYTES, self._max_unacked)

    def give(self, deliveries: Deliveries) -> None:
        """Take the records."""
        self._next.deliveries = deliveries
        self._credit -= sum(len(delivery.records) for delivery in deliveries)
        self._changed.set()

    def stop(self, error: Exception) -> None:
        """End the stream, also after an error in its requests. The first error counts."""
        self._failure = self._failure or error
        self._changed.set()

    async def next(self) -> Output | None:
        """Return the contents of the next response, None at the end; raise the error given to ``stop``."""
        while self._failure is None:
            if self._next.deliveries or self._next.refused:
                output = self._next
                self._next = Output()
                self._taken.set()
                return output
            if self._no_more_requests and not (self._auto_ack and self._credit):
                return None
            self._changed.clear()
            if self._credit:
                self._subscription.wait(self._number)
            await self._changed.wait()
        raise self._failure

    def sent(self, deliveries: Deliveries) -> None:
        """Ack records that were sent, if the stream acks automatically."""
        if self._auto_ack:
            spans = [Span(each.partition, each.records[0][0], each.records[-1][0]) for each in deliveries]
            self._subscription.ack_spans(self._number, spans)
