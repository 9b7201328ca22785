"""Dispatcher on real loopback sockets, its containers, and outputs that are recorded."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import zmq
import zmq.asyncio
from prometheus_client import CollectorRegistry

from dexorder_common.messaging.frames import decode_ack, encode_event, topic
from dexorder_common.model.user_events import Channel, Status
from dexorder_gateway.events.config import EventsSettings
from dexorder_gateway.events.delivery.changes import SendRequest, SessionEvent
from dexorder_gateway.events.dispatcher.dispatcher import EventDispatcher
from dexorder_gateway.events.dispatcher.metrics import DispatcherMetrics
from dexorder_gateway.events.dispatcher.port import DispatcherOutputs
from dexorder_gateway.events.dispatcher.start import open_dispatcher
from dexorder_gateway.events.model import Ack, TransientEvent
from dexorder_protos.dexorder.events.v1 import user_events_pb2 as pb
from tests.fakes.events.sessions_gateway import render
from tests.fakes.events.sessions_gateway import until as until

LOOPBACK = "tcp://127.0.0.1:0"


@dataclass
class Heard:
    """`DispatcherOutputs` that are recorded."""

    sends: list[SendRequest] = field(default_factory=list)
    session_events: list[SessionEvent] = field(default_factory=list)
    informed: list[TransientEvent] = field(default_factory=list)

    def send(self, sends: Sequence[SendRequest]) -> None:
        self.sends += sends

    def show(self, session_events: Sequence[SessionEvent]) -> None:
        self.session_events += session_events

    def inform(self, informed: Sequence[TransientEvent]) -> None:
        self.informed += informed


class Stage:
    """Running dispatcher."""

    def __init__(self, dispatcher: EventDispatcher, heard: Heard, registry: CollectorRegistry) -> None:
        self.dispatcher = dispatcher
        self.heard = heard
        self._registry = registry

    def value(self, name: str, **labels: str) -> float:
        return self._registry.get_sample_value(f"dexorder_gateway_event{name}", labels) or 0.0

    def dropped(self, reason: str) -> float:
        return self.value("_messages_dropped_total", reason=reason)


@asynccontextmanager
async def running(folder: Path, heard: Heard | None = None, **settings: Any) -> AsyncIterator[Stage]:
    heard, registry = heard or Heard(), CollectorRegistry()
    made = EventsSettings(**{"db": folder / "events.db", "sub": LOOPBACK, "router": LOOPBACK, **settings})
    async with open_dispatcher(made, DispatcherMetrics(registry), render=render) as dispatcher:
        dispatcher.outputs = DispatcherOutputs(heard.send, heard.show, heard.inform)
        yield Stage(dispatcher, heard, registry)


class Peer:
    """Container with its DEALER and XPUB sockets."""

    def __init__(self, dealer: zmq.asyncio.Socket, xpub: zmq.asyncio.Socket) -> None:
        self.dealer = dealer
        self.xpub = xpub

    async def send(self, *events: pb.UserEvent) -> None:
        for event in events:
            await self.dealer.send_multipart(encode_event(event))

    async def ack(self, seconds: float = 30) -> Ack:
        frames = await asyncio.wait_for(self.dealer.recv_multipart(), seconds)
        ack = decode_ack(frames)
        status = Status(ack.status)
        via = Channel(ack.delivered_via) if status is Status.DELIVERED else None
        return Ack(ack.event_id, status, ack.error_message, via)

    async def publish(self, *events: pb.UserEvent) -> None:
        for event in events:
            await self.xpub.send_multipart([topic(event.user_id), *encode_event(event)])

    async def subscription(self, seconds: float = 30) -> bytes:
        return await asyncio.wait_for(self.xpub.recv(), seconds)


@asynccontextmanager
async def peer(stage: Stage, **options: int) -> AsyncIterator[Peer]:
    with zmq.asyncio.Context() as context, context.socket(zmq.DEALER) as dealer, context.socket(zmq.XPUB) as xpub:
        for socket, address in ((dealer, stage.dispatcher.router_address), (xpub, stage.dispatcher.sub_address)):
            socket.setsockopt(zmq.LINGER, 0)
            socket.setsockopt(zmq.IMMEDIATE, 1)
            for name, value in options.items():
                socket.setsockopt(getattr(zmq, name), value)
            socket.connect(address)
        yield Peer(dealer, xpub)
