"""A Consume stream between its requests and its answers: one more caller of a subscription."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from services.gateway.kafkapixy.callers import Deliveries
from services.gateway.kafkapixy.subscription import Subscription
from services.gateway.kafkapixy.types import Demand, RefusedAck, Span
from services.gateway.kafkastream.flow import MAX_REFUSED_ACKS, Credit


@dataclass(slots=True)
class Answer:
    """What the caller is told next."""

    deliveries: Deliveries = field(default_factory=list)
    refused: list[RefusedAck] = field(default_factory=list)


class ConsumeStream:
    """One task brings the requests, another takes the answers; ``close`` must follow.

    Raises:
        Exhausted: Too many streams read this group and topic.
        Unavailable: The gateway is going away.
    """

    def __init__(self, subscription: Subscription, credit: Credit, *, auto_ack: bool) -> None:
        self._subscription = subscription
        self._credit = credit
        self._auto_ack = auto_ack
        self._next = Answer()
        self._changed = asyncio.Event()
        self._taken = asyncio.Event()
        self._no_more_requests = False
        self._failure: Exception | None = None
        self._number = subscription.attach(self)

    def close(self) -> None:
        """Others get what was not acked."""
        self._subscription.detach(self._number)

    # ---- what the caller says

    async def request(self, credit: int, acks: Sequence[Span], give_backs: Sequence[Span]) -> None:
        """One request. Returns when the next one may come: a caller that listens to no refusal is not listened to."""
        self._credit.left += credit
        if acks:
            self._next.refused += self._subscription.ack_spans(self._number, acks)
        if give_backs:
            self._subscription.give_back_spans(self._number, give_backs)
        self._changed.set()
        while len(self._next.refused) > MAX_REFUSED_ACKS:
            self._taken.clear()
            await self._taken.wait()

    def end(self) -> None:
        """The caller says no more."""
        self._no_more_requests = True
        self._changed.set()

    # ---- what the subscription gives

    @property
    def gone(self) -> bool:
        """Never while it waits: ``close`` ends that."""
        return False

    def ask(self) -> Demand:
        """What it would take now."""
        return self._credit.ask(self._number)

    def give(self, deliveries: Deliveries) -> None:
        """Take it."""
        self._next.deliveries = deliveries
        self._credit.left -= sum(len(delivery.records) for delivery in deliveries)
        self._changed.set()

    def stop(self, error: Exception) -> None:
        """End the stream; also for what its requests raise. The first reason stands."""
        self._failure = self._failure or error
        self._changed.set()

    # ---- what the caller is told

    async def next(self) -> Answer | None:
        """The next answer; None when the stream is over.

        Raises:
            Exception: What ``stop`` was told.
        """
        while self._failure is None:
            if self._next.deliveries or self._next.refused:
                answer = self._next
                self._next = Answer()
                self._taken.set()
                return answer
            if self._no_more_requests and not (self._auto_ack and self._credit.left):
                return None
            self._changed.clear()
            if self._credit.left:
                self._subscription.wait(self._number)
            await self._changed.wait()
        raise self._failure

    def sent(self, deliveries: Deliveries) -> None:
        """The answer with these has gone out."""
        if self._auto_ack:
            spans = [Span(each.partition, each.records[0][0], each.records[-1][0]) for each in deliveries]
            self._subscription.ack_spans(self._number, spans)
