"""The WebSocket with real aiohttp clients, the real hub and a courier in memory."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from google.protobuf import json_format

from services.gateway.events import conversation
from services.gen.dexorder.events.v1 import event_service_pb2 as pb
from tests.fakes.events.sessions_gateway import Served, served

PATIENCE_S = 5.0


class Browser:
    """A page's side of a WebSocket."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.socket = socket

    async def say(self, **message: Any) -> None:
        await self.socket.send_str(json.dumps(message))

    async def hear(self) -> dict[str, Any]:
        message = await self.socket.receive(PATIENCE_S)
        assert message.type is aiohttp.WSMsgType.TEXT, message
        return dict(json.loads(message.data))

    async def authorize(self, token: str, cursor: dict[str, str] | None = None) -> dict[str, Any]:
        await self.say(authorize={"token": token, "cursor": cursor, "clientName": "test"})
        return await self.hear()

    async def event(self) -> pb.SessionEvent:
        return json_format.ParseDict(await self.hear(), pb.SubscribeResponse()).event

    async def refused(self) -> tuple[str, int | None]:
        """The error's code and the close code that follows."""
        error = (await self.hear())["error"]
        message = await self.socket.receive(PATIENCE_S)
        assert message.type is aiohttp.WSMsgType.CLOSE, message
        return error["code"], self.socket.close_code


@asynccontextmanager
async def browser(gateway: Served, **options: Any) -> AsyncIterator[Browser]:
    async with (
        aiohttp.ClientSession() as client,
        client.ws_connect(f"http://{gateway.web}/v1/events", max_msg_size=0, **options) as socket,
    ):
        yield Browser(socket)


async def test_a_cut_session_goes_on_from_its_cursor_without_gap_or_repeat(tmp_path: Path) -> None:
    """Check 25."""
    async with served(tmp_path) as gateway:
        token, names = gateway.token("alice"), [f"event-{number}" for number in range(1, 101)]
        async with browser(gateway) as first:
            opened = (await first.authorize(token))["opened"]
            epoch = opened["cursor"]["epoch"]
            for name in names[:60]:
                gateway.courier.keep("alice", name)
            heard = []
            for sequence in range(1, 41):
                event = await first.event()
                heard.append(event.event.event_id)
                await first.say(ack={"place": {"epoch": epoch, "sequence": sequence}, "kind": "ACK_KIND_RECEIVED"})
            assert await first.hear()  # it came, but the page did not say so
        for name in names[60:80]:
            gateway.courier.keep("alice", name)
        late = iter(names[80:])
        gateway.courier.before_replay = lambda: [gateway.courier.keep("alice", next(late)) for _ in range(10)] and None
        gateway.courier.before_answer = lambda: [gateway.courier.keep("alice", next(late)) for _ in range(5)] and None
        async with browser(gateway) as second:
            opened = (await second.authorize(token, {"epoch": epoch, "sequence": "40"}))["opened"]
            assert opened["cursor"] == {"epoch": epoch, "sequence": "40"}
            for name in late:
                gateway.courier.keep("alice", name)
            for sequence in range(41, 101):
                event = await second.event()
                assert event.sequence == sequence
                heard.append(event.event.event_id)
                await second.say(ack={"place": {"epoch": epoch, "sequence": sequence}, "kind": "ACK_KIND_RECEIVED"})
            await until(lambda: len(gateway.courier.delivered("alice")) == 100)
            with pytest.raises(TimeoutError):
                await second.socket.receive(0.05)
        assert heard == names
        gateway.courier.before_replay = gateway.courier.before_answer = None
        async with browser(gateway) as third:
            reset = (await third.authorize(token, {"epoch": "another", "sequence": "40"}))["reset"]
            assert reset["cursor"] == {"epoch": epoch, "sequence": "0"}
            again = [await third.event() for _ in names]
            assert [event.sequence for event in again] == list(range(1, 101))
            assert all(event.settled for event in again)


async def until(done: Any) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not done():
            await asyncio.sleep(0.005)
