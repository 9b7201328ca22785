"""The peers of ``bench.events``, a process of their own: it has jobs done, one line of JSON each on stdin, answered so.

Events are made before the clock runs, so that the client's own work is little: at their best they cost it a send.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import deque
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any

import aiohttp
import grpc
import uvloop
import zmq

from dexorder_protos.dexorder.events.v1 import event_service_pb2 as session_pb
from dexorder_protos.dexorder.events.v1 import user_events_pb2 as pb

VERSION, USER_EVENT = b"\x01", b"\x20"
WATCH = "/dexorder.events.v1.EventService/WatchEvents"
EVENT_BYTES = 500
SESSIONS_A_CHANNEL = 20
_SILENCE_S = 10.0
"""Time without an event after which the missing ones count as lost."""
_LONGEST_MS = 60_000
_PAUSE_S = 0.002
_OPEN: list[tuple[zmq.Context[zmq.Socket[bytes]], zmq.Socket[bytes]]] = []
_PAYLOAD = json.dumps({"order_id": "1", "symbol": "BTC/USDT", "side": "buy", "details": "x" * 380}).encode()


@dataclass(frozen=True)
class Measured:
    """Result of a job.

    Attributes:
        began_s, ended_s: Of the machine's monotonic clock, which is the same in all processes.
        waits: Seconds to each ack, where there are any.
        lost: What never came.
    """

    began_s: float
    ended_s: float
    waits: list[float] = field(default_factory=list)
    lost: int = 0


def made(user: str, event_id: str, priority: int) -> bytes:
    """Return an event of about `EVENT_BYTES`, as a frame."""
    delivery = pb.DeliverySpec(priority=priority, channels=[pb.ChannelPreference(channel=pb.WEB)])  # type: ignore[arg-type]
    event = pb.UserEvent(
        user_id=user,
        event_id=event_id,
        timestamp=time.time_ns() // 1_000_000,
        event_type=pb.ORDER_FILLED,
        payload=_PAYLOAD,
        delivery=delivery,
    )
    return USER_EVENT + event.SerializeToString()


def accepts(router: str, count: int, window: int, name: str, users: int = 1_000) -> Measured:
    """Send CRITICAL events, at most ``window`` of them without an ack."""
    frames = [made(f"bench-{number % users}", f"{name}-{number}", pb.CRITICAL) for number in range(count)]
    context, dealer = _dealer(router)
    sent_s: deque[float] = deque()
    waits: list[float] = []
    started_s, number = time.monotonic(), 0
    while len(waits) < count:
        while number < count and number - len(waits) < window:
            sent_s.append(time.monotonic())
            dealer.send_multipart([VERSION, frames[number]])
            number += 1
        ack = pb.EventAck.FromString(dealer.recv_multipart()[1][1:])
        if ack.status != pb.QUEUED:
            raise AssertionError(f"answered {ack}")
        waits.append(time.monotonic() - sent_s.popleft())  # acks come in the order of the events
    ended_s = time.monotonic()
    context.destroy(0)
    return Measured(started_s, ended_s, waits)


def paced(router: str, seconds: float, name: str) -> Measured:
    """Send CRITICAL events one after the other, with a pause between them, as a container of one bot does."""
    context, dealer = _dealer(router)
    waits: list[float] = []
    started_s = time.monotonic()
    while (begun_s := time.monotonic()) < started_s + seconds:
        dealer.send_multipart([VERSION, made("bench-0", f"{name}-{len(waits)}", pb.CRITICAL)])
        dealer.recv_multipart()
        waits.append(time.monotonic() - begun_s)
        time.sleep(_PAUSE_S)
    context.destroy(0)
    return Measured(started_s, time.monotonic(), waits)


def floods(router: str, seconds: float, name: str, rate: int) -> Measured:
    """Send NORMAL events at a rate without waiting for acks, which are read; ``lost`` counts those not accepted."""
    context, dealer = _dealer(router)
    sent = answered = accepted = 0
    print("open", flush=True)
    started_s = time.monotonic()
    while answered < sent or time.monotonic() < started_s + seconds:
        while sent < rate * min(seconds, time.monotonic() - started_s):
            dealer.send_multipart([VERSION, made(f"flooded-{sent % 50}", f"{name}-{sent}", pb.NORMAL)])
            sent += 1
        if not dealer.poll(5) and time.monotonic() > started_s + seconds + _SILENCE_S:
            break
        with suppress(zmq.Again):
            for _ in range(100):
                ack = pb.EventAck.FromString(dealer.recv_multipart(zmq.NOBLOCK)[1][1:])
                answered += 1
                accepted += ack.status == pb.QUEUED
    ended_s = time.monotonic()
    context.destroy(0)
    return Measured(started_s, ended_s, lost=sent - accepted)


def _dealer(router: str) -> tuple[zmq.Context[zmq.Socket[bytes]], zmq.Socket[bytes]]:
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    dealer = context.socket(zmq.DEALER)
    for option, value in ((zmq.LINGER, 0), (zmq.RCVTIMEO, _LONGEST_MS), (zmq.RECONNECT_IVL, 10), (zmq.SNDHWM, 0)):
        dealer.setsockopt(option, value)
    dealer.setsockopt(zmq.RCVHWM, 0)
    dealer.connect(router)
    return context, dealer


def publishes(sub: str, count: int, user: str) -> Measured:
    """Send INFORMATIONAL events, each as soon as the socket accepts it.

    The connection stays until the next job: what is still in the kernel when it ends may be lost.
    """
    while _OPEN:
        _OPEN.pop()[0].destroy(0)
    frames = [made(user, f"i-{time.time_ns()}-{number}", pb.INFORMATIONAL) for number in range(count)]
    topic = b"USER:" + user.encode() + b"\0"
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    fast = context.socket(zmq.XPUB)
    _OPEN.append((context, fast))  # an unreferenced socket is closed, with its queued messages
    for option, value in ((zmq.LINGER, 0), (zmq.XPUB_NODROP, 1), (zmq.RCVTIMEO, _LONGEST_MS)):
        fast.setsockopt(option, value)
    fast.connect(sub)
    while fast.recv() != b"\x01" + topic:
        pass
    started_s = time.monotonic()
    for frame in frames:
        fast.send_multipart([topic, VERSION, frame])
    return Measured(started_s, time.monotonic())


class Fan:
    """Sessions that count events."""

    def __init__(self, wanted: int) -> None:
        self.wanted = wanted
        self.count = 0
        self.first_s = self.last_s = 0.0
        self.open = 0
        self.done = asyncio.Event()

    def opened(self) -> None:
        self.open += 1

    async def over(self) -> None:
        """Wait until all events have arrived, or no more do."""
        while not self.count or time.monotonic() - self.last_s < _SILENCE_S:
            with suppress(TimeoutError):
                await asyncio.wait_for(self.done.wait(), 0.5)
                return

    def event(self, number: int = 1) -> None:
        self.last_s = time.monotonic()
        self.first_s = self.first_s or self.last_s
        self.count += number
        if self.count == self.wanted:
            self.done.set()


async def fan(kind: str, address: str, token: str, sessions: int, events: int, max_events: int = 0) -> Measured:
    """Open sessions that each get a number of events; print "open" when all are open."""
    seen = Fan(sessions * events)
    channels = [
        grpc.aio.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)])
        for _ in range(-(-sessions // SESSIONS_A_CHANNEL) if kind == "grpc" else 0)
    ]
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
        tasks = [
            asyncio.create_task(
                native(channels[number % len(channels)], token, seen, max_events)
                if channels
                else browser(http, address, token, seen)
            )
            for number in range(sessions)
        ]
        while seen.open < sessions:
            await asyncio.sleep(0.01)
            for task in tasks:
                if task.done():
                    task.result()
        print("open", flush=True)
        await seen.over()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for channel in channels:
        await channel.close()
    return Measured(seen.first_s, seen.last_s, lost=seen.wanted - seen.count)


async def native(channel: grpc.aio.Channel, token: str, seen: Fan, max_events: int) -> None:
    """Count messages as bytes: all but the first are events; messages with several are parsed."""
    call: Any = channel.unary_stream(WATCH)
    request = session_pb.WatchEventsRequest(max_events=max_events)
    stream = call(request.SerializeToString(), metadata=(("authorization", f"Bearer {token}"),))
    first = True
    async for answer in stream:
        if first:
            seen.opened()
            first = False
        else:
            seen.event(len(session_pb.WatchEventsResponse.FromString(answer).events) if max_events else 1)


async def browser(http: aiohttp.ClientSession, address: str, token: str, seen: Fan) -> None:
    """Like `native`."""
    async with http.ws_connect(f"ws://{address}/v1/events", max_msg_size=0) as socket:
        await socket.send_str(json.dumps({"authorize": {"token": token, "cursor": None, "clientName": "bench"}}))
        await socket.receive_str()
        seen.opened()
        async for _ in socket:
            seen.event()


def main() -> None:
    for line in sys.stdin:
        order: dict[str, Any] = json.loads(line)
        job = order.pop("job")
        match job:
            case "fan":
                measured = uvloop.run(fan(**order))
            case "accepts":
                measured = accepts(**order)
            case "paced":
                measured = paced(**order)
            case "floods":
                measured = floods(**order)
            case _:
                measured = publishes(**order)
        print(json.dumps(asdict(measured)), flush=True)


if __name__ == "__main__":
    main()
