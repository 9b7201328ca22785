"""The publisher for asyncio: the same one, waited for without blocking the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Self, TypeVar

from dexorder.events.config import PublisherSettings
from dexorder.events.event_builder import ChannelChoice, Payload
from dexorder.events.outcome import Outcome
from dexorder.events.publisher import OnOutcome, Publisher
from services.common.model.user_events import Priority

T = TypeVar("T")


class AsyncPublisher:
    """``async with await AsyncPublisher.open() as publisher``; see `Publisher`. Calls made together share a commit."""

    def __init__(self, publisher: Publisher) -> None:
        """Over a publisher of yours; `close` closes it."""
        self.publisher = publisher

    @classmethod
    async def open(
        cls,
        settings: PublisherSettings | None = None,
        *,
        on_outcome: OnOutcome | None = None,
        on_queued: Callable[[str], None] | None = None,
        **overrides: Any,
    ) -> Self:
        """As `Publisher`; callbacks are called in the loop's thread."""
        loop = asyncio.get_running_loop()

        def in_loop(callback: Callable[[T], None] | None) -> Callable[[T], None]:
            def call(told: T) -> None:
                if callback and not loop.is_closed():
                    loop.call_soon_threadsafe(callback, told)

            return call

        def make() -> Publisher:
            return Publisher(settings, on_outcome=in_loop(on_outcome), on_queued=in_loop(on_queued), **overrides)

        return cls(await asyncio.to_thread(make))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def publish(
        self,
        user_id: str,
        event_type: int | str,
        payload: Payload,
        priority: Priority | str = Priority.NORMAL,
        channels: Sequence[ChannelChoice] = (),
        *,
        event_id: str | None = None,
        timestamp_ms: int | None = None,
    ) -> str:
        """See Publisher.publish. A caller that is cancelled does not take the event back."""
        kept = self.publisher.submit(
            user_id, event_type, payload, priority, channels, event_id=event_id, timestamp_ms=timestamp_ms
        )
        return await asyncio.shield(asyncio.wrap_future(kept))

    async def outcome(self, event_id: str) -> Outcome:
        """How an event ends; waits until it has. See Publisher.outcome."""
        return await asyncio.wrap_future(self.publisher.outcome(event_id))

    def subscribed(self, user_id: str) -> bool:
        """See Publisher.subscribed."""
        return self.publisher.subscribed(user_id)

    async def flush(self, timeout: float | None = None) -> bool:
        """See Publisher.flush."""
        return await asyncio.to_thread(self.publisher.flush, timeout)

    async def close(self) -> None:
        """See Publisher.close."""
        await asyncio.to_thread(self.publisher.close)
