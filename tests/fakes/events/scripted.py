"""HTTP server that records each call with its time, and answers by its script or by its own rules."""

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


@dataclass(frozen=True)
class Reply:
    """An answer, sent after ``delay_seconds``; with ``hang`` it is never sent."""

    status: int = 200
    body: Any = ""
    """A string is sent as text, anything else as JSON."""
    headers: Mapping[str, str] = field(default_factory=dict)
    delay_seconds: float = 0.0
    hang: bool = False

    def response(self) -> web.Response:
        if isinstance(self.body, str):
            return web.Response(status=self.status, text=self.body, headers=self.headers)
        return web.json_response(self.body, status=self.status, headers=self.headers)


@dataclass(frozen=True)
class Call:
    """A request. ``at`` is in seconds of the monotonic clock, which all processes of the machine share."""

    at: float
    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class ScriptedServer:
    """Server on 127.0.0.1 while its context is open.

    Attributes:
        calls: All requests in order, including those that were refused or not answered.
        always: Reply after the end of the script; None for the server's own `answer`.
    """

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.always: Reply | None = None
        self._script: deque[Reply] = deque()
        self._closing = asyncio.Event()
        self._runner: web.AppRunner | None = None
        self.base = URL()

    def script(self, *replies: Reply) -> None:
        """Reply to the next calls with these, in place of the server's own answers."""
        self._script.extend(replies)

    def answer(self, call: Call) -> Reply:
        """Return the provider's own answer."""
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
        """Wait until this many calls were received in all; raises TimeoutError."""
        async with asyncio.timeout(seconds):
            while len(self.calls) < count:  # noqa: ASYNC110
                await asyncio.sleep(0.002)
        return self.calls

    async def _take(self, request: web.Request) -> web.Response:
        at, body = time.monotonic(), await request.read()
        call = Call(at, request.method, request.path, request.query, request.headers, body)
        self.calls.append(call)
        reply = self._script.popleft() if self._script else self.always or self.answer(call)
        if reply.hang:
            await self._closing.wait()
        await asyncio.sleep(reply.delay_seconds)
        return reply.response()

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
