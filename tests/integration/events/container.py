"""A user's container without the suite's codecs: an XPUB, a DEALER, and frames made by hand."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Self

import zmq
import zmq.asyncio

from dexorder_protos.dexorder.events.v1 import user_events_pb2 as pb

VERSION = b"\x01"
USER_EVENT, EVENT_ACK = b"\x20", b"\x21"
PATIENCE_S = 20.0
QUIET_S = 0.15
"""Time without a message after which none is expected."""
HEARTBEAT_MS = 500
"""Default of the gateway and of the container library."""
PAYLOAD = b'{"order_id":"7","symbol":"BTC/USDT","side":"buy","quantity":"0.1","price":"97000","status":"filled"}'
INFORMATIONAL, NORMAL, CRITICAL = pb.INFORMATIONAL, pb.NORMAL, pb.CRITICAL
ChannelSpec = int | tuple[int, bool]
"""Channel, or channel and only_if_active."""


def event(
    user: str,
    event_id: str,
    priority: int = pb.CRITICAL,
    specs: Iterable[ChannelSpec] = (),
    *,
    payload: bytes = PAYLOAD,
    event_type: int = pb.ORDER_FILLED,
) -> pb.UserEvent:
    """Return an event as a container makes it."""
    pairs = [spec if isinstance(spec, tuple) else (spec, False) for spec in specs]
    channels = [pb.ChannelPreference(channel=number, only_if_active=active) for number, active in pairs]  # type: ignore[arg-type]
    return pb.UserEvent(
        user_id=user,
        event_id=event_id,
        timestamp=time.time_ns() // 1_000_000,
        event_type=event_type,  # type: ignore[arg-type]
        payload=payload,
        delivery=pb.DeliverySpec(priority=priority, channels=channels),  # type: ignore[arg-type]
    )


async def until(done: Callable[[], bool | Awaitable[bool]], seconds: float = PATIENCE_S) -> None:
    """Poll a condition; raise `TimeoutError` if it does not become true."""
    async with asyncio.timeout(seconds):
        while True:
            answer = done()
            if await answer if isinstance(answer, Awaitable) else answer:
                return
            await asyncio.sleep(0.005)


def topic(user: str) -> bytes:
    """Return the topic that the gateway subscribes to for a user."""
    return b"USER:" + user.encode() + b"\0"


class Container:
    """Container connected to both ports; an async context manager.

    Args:
        curve: Our public and secret key and the gateway's public one; None connects in the clear.
        identity: A routing id to claim.
    """

    def __init__(
        self, sub: str, router: str, curve: tuple[bytes, bytes, bytes] | None, identity: bytes | None = None
    ) -> None:
        self._context = zmq.asyncio.Context()
        self.fast, self.sure = self._context.socket(zmq.XPUB), self._context.socket(zmq.DEALER)
        self.topics: set[bytes] = set()
        """Return the gateway's subscriptions, as far as `subscribed` has read them."""
        if identity is not None:
            self.sure.setsockopt(zmq.IDENTITY, identity)
        for each, address in ((self.fast, sub), (self.sure, router)):
            settings: list[tuple[int, Any]] = [
                (zmq.LINGER, 0),
                (zmq.IMMEDIATE, 1),
                (zmq.HEARTBEAT_IVL, HEARTBEAT_MS),
                (zmq.HEARTBEAT_TIMEOUT, 2 * HEARTBEAT_MS),
                (zmq.RECONNECT_IVL, 20),
                (zmq.RECONNECT_IVL_MAX, 100),
                (zmq.SNDHWM, 0),
                (zmq.RCVHWM, 0),
            ]
            if curve is not None:
                public, secret, server = curve
                settings += [
                    (zmq.CURVE_PUBLICKEY, public),
                    (zmq.CURVE_SECRETKEY, secret),
                    (zmq.CURVE_SERVERKEY, server),
                ]
            for option, value in settings:
                each.setsockopt(option, value)
            each.connect(address)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Disconnect abruptly."""
        self._context.destroy(0)

    # 5571

    async def send(self, *events: pb.UserEvent) -> None:
        """Send on the guaranteed path."""
        for each in events:
            await self.send_raw(VERSION, USER_EVENT + each.SerializeToString())

    async def send_raw(self, *frames: bytes) -> None:
        """Send frames unchanged."""
        await asyncio.wait_for(self.sure.send_multipart(frames), PATIENCE_S)

    async def ack(self, seconds: float = PATIENCE_S) -> pb.EventAck:
        """Return the next ack."""
        return await asyncio.wait_for(self.any_ack(), seconds)

    async def any_ack(self) -> pb.EventAck:
        """Return the next ack without a timeout, for loops that are cancelled: `asyncio.wait_for` may swallow that."""
        frames = await self.sure.recv_multipart()
        assert len(frames) == 2 and frames[0] == VERSION and frames[1][:1] == EVENT_ACK, frames
        return pb.EventAck.FromString(frames[1][1:])

    async def told(self, sent: pb.UserEvent, seconds: float = PATIENCE_S) -> pb.EventAck:
        """Return the next ack, which must be of that event."""
        ack = await self.ack(seconds)
        assert ack.event_id == sent.event_id, ack
        return ack

    async def state(self, sent: pb.UserEvent) -> pb.EventAck:
        """Send an event; return its state, which must be the next ack."""
        await self.send(sent)
        return await self.told(sent)

    async def queued(self, sent: pb.UserEvent) -> None:
        """Send an event, whose ack must be QUEUED."""
        ack = await self.state(sent)
        assert ack.status == pb.QUEUED and not ack.error_message, ack

    async def delivered(self, sent: pb.UserEvent, seconds: float = PATIENCE_S) -> int:
        """Return the channel of the next ack, which must be DELIVERED for the event."""
        ack = await self.told(sent, seconds)
        assert ack.status == pb.DELIVERED and not ack.error_message, ack
        return ack.delivered_via

    async def failed(self, sent: pb.UserEvent, seconds: float = PATIENCE_S) -> str:
        """Return the error of the next ack, which must be ERROR for the event."""
        ack = await self.told(sent, seconds)
        assert ack.status == pb.ACK_ERROR and ack.error_message, ack
        return ack.error_message

    async def hears_nothing(self, seconds: float = QUIET_S) -> None:
        """Check that no ack arrives."""
        if await self.sure.poll(int(seconds * 1000)):
            raise AssertionError(f"unexpected: {await self.ack()}")

    # 5570

    async def subscribed(self, user: str, *, wanted: bool = True, seconds: float = PATIENCE_S) -> float:
        """Wait until the gateway is subscribed to a user, or not; return the seconds it took."""
        started_s = time.monotonic()
        while (topic(user) in self.topics) is not wanted:
            left_s = started_s + seconds - time.monotonic()
            heard = await asyncio.wait_for(self.fast.recv(), max(0.0, left_s))
            (self.topics.add if heard[:1] == b"\x01" else self.topics.discard)(heard[1:])
        return time.monotonic() - started_s

    async def sees_no_subscription(self, user: str, seconds: float = QUIET_S) -> None:
        """Check that the gateway is not subscribed to the user."""
        try:
            await self.subscribed(user, seconds=seconds)
        except TimeoutError:
            return
        raise AssertionError(f"somebody is subscribed to {user}")

    async def publish(self, *events: pb.UserEvent, to: str = "") -> None:
        """Publish on the fast path; ``to`` uses another user's topic."""
        for each in events:
            body = USER_EVENT + each.SerializeToString()
            await self.fast.send_multipart([topic(to or each.user_id), VERSION, body])
