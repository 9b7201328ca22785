"""What a container publishes with.

from dexorder.events import Publisher
with Publisher() as publisher:
    publisher.publish("alice", "ORDER_FILLED", {"order_id": "17"}, "CRITICAL", ["ACTIVE_SESSION", "TELEGRAM"])
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, Self, TypeVar

from dexorder.errors import DexorderError
from dexorder.events.commands import FlushCommand, OutcomeQuery, PublishCommand
from dexorder.events.config import PublisherSettings
from dexorder.events.errors import EventRefused
from dexorder.events.event_builder import ChannelChoice, Payload, build_event
from dexorder.events.outcome import Outcome
from dexorder.events.outcomes import done
from dexorder.events.sender import Sender
from services.common.config import BadSettings, read_settings
from services.common.messaging.frames import encode_event
from services.common.model.user_events import Priority
from services.gen.dexorder.events.v1 import user_events_pb2 as pb

T = TypeVar("T")
OnOutcome = Callable[[Outcome], None]


class Publisher:
    """Sends events of one container, each until the gateway has settled it. Threads may share it.

    A thread of its own has the sockets and the outbox. One publisher an outbox; it may be closed, or killed, at any
    moment: what the gateway has not settled goes out when the next publisher opens the same outbox.
    """

    def __init__(
        self,
        settings: PublisherSettings | None = None,
        *,
        on_outcome: OnOutcome | None = None,
        on_queued: Callable[[str], None] | None = None,
        **overrides: Any,
    ) -> None:
        """Open the outbox and begin to connect; the gateway need not be there.

        Args:
            settings: Else from the environment.
            on_outcome: Told, in the publisher's thread, how each event ends, those of earlier publishers included; of
                one that ended just before a crash it may be told twice. It may `submit`, and must not wait.
            on_queued: Told the event_id likewise when the gateway has an event on its disk.
            overrides: Single settings by name, for example ``outbox``.

        Raises:
            DexorderError: A setting is bad or an address can't be used.
            OutboxFailed: The outbox can't be used, or another publisher uses it.
        """
        try:
            self._settings = settings or read_settings(PublisherSettings, **overrides)
            self._sender = Sender(self._settings, on_outcome or (lambda _: None), on_queued or (lambda _: None))
        except (BadSettings, OSError) as error:
            raise DexorderError(str(error)) from None
        self._sender.thread.start()

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
        """Publish an event; returns its event_id.

        NORMAL and CRITICAL: it is on the disk then, and goes out until the gateway has settled it. While the user has a
        session open, NORMAL goes out once, on the fast path. INFORMATIONAL goes out only then, and never waits.

        Args:
            event_type: A name or number of `EventType`.
            payload: What JSON can say, or a payload message of ``user_events.proto``; decimals as text.
            channels: Names, `Channel` or `Preference`, in the order to try them; none takes the user's own order.
            event_id: Makes a repeat the same event, if the timestamp is given too; else a new one.
            timestamp_ms: When it happened, milliseconds since the epoch; else now.

        Raises:
            EventRefused: It can't be sent as it is.
            OutboxFull: ``max_events`` wait already.
            OutboxFailed: It could not be kept.
            PublisherClosed: After ``close``.
        """
        kept = self.submit(
            user_id, event_type, payload, priority, channels, event_id=event_id, timestamp_ms=timestamp_ms
        )
        return self._wait(kept, None)

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
        """As `publish`, but does not wait for the disk: many at once share its commits.

        Returns:
            The event_id, once the event is on the disk; its errors are OutboxFull, OutboxFailed, PublisherClosed and,
            for an event_id that is taken, EventRefused.
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
        """As `submit`, for an event that is ready."""
        frame = encode_event(event)[1]
        if len(frame) > self._settings.max_frame_bytes:
            raise EventRefused(f"the event has {len(frame):,} bytes, and a frame {self._settings.max_frame_bytes:,}")
        future: Future[str] = Future()
        how = Priority(event.delivery.priority)
        kept = None if how is Priority.INFORMATIONAL else future
        self._sender.commands.give(PublishCommand(event.event_id, event.user_id, how, frame, kept))
        if kept is None:
            done(future, event.event_id)
        return future

    def outcome(self, event_id: str) -> Future[Outcome]:
        """How an event ends, once it has; of INFORMATIONAL ones only ``on_outcome`` is told.

        Its errors are PublisherClosed and EventUnknown: none of that id waits or is among the last 10,000 to end.
        """
        future: Future[Outcome] = Future()
        self._sender.commands.give(OutcomeQuery(event_id, future))
        return future

    def subscribed(self, user_id: str) -> bool:
        """Whether the user has a session open, as the gateway last said; if not, INFORMATIONAL is not worth making."""
        return self._sender.subscribed(user_id)

    @property
    def connected(self) -> bool:
        """Whether the guaranteed path is up."""
        return self._sender.guaranteed.connected

    @property
    def addresses(self) -> tuple[str, str]:
        """Of the fast and the guaranteed path; with ``bind`` the real ports, where 0 was asked for."""
        return self._sender.fast.address, self._sender.guaranteed.address

    def flush(self, timeout: float | None = None) -> bool:
        """Wait until no event waits for the gateway; False if ``timeout`` seconds were not enough."""
        drained: Future[None] = Future()
        self._sender.commands.give(FlushCommand(drained))
        try:
            self._wait(drained, timeout)
        except TimeoutError:
            return False
        return True

    def close(self) -> None:
        """End the thread; `flush` before it to wait for the gateway. What still waits goes out after the next start."""
        self._sender.commands.close()
        self._sender.thread.join()

    def _wait(self, future: Future[T], timeout: float | None) -> T:
        if threading.current_thread() is self._sender.thread and not future.done():
            raise RuntimeError("a callback must not wait for its own thread; it may submit")
        return future.result(timeout)
