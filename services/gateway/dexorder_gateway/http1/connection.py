"""One connection: requests to the handler, one at a time, and its answers to the socket."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextvars import Context
from typing import Any, Protocol

import orjson
import structlog

from dexorder_common.rpc.native.inline_task import InlineTask
from dexorder_common.rpc.native.listening import auth_of
from dexorder_gateway.http1.answer import encoded
from dexorder_gateway.http1.limits import MAX_PIPELINED, HttpLimits
from dexorder_gateway.http1.messages import HttpAnswer, HttpRequest
from dexorder_gateway.http1.reader import BadRequest, Part, RequestReader

log = structlog.get_logger(__name__)
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_INTERNAL = HttpAnswer(b'{"error":"internal error; the server\'s log has the details"}', 500)
_CLOSE_SECONDS = 10.0
"""Time for a client to read the last bytes of a connection."""


class HttpPeer:
    """Facts about a client that its connection gives.

    Attributes:
        remote: IP address; empty for a unix socket.
        is_unix: Whether it has connected to a unix socket.
        auth: Properties of its verified certificate, by gRPC's names.
    """

    def __init__(self, transport: asyncio.Transport, *, is_unix: bool) -> None:
        peer = transport.get_extra_info("peername")
        self.is_unix = is_unix
        self.remote = "" if is_unix or not peer else str(peer[0])
        self.auth: Mapping[str, Sequence[bytes]] = auth_of(transport)


Serve = Callable[[HttpRequest, HttpPeer], Coroutine[Any, Any, HttpAnswer]]


class HttpHost(Protocol):
    """The server of a connection."""

    limits: HttpLimits
    serve: Serve

    def context(self) -> Context:
        """Return a new context for a handler."""

    def date(self) -> str:
        """Return the time in the form of RFC 9110."""

    def joined(self, connection: HttpConnection) -> bool:
        """Note a new connection; False if there are too many."""

    def lost(self, connection: HttpConnection) -> None:
        """Note the end of a connection."""


class HttpConnection(asyncio.Protocol):
    """Serves the requests of one client.

    Attributes:
        running: The request that is being answered; None between requests.
    """

    def __init__(self, host: HttpHost, loop: asyncio.AbstractEventLoop, *, is_unix: bool) -> None:
        self._host = host
        self._loop = loop
        self._is_unix = is_unix
        self._transport: Any = None
        self._client: Any = None
        self._reader = RequestReader(host.limits.max_body_bytes)
        self._waiting: deque[HttpRequest] = deque()
        self._refusal: HttpAnswer | None = None
        self.running: HttpRequest | None = None
        self._task: InlineTask[HttpAnswer] | None = None
        self._is_full = False
        self._is_leaving = False
        self._part = Part.HEAD  # of the first request, whose time begins with the connection
        self._deadline_s: float | None = None
        self._timer: asyncio.TimerHandle | None = None

    # ---- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for the first request, unless there are too many connections."""
        self._transport = transport
        self._client = HttpPeer(self._transport, is_unix=self._is_unix)
        if not self._host.joined(self):
            self._transport.abort()
            return
        self._expect_by(self._host.limits.request_seconds)

    def data_received(self, data: bytes) -> None:
        """Take bytes of requests."""
        if self._refusal is not None:
            return
        try:
            found = self._reader.feed(data)
        except BadRequest as error:
            found = self._reader.taken()
            self._refusal = _refused(error)
        self._waiting += found
        if len(self._waiting) > MAX_PIPELINED:
            self._transport.abort()
            return
        self._advance()

    def eof_received(self) -> bool:
        """Close, so that a handler whose client has left ends."""
        return False

    def connection_lost(self, error: Exception | None) -> None:
        """Cancel the handler."""
        if self._timer is not None:
            self._timer.cancel()
        self._waiting.clear()
        if self._task is not None:
            self._task.cancel()
        self._host.lost(self)

    def pause_writing(self) -> None:
        """Take no further request of a client that does not read."""
        self._is_full = True
        self._transport.pause_reading()

    def resume_writing(self) -> None:
        """Go on."""
        self._is_full = False
        self._transport.resume_reading()
        self._advance()

    # ---- requests

    def _advance(self) -> None:
        """Serve what has arrived until a handler waits, then await the rest of a request, or the next one."""
        while self._waiting and self.running is None and not self._is_full and not self._transport.is_closing():
            self._begin(self._waiting.popleft())
        if self.running is not None or self._waiting or self._transport.is_closing():
            return
        if self._refusal is not None:
            self._write(self._refusal, None, closes=True)
            return
        if self._reader.awaits_continue:
            self._reader.awaits_continue = False
            self._transport.write(_CONTINUE)
        self._note_part(self._reader.part)

    def _begin(self, request: HttpRequest) -> None:
        self.running = request
        self._deadline_s = None
        self._part = Part.NOTHING
        task = InlineTask(self._host.serve(request, self._client), self._loop, self._host.context(), self._ended)
        try:
            is_done, answer = task.first()
        except BaseException as error:
            self._finish(None, error)
            if isinstance(error, KeyboardInterrupt | SystemExit):
                raise
            return
        if is_done:
            self._finish(answer, None)
        else:
            self._task = task

    def _ended(self, answer: HttpAnswer | None, error: BaseException | None) -> None:
        self._task = None
        self._finish(answer, error)
        self._advance()

    def _finish(self, answer: HttpAnswer | None, error: BaseException | None) -> None:
        request, self.running = self.running, None
        assert request is not None
        is_open = not self._transport.is_closing()
        if error is not None and not isinstance(error, asyncio.CancelledError):
            log.error("call failed in its transport", exc_info=error)
        if is_open:
            closes = self._is_leaving or not request.keeps_alive or answer is None
            self._write(answer or _INTERNAL, request, closes=closes)
            if not closes:
                self._expect_by(self._host.limits.keepalive_seconds)
        request.on_end(is_open and answer is not None)

    def _write(self, answer: HttpAnswer, request: HttpRequest | None, *, closes: bool) -> None:
        self._transport.write(encoded(answer, request, self._host.date(), closes=closes))
        if closes:
            self._close()

    # ---- time

    def _note_part(self, part: Part) -> None:
        """Give the client time for each part of a request when that begins."""
        if part is not self._part and part in (Part.HEAD, Part.BODY):
            self._expect_by(self._host.limits.request_seconds)
        self._part = part

    def _expect_by(self, seconds: float) -> None:
        """Close the connection unless its next part begins within this time."""
        self._deadline_s = self._loop.time() + seconds
        if self._timer is None:
            self._timer = self._loop.call_at(self._deadline_s, self._look)
        elif self._timer.when() > self._deadline_s:
            self._timer.cancel()
            self._timer = self._loop.call_at(self._deadline_s, self._look)

    def _look(self) -> None:
        """Close the connection if its time is over; the timer is set once for many requests."""
        self._timer = None
        if self._deadline_s is None:
            return
        if self._loop.time() >= self._deadline_s:
            self._transport.abort()
        else:
            self._timer = self._loop.call_at(self._deadline_s, self._look)

    def leave(self) -> None:
        """End the connection after the request that is being answered, at once if there is none."""
        self._is_leaving = True
        if self.running is None:
            self._close()

    def stop(self) -> None:
        """Cancel the handler and end the connection."""
        self._transport.abort()

    def _close(self) -> None:
        self._waiting.clear()
        self._transport.close()
        self._expect_by(_CLOSE_SECONDS)


def _refused(error: BadRequest) -> HttpAnswer:
    return HttpAnswer(orjson.dumps({"error": str(error)}), error.status)
