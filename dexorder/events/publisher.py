"""Publisher of user events, for threads and for asyncio.

from dexorder.events import Publisher
with Publisher() as publisher:
    publisher.publish("alice", "ORDER_FILLED", {"order_id": "17"}, "CRITICAL", ["ACTIVE_SESSION", "EMAIL"])
"""

from __future__ import annotations

import asyncio
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, Self, TypeVar

from dexorder.errors import DexorderError, EventRefused
from dexorder.events.commands import FlushCommand, OutcomeQuery, PublishCommand
from dexorder.events.config import PublisherSettings
from dexorder.events.event_builder import ChannelChoice, Payload, build_event
from dexorder.events.outcomes import Outcome, complete
from dexorder.events.thread import SenderThread
from dexorder_common.config import BadSettings, read_settings
from dexorder_common.messaging.frames import encode_event
from dexorder_common.model.user_events import Priority
from dexorder_protos.dexorder.events.v1 import user_events_pb2 as pb

T = TypeVar("T")
OnOutcome = Callable[[Outcome], None]


class Publisher:
    """Publisher of one container's events. It sends each event until the gateway has settled it. Threads may share it.

    Its own thread uses the sockets and the outbox. Each outbox has one publisher, which may be closed or killed at any
    time: events that are not settled are sent when the next publisher opens the same outbox.
    """

    def __init__(
        self,
        settings: PublisherSettings | None = None,
        *,
        on_outcome: OnOutcome | None = None,
        on_queued: Callable[[str], None] | None = None,
        **overrides: Any,
    ) -> None:
        """Open the outbox and start to connect; the gateway need not be running.

        Args:
            settings: Settings; None reads them from the environment.
            on_outcome: Called in the publisher's thread with the outcome of each event, including events of earlier
                publishers; after a crash possibly twice for the same event. It may `submit` but must not wait.
            on_queued: Called likewise with the event_id when the gateway has an event on disk.
            overrides: Single settings by name, for example ``outbox``.

        Raises:
            DexorderError: A setting is invalid or an address can't be used.
            OutboxFailed: The outbox can't be used, or another publisher uses it.
        """
        try:
            self._settings = settings or read_settings(PublisherSettings, **overrides)
            self._thread = SenderThread(self._settings, on_outcome or (lambda _: None), on_queued or (lambda _: None))
        except (BadSettings, OSError) as error:
            raise DexorderError(str(error)) from None
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def publish(
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
        """Publish an event and return its event_id.

        A NORMAL or CRITICAL event is on disk when this returns, and is sent until the gateway has settled it. While the
        user has a session open, a NORMAL event is sent once, on the fast path. An INFORMATIONAL event is sent only
        then and never waits.

        Args:
            event_type: Name or number of an `EventType`.
            payload: Values that JSON can represent, or a payload message of ``user_events.proto``; decimals as text.
            channels: Names, `Channel` or `Preference`, in the order to try them; empty for the user's own order.
            event_id: Id for deduplication, together with the timestamp; None for a new one.
            timestamp_ms: Time of the event, milliseconds since the epoch; None for now.

        Raises:
            EventRefused: The event is invalid.
            OutboxFull: The outbox has ``max_events`` events.
            OutboxFailed: The event could not be written.
            PublisherClosed: The publisher is closed.
        """
        written = self.submit(
            user_id, event_type, payload, priority, channels, event_id=event_id, timestamp_ms=timestamp_ms
        )
        return self._wait(written, None)

    def submit(
        self,
        user_id: str,
        event_type: int | str,
        payload: Payload,
        priority: Priority | str = Priority.NORMAL,
        channels: Sequence[ChannelChoice] = (),
        *,
        event_id: str | None = None,
        timestamp_ms: int | None = None,
    ) -> Future[str]:
        """Publish an event without waiting for the disk, so that several events share a commit.

        Returns:
            Future of the event_id, completed when the event is on disk. It fails with OutboxFull, OutboxFailed,
            PublisherClosed, or EventRefused if the event_id belongs to another event.
        """
        event = build_event(
            user_id,
            event_type,
            payload,
            priority,
            channels,
            event_id=uuid.uuid4().hex if event_id is None else event_id,
            timestamp_ms=time.time_ns() // 1_000_000 if timestamp_ms is None else timestamp_ms,
            max_payload_bytes=self._settings.max_payload_bytes,
        )
        return self.submit_event(event)

    def submit_event(self, event: pb.UserEvent) -> Future[str]:
        """Publish an event that is already built; see `submit`."""
        frame = encode_event(event)[1]
        if len(frame) > self._settings.max_frame_bytes:
            limit = self._settings.max_frame_bytes
            raise EventRefused(f"the event has {len(frame):,} bytes; a frame may have {limit:,}")
        future: Future[str] = Future()
        priority = Priority(event.delivery.priority)
        written = None if priority is Priority.INFORMATIONAL else future
        self._thread.commands.put(PublishCommand(event.event_id, event.user_id, priority, frame, written))
        if written is None:
            complete(future, event.event_id)
        return future

    def outcome(self, event_id: str) -> Future[Outcome]:
        """Return a future of an event's outcome. Outcomes of INFORMATIONAL events only reach ``on_outcome``.

        It fails with PublisherClosed, or with EventUnknown if the event is neither pending nor among the last 10,000
        outcomes.
        """
        future: Future[Outcome] = Future()
        self._thread.commands.put(OutcomeQuery(event_id, future))
        return future

    def subscribed(self, user_id: str) -> bool:
        """Return whether the user has a session open; if not, an INFORMATIONAL event would be dropped."""
        return self._thread.sender.subscribed(user_id)

    @property
    def connected(self) -> bool:
        """True while the guaranteed path is connected."""
        return self._thread.guaranteed.connected

    @property
    def addresses(self) -> tuple[str, str]:
        """Addresses of the fast and the guaranteed path; with ``bind`` they have the actual ports."""
        return self._thread.fast.address, self._thread.guaranteed.address

    def flush(self, timeout: float | None = None) -> bool:
        """Wait until the gateway has settled all events; False after ``timeout`` seconds."""
        flushed: Future[None] = Future()
        self._thread.commands.put(FlushCommand(flushed))
        try:
            self._wait(flushed, timeout)
        except TimeoutError:
            return False
        return True

    def close(self) -> None:
        """Stop the thread. Pending events are sent after the next start; `flush` waits for the gateway."""
        self._thread.commands.close()
        self._thread.join()

    def _wait(self, future: Future[T], timeout: float | None) -> T:
        if threading.current_thread() is self._thread and not future.done():
            raise RuntimeError("a callback must not wait for its own thread; it may submit")
        return future.result(timeout)


class AsyncPublisher:
    """Publisher for asyncio: ``async with await AsyncPublisher.open()``. Concurrent calls share a commit."""

    def __init__(self, publisher: Publisher) -> None:
        """Wrap a publisher; `close` closes it."""
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
        """Open a `Publisher`; callbacks are called in the loop's thread."""
        loop = asyncio.get_running_loop()

        def in_loop(callback: Callable[[T], None] | None, value: T) -> None:
            if callback and not loop.is_closed():
                loop.call_soon_threadsafe(callback, value)

        callbacks = {"on_outcome": partial(in_loop, on_outcome), "on_queued": partial(in_loop, on_queued)}
        return cls(await asyncio.to_thread(Publisher, settings, **callbacks, **overrides))

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
        """Publish an event; see Publisher.publish. Cancelling the call does not withdraw the event."""
        written = self.publisher.submit(
            user_id, event_type, payload, priority, channels, event_id=event_id, timestamp_ms=timestamp_ms
        )
        return await asyncio.shield(asyncio.wrap_future(written))

    async def outcome(self, event_id: str) -> Outcome:
        """Wait for an event's outcome; see Publisher.outcome."""
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
