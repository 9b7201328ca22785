"""An HTTP server that notes each call with its time and answers by itself, or as the next line of its script says."""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from aiohttp import web
from yarl import URL

from tests.fakes.events.waiting import filled


@dataclass(frozen=True)
class Reply:
    """An answer: after ``delay_seconds``, or not while the server is there if it hangs."""

    status: int = 200
    body: Any = ""
    """Text as it is, anything else as JSON."""
    headers: Mapping[str, str] = field(default_factory=dict)
    delay_seconds: float = 0.0
    hang: bool = False

    def made(self) -> web.Response:
        if isinstance(self.body, str):
            return web.Response(status=self.status, text=self.body, headers=self.headers)
        return web.json_response(self.body, status=self.status, headers=self.headers)


@dataclass(frozen=True)
class Call:
    """What a client asked. ``at`` is of the monotonic clock, in seconds, the same in all processes of the machine."""

    at: float
    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes
    peer: int
    """The client's port: two calls with the same one used one connection."""

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class ScriptedServer:
    """Serves on 127.0.0.1 while its context is open.

    Attributes:
        calls: All that came, in order, also those that were refused or left hanging.
        always: What is said when the script is at its end; None for the server's own `answer`.
    """

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.always: Reply | None = None
        self._script: deque[Reply] = deque()
        self._closing = asyncio.Event()
        self._runner: web.AppRunner | None = None
        self.base = URL()

    def script(self, *replies: Reply) -> None:
        """Say these next, one a call, in place of the server's own answers."""
        self._script.extend(replies)

    def answer(self, call: Call) -> Reply:
        """What this kind of provider would say by itself."""
        return Reply()

    @property
    def url(self) -> str:
        """``http://127.0.0.1:port``."""
        return str(self.base.origin())

    @property
    def netloc(self) -> str:
        """``127.0.0.1:port``."""
        return f"{self.base.host}:{self.base.port}"

    async def called(self, count: int, *, seconds: float = 10.0) -> list[Call]:
        """Wait until this many calls came in all; a `TimeoutError` if they do not."""
        await filled(self.calls, count, seconds)
        return self.calls

    async def _take(self, request: web.Request) -> web.Response:
        assert request.transport is not None
        peer = request.transport.get_extra_info("peername")[1]
        at, body = time.monotonic(), await request.read()
        call = Call(at, request.method, request.path, request.query, request.headers, body, peer)
        self.calls.append(call)
        reply = self._script.popleft() if self._script else self.always or self.answer(call)
        if reply.hang:
            await self._closing.wait()
        await asyncio.sleep(reply.delay_seconds)
        return reply.made()

    async def __aenter__(self) -> Self:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._take)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0, handler_cancellation=True)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        host, port = self._runner.addresses[0][:2]
        self.base = URL.build(scheme="http", host=host, port=port)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._runner is not None
        self._closing.set()
        await self._runner.cleanup()
