"""A user's client, native or in a browser, with the same interface."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import grpc
from google.protobuf import json_format

from dexorder_protos.dexorder.events.v1 import event_service_pb2 as pb
from dexorder_protos.dexorder.events.v1 import event_service_pb2_grpc as rpc
from tests.integration.events.container import PATIENCE_S, QUIET_S

CLOSED_AUTH, CLOSED_FORBIDDEN = 4401, 4403


class Session:
    """Messages that a client has received, in order, and its acks.

    Attributes:
        opened: The state in which it began; ``reset`` whether its cursor was of no use.
        ended: How it was ended by the other side: a status code's name or a WebSocket's close code.
    """

    def __init__(self) -> None:
        self.opened = pb.Opened()
        self.reset = False
        self.ended = ""
        self._heard: asyncio.Queue[pb.SessionEvent] = asyncio.Queue()
        self._open = asyncio.get_running_loop().create_future()

    def hear(self, message: pb.WatchEventsResponse) -> None:
        """Handle a message."""
        match message.WhichOneof("message"):
            case "event":
                assert self._open.done(), "an event before Opened"
                self._heard.put_nowait(message.event)
            case "opened" | "reset" as kind:
                self.opened = getattr(message, kind)
                self.reset = kind == "reset"
                if not self._open.done():
                    self._open.set_result(None)
            case _:
                raise AssertionError(f"an empty message: {message}")

    def end(self, why: str) -> None:
        """Handle the end of the session by the gateway."""
        self.ended = why
        if not self._open.done():
            self._open.set_exception(ConnectionRefusedError(why))

    async def wait_open(self) -> None:
        """Wait until it is open.

        Raises:
            ConnectionRefusedError: It was refused; why.
        """
        await asyncio.wait_for(asyncio.shield(self._open), PATIENCE_S)

    async def next(self, seconds: float = PATIENCE_S) -> pb.SessionEvent:
        """Return the next event."""
        return await asyncio.wait_for(self._heard.get(), seconds)

    async def hears_nothing(self, seconds: float = QUIET_S) -> None:
        """Check that no event arrives."""
        await asyncio.sleep(seconds)
        assert self._heard.empty(), self._heard.get_nowait()

    def place(self, heard: pb.SessionEvent) -> pb.Cursor:
        """Return the event's place in the log."""
        return pb.Cursor(epoch=self.opened.cursor.epoch, sequence=heard.sequence)

    async def ack(self, place: pb.Cursor, kind: int = pb.ACK_KIND_RECEIVED) -> None:
        """Ack that the event at a place was received or seen."""
        raise NotImplementedError

    async def take(self, seconds: float = PATIENCE_S) -> pb.SessionEvent:
        """Return the next event, and ack it."""
        heard = await self.next(seconds)
        await self.ack(self.place(heard))
        return heard


class NativeSession(Session):
    """Session over gRPC."""

    def __init__(self, stub: Any, token: str) -> None:
        super().__init__()
        self._stub = stub
        self._metadata = bearer(token)

    async def listen(self, cursor: pb.Cursor | None) -> None:
        """Receive until it ends."""
        try:
            request = pb.WatchEventsRequest(cursor=cursor, client_name="test")
            async for message in self._stub.WatchEvents(request, metadata=self._metadata):
                self.hear(message)
            self.end("OK")
        except grpc.aio.AioRpcError as error:
            self.end(f"{error.code().name}: {error.details()}")

    async def ack(self, place: pb.Cursor, kind: int = pb.ACK_KIND_RECEIVED) -> None:
        request = pb.AckEventRequest(cursor=place, kind=kind)  # type: ignore[arg-type]
        await self._stub.AckEvent(request, metadata=self._metadata, timeout=PATIENCE_S)


class BrowserSession(Session):
    """Session over a WebSocket. ``records`` and ``errors`` are the other messages."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        super().__init__()
        self._socket = socket
        self.errors: list[dict[str, Any]] = []
        self.records: asyncio.Queue[pb.ListEventsResponse] = asyncio.Queue()

    async def authorize(self, token: str, cursor: pb.Cursor | None = None) -> None:
        """Send the token; again before it expires."""
        place = None if cursor is None else {"epoch": cursor.epoch, "sequence": str(cursor.sequence)}
        await self.say({"authorize": {"token": token, "cursor": place, "clientName": "test"}})

    async def say(self, message: Any) -> None:
        """Send one text frame."""
        await self._socket.send_str(message if isinstance(message, str) else json.dumps(message))

    async def listen(self) -> None:
        """Receive until it ends."""
        async for message in self._socket:
            assert message.type is aiohttp.WSMsgType.TEXT, message
            given = json.loads(message.data)
            if "error" in given:
                self.errors.append(given["error"])
            elif "records" in given:
                self.records.put_nowait(json_format.ParseDict(given["records"], pb.ListEventsResponse()))
            else:
                self.hear(json_format.ParseDict(given, pb.WatchEventsResponse()))
        self.end(f"{self._socket.close_code}: {self.errors}")

    async def ack(self, place: pb.Cursor, kind: int = pb.ACK_KIND_RECEIVED) -> None:
        await self.say({"ack": json_format.MessageToDict(pb.AckEventRequest(cursor=place, kind=kind))})  # type: ignore[arg-type]

    async def list(self, page_size: int) -> pb.ListEventsResponse:
        """Return the log of the user's events."""
        await self.say({"list": {"pageSize": page_size, "pageToken": ""}})
        return await asyncio.wait_for(self.records.get(), PATIENCE_S)


@asynccontextmanager
async def native(address: str, token: str, cursor: pb.Cursor | None = None) -> AsyncIterator[NativeSession]:
    """Open a session over gRPC."""
    async with grpc.aio.insecure_channel(address) as channel:
        session = NativeSession(rpc.EventServiceStub(channel), token)
        async with _heard(session, session.listen(cursor)):
            await session.wait_open()
            yield session


@asynccontextmanager
async def browser(web: str, token: str, cursor: pb.Cursor | None = None) -> AsyncIterator[BrowserSession]:
    """Open a session over a WebSocket."""
    async with unopened(web) as session:
        await session.authorize(token, cursor)
        await session.wait_open()
        yield session


@asynccontextmanager
async def unopened(web: str) -> AsyncIterator[BrowserSession]:
    """Open a WebSocket without sending anything."""
    async with (
        aiohttp.ClientSession() as client,
        client.ws_connect(f"ws://{web}/v1/events", max_msg_size=0) as socket,
    ):
        session = BrowserSession(socket)
        async with _heard(session, session.listen()):
            yield session


@asynccontextmanager
async def _heard(session: Session, listening: Any) -> AsyncIterator[None]:
    task = asyncio.create_task(listening)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def bearer(token: str) -> tuple[tuple[str, str], ...]:
    """Return the metadata of a user's call."""
    return (("authorization", f"Bearer {token}"),)
