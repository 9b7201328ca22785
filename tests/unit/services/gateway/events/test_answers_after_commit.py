"""While the disk of the events takes nothing, no caller, container or user is told what is not on it.

`dispatcher/test_thread.py` has the same of acks and provider calls in one cycle of the dispatcher.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
import zmq
import zmq.asyncio

from dexorder_common.messaging.frames import decode_ack, encode_event
from dexorder_gateway.events.sessions import user_tokens
from dexorder_gateway.events.store import outbox
from dexorder_gateway.server import gateway
from dexorder_protos.dexorder.events.v1 import event_service_pb2 as pb
from dexorder_protos.dexorder.events.v1 import event_service_pb2_grpc as rpc
from dexorder_protos.dexorder.events.v1 import user_events_pb2 as given
from tests.unit.services.gateway.events.test_full_disk import SETTINGS, event, events_settings


class Disk:
    """Writes at once, except those that come between ``hold`` and ``release``."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reached, self._free = threading.Event(), threading.Event()
        self._free.set()
        write = outbox.EventOutbox._write

        def held_back(opened: outbox.EventOutbox, *rows: Any) -> None:
            if not self._free.is_set():
                self.reached.set()
                assert self._free.wait(60)
            write(opened, *rows)

        monkeypatch.setattr(outbox.EventOutbox, "_write", held_back)

    def hold(self) -> None:
        self.reached.clear()
        self._free.clear()

    def release(self) -> None:
        self._free.set()


@dataclass
class Running:
    """A gateway with an open session of "ann", a stream of events, and a container on 5571."""

    publisher: Any
    events: Any
    contacts: Any
    session: Any
    container: Any
    stream: Any
    metadata: tuple[tuple[str, str]]
    epoch: str = ""

    async def shown(self, event_id: str) -> pb.Cursor:
        """Wait until the session shows an event, and return its cursor."""
        while True:
            answer = await self.session.read()
            self.epoch = answer.opened.cursor.epoch or self.epoch
            if answer.event.event.event_id == event_id:
                return pb.Cursor(epoch=self.epoch, sequence=answer.event.sequence)

    async def send(self, number: int) -> None:
        await self.container.send_multipart(encode_event(event(number)))

    async def acked(self) -> tuple[str, int]:
        """Return the next ack of the container."""
        ack = decode_ack(await self.container.recv_multipart())
        return ack.event_id, ack.status

    async def received(self, cursor: pb.Cursor) -> None:
        """Tell that the session has an event."""
        ack = pb.AckEventRequest(cursor=cursor, kind=pb.ACK_KIND_RECEIVED)
        await self.events.AckEvent(ack, metadata=self.metadata)


@asynccontextmanager
async def running(folder: Path) -> AsyncIterator[Running]:
    key = folder / "jwt" / "test.key"
    user_tokens.make_keys(folder / "jwt", "test")
    settings = events_settings(folder).model_copy(update={"jwt_keys": folder / "jwt"})
    metadata = (("authorization", f"Bearer {user_tokens.sign(key, 'ann', seconds=600)}"),)
    async with AsyncExitStack() as opened:
        server = await opened.enter_async_context(gateway(SETTINGS, settings))
        channel = await opened.enter_async_context(grpc.aio.insecure_channel(server.address))
        container = opened.enter_context(opened.enter_context(zmq.asyncio.Context()).socket(zmq.DEALER))
        container.setsockopt(zmq.LINGER, 0)
        container.connect(settings.router)
        publisher: Any = rpc.EventPublisherServiceStub(channel)
        events: Any = rpc.EventServiceStub(channel)
        contacts: Any = rpc.ContactServiceStub(channel)
        session = events.WatchEvents(pb.WatchEventsRequest(), metadata=metadata)
        opened.callback(session.cancel)
        stream = publisher.PublishMany()
        opened.callback(stream.cancel)
        yield Running(publisher, events, contacts, session, container, stream, metadata)


Tells = Callable[[], Awaitable[Any]]
"""Does something that is written, and returns what follows from it."""


async def publish(r: Running) -> Tells:
    async def call() -> int:
        return int((await r.publisher.Publish(pb.PublishRequest(event=event(1)))).ack.status)

    return call


async def publish_many(r: Running) -> Tells:
    async def call() -> int:
        await r.stream.write(pb.PublishManyRequest(event=event(2)))
        return int((await r.stream.read()).ack.status)

    return call


async def port_5571(r: Running) -> Tells:
    async def sent() -> tuple[str, int]:
        await r.send(3)
        return await r.acked()

    return sent


async def event_in_a_session(r: Running) -> Tells:
    await r.shown("e3")

    async def sent() -> pb.Cursor:
        await r.send(4)
        return await r.shown("e4")

    return sent


async def ack_of_a_session(r: Running) -> Tells:
    assert await r.acked() == ("e4", given.QUEUED)
    await r.send(5)
    cursor = await r.shown("e5")
    assert await r.acked() == ("e5", given.QUEUED)
    return lambda: r.received(cursor)


async def final_ack(r: Running) -> Tells:
    assert await r.acked() == ("e5", given.DELIVERED)
    await r.send(6)
    cursor = await r.shown("e6")
    assert await r.acked() == ("e6", given.QUEUED)

    async def delivered() -> tuple[str, int]:
        received = asyncio.ensure_future(r.received(cursor))
        ack = await r.acked()
        await received
        return ack

    return delivered


async def contacts(r: Running) -> Tells:
    return lambda: r.contacts.SetContacts(pb.SetContactsRequest(user_id="ann", contacts=pb.Contacts()))


CASES = (publish, publish_many, port_5571, event_in_a_session, ack_of_a_session, final_ack, contacts)
"""In order: some look at the events of those before."""


async def test_nobody_is_told_what_is_not_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk(monkeypatch)
    async with running(tmp_path) as r:
        for case in CASES:
            tells = await case(r)
            disk.hold()
            told = asyncio.ensure_future(tells())
            try:
                assert await asyncio.to_thread(disk.reached.wait, 60), case.__name__
                early, _ = await asyncio.wait({told}, timeout=0.1)
                assert not early, case.__name__
            finally:
                disk.release()
            await told
