"""Sessions of a user and connections without a token are limited, on both ports; other users open theirs meanwhile."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import pytest

from dexorder_gateway.events.sessions import web_server
from dexorder_protos.dexorder.events.v1 import event_service_pb2 as pb
from tests.fakes.events.sessions_gateway import Served, served, until
from tests.unit.services.gateway.events.sessions.test_web_server import Browser, browser
from tests.unit.services.gateway.events.test_service import calling


async def opened(stack: AsyncExitStack, gateway: Served, user: str) -> Any:
    """Open a session by gRPC that stays open; return its call."""
    caller = await stack.enter_async_context(calling(gateway, gateway.token(user)))
    call = caller.events.WatchEvents(pb.WatchEventsRequest(), metadata=caller.metadata)
    await call.read()
    return call


async def page_of(stack: AsyncExitStack, gateway: Served) -> Browser:
    return await stack.enter_async_context(browser(gateway))


async def test_sessions_of_a_user_are_limited_and_another_user_opens_its_own(tmp_path: Path) -> None:
    async with served(tmp_path, sessions_per_user=2) as gateway, AsyncExitStack() as stack:
        first = await opened(stack, gateway, "alice")
        second = await page_of(stack, gateway)
        assert "opened" in await second.authorize(gateway.token("alice"))
        with pytest.raises(grpc.aio.AioRpcError, match="2 sessions of this user are open, the maximum") as refusal:
            await opened(stack, gateway, "alice")
        assert refusal.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        third = await page_of(stack, gateway)
        assert (await third.authorize(gateway.token("alice")))["error"]["code"] == "RESOURCE_EXHAUSTED"
        assert (await third.socket.receive(5)).data == 4429
        await opened(stack, gateway, "bob")
        first.cancel()
        await until(lambda: ("closed", "alice") in gateway.dispatcher.calls or len(sessions(gateway)) < 2)
        await opened(stack, gateway, "alice")


def sessions(gateway: Served) -> list[Any]:
    """Return alice's open sessions."""
    return gateway.backend.sessions._sessions.get("alice", [])


async def test_silent_connections_are_few_and_keep_no_user_with_a_token_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An attacker without a token opens as many as it likes; each new one costs the oldest."""
    monkeypatch.setattr(web_server, "MAX_UNAUTHORIZED", 3)
    async with served(tmp_path) as gateway, AsyncExitStack() as stack:
        before = await page_of(stack, gateway)
        assert "opened" in await before.authorize(gateway.token("alice"))
        silent = [await page_of(stack, gateway) for _ in range(10)]
        for each in silent[:7]:
            message = await each.socket.receive(5)
            assert message.type in (aiohttp.WSMsgType.CLOSED, aiohttp.WSMsgType.ERROR, aiohttp.WSMsgType.CLOSE), message
        honest = await page_of(stack, gateway)
        assert "opened" in await honest.authorize(gateway.token("bob"))
        assert not silent[-1].socket.closed and not before.socket.closed
        gateway.dispatcher.keep("alice", "e")
        assert (await before.event()).event.event_id == "e"
