"""One connection: passes events of its session to calls, and the output of calls to the socket in one write."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextvars import Context
from typing import TYPE_CHECKING, Any, Protocol

import structlog
from dexorder_http2 import DATA, OUTPUT_LIMIT, PONG, REQUEST, RESET, UNARY, Fields, Head, Session

from dexorder_common.model.errors import Code, InvalidRequest
from dexorder_common.rpc.native.calls import Call
from dexorder_common.rpc.native.framing import ENCODINGS, frame
from dexorder_common.rpc.native.limits import (
    CONNECTION_WINDOW,
    MAX_RESETS,
    STREAM_WINDOW,
    Due,
    Limits,
    ResetBucket,
    Signs,
    due,
)
from dexorder_common.rpc.native.listening import auth_of, peer_of, speaks_http2
from dexorder_common.rpc.native.metadata import (
    CONTENT_TYPE,
    Metadata,
    decode_metadata,
    encode_metadata,
    is_grpc,
    trailers,
)
from dexorder_common.rpc.native.methods import Methods
from dexorder_common.rpc.native.streaming import StreamingCall

if TYPE_CHECKING:  # of the stub alone
    from dexorder_http2 import Event

log = structlog.get_logger(__name__)
_HEAD = [("content-type", CONTENT_TYPE.encode()), ("grpc-accept-encoding", ",".join(ENCODINGS).encode())]
_HEAD_FIELDS = Fields(_HEAD)
_OK_FIELDS = Fields(trailers(Code.OK, ""))
_CANCEL, _REFUSED_STREAM, _ENHANCE_YOUR_CALM, _NO_ERROR = 8, 7, 11, 0
_WRITE_BUFFER = 256 * 1_024
_CLOSE_SECONDS = 10.0
"""Time for a client to read the last bytes of a connection."""


class Host(Protocol):
    """The server of a connection."""

    limits: Limits
    methods: Methods

    def context(self) -> Context:
        """Return a new context for a handler."""

    def joined(self, connection: Connection) -> bool:
        """Note a new connection; False if there are too many."""

    def lost(self, connection: Connection) -> None:
        """Note the end of a connection."""


class Connection(asyncio.Protocol):
    """Serves the calls of one client."""

    def __init__(self, host: Host, loop: asyncio.AbstractEventLoop, *, is_tls: bool, is_unix: bool) -> None:
        self._host = host
        self._loop = loop
        self._is_tls = is_tls
        self._transport: Any = None
        self.limits = limits = host.limits
        self.context = host.context
        self.peer = ""
        self.auth: Mapping[str, Sequence[bytes]] = {}
        self.calls: dict[int, Call] = {}
        self._session = Session(
            stream_window=STREAM_WINDOW,
            connection_window=CONNECTION_WINDOW,
            max_streams=limits.max_streams,
            max_header_bytes=limits.max_header_bytes,
            max_unread_resets=MAX_RESETS,
            max_message_bytes=limits.max_message_bytes,
            answer_head=_HEAD_FIELDS,
            answer_end=_OK_FIELDS,
            is_unix=is_unix,
        )
        self._signs = Signs(loop.time())
        self._resets = ResetBucket(loop.time())
        self._unfinished = self._unread = 0
        self._is_pumping = False
        self._is_scheduled = False
        self._is_full = False
        self._timer: asyncio.TimerHandle | None = None

    # ---- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start the session, unless there are too many or TLS has not agreed on HTTP/2."""
        self._transport = transport
        self.peer, self.auth = peer_of(transport), auth_of(transport)
        if not self._host.joined(self) or (self._is_tls and not speaks_http2(transport)):
            self._transport.abort()
            return
        self._transport.set_write_buffer_limits(high=_WRITE_BUFFER)
        self._pump(None)
        self._look()

    def data_received(self, data: bytes) -> None:
        """Serve data from the client."""
        self._signs.last_read_s = self._loop.time()
        self._pump(data)

    def connection_lost(self, error: Exception | None) -> None:
        """Let all handlers leave."""
        if self._timer is not None:
            self._timer.cancel()
        for call in list(self.calls.values()):
            call.leave()
        self._host.lost(self)

    def pause_writing(self) -> None:
        """Take no more of a client that does not read; its answers wait in the session."""
        self._is_full = True
        self._transport.pause_reading()

    def resume_writing(self) -> None:
        """Go on."""
        self._is_full = False
        self._transport.resume_reading()
        self._soon()

    # ---- the session

    def _pump(self, data: bytes | None) -> None:
        """Pass data to the session, events to calls, and output to the socket, until all are idle."""
        self._is_pumping = True
        try:
            is_moving = not self._transport.is_closing()
            while is_moving and (data is not None or not self._is_full):
                events, output = self._session.step(data)
                data = None
                if output:
                    self._transport.write(output)
                for event in events:
                    self._guard(event)
                is_moving = (bool(events) or len(output) >= OUTPUT_LIMIT) and not self._transport.is_closing()
        finally:
            self._is_pumping = False
        if (reason := self._session.closed) is not None and not self._transport.is_closing():
            self._end(reason)

    def _soon(self) -> None:
        """Pump once for all that is sent in this turn of the loop."""
        if not self._is_pumping and not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._pump_later)

    def _pump_later(self) -> None:
        self._is_scheduled = False
        self._pump(None)

    def _guard(self, event: Event) -> None:
        """Pass an event on; an error of ours ends its call, not the connection."""
        try:
            self._take(event)
        except Exception as error:
            log.error("call failed in its transport", exc_info=error)
            self.reset(event[1])
            if (call := self.calls.get(event[1])) is not None:
                call.leave()

    def _take(self, event: Event) -> None:
        if event[0] == UNARY:
            self._open_unary(event[1], event[2], event[3], event[4])
        elif event[0] == REQUEST:
            self._open(event[1], event[2], event[3], ended=event[4])
        elif event[0] == PONG:
            self._signs.pinged_s = None
        elif (call := self.calls.get(event[1])) is None:
            return
        elif event[0] == DATA:
            call.feed(event[2], ended=event[3])
        elif event[0] == RESET:
            call.leave()
            if not self._resets.take(self._loop.time()):
                self._session.abort(_ENHANCE_YOUR_CALM)
        else:
            call.writable()

    def _open_unary(self, stream: int, head: Head, message: bytes, timeout: float | None) -> None:
        """Open a usual unary call, which the session has checked; anything else about it is as `_open` has it."""
        method = self._host.methods.known.get(head.path)
        if method is None or method.request_streaming or len(self.calls) >= self.limits.max_streams:
            self._open(stream, head, frame(message), ended=True)
            return
        call = self.calls[stream] = Call(stream, head, method, self, self._loop)
        call.start_whole(message, timeout)

    def _open(self, stream: int, head: Head, body: bytes, *, ended: bool) -> None:
        if len(self.calls) >= self.limits.max_streams:
            self._session.reset(stream, _REFUSED_STREAM)
            return
        if head.method != "POST" or not is_grpc(head.get("content-type")):
            self._session.finish(stream, Fields([*_HEAD, *trailers(Code.INVALID_ARGUMENT, "not a gRPC request")]))
            return
        try:
            method = self._host.methods.find(head.path, lambda: decode_metadata(head.pairs()))
        except InvalidRequest as error:  # metadata that tracing has asked for
            self.finish(stream, error.code, str(error), (), has_head=False)
            return
        if method is None:
            self.finish(stream, Code.UNIMPLEMENTED, "Method not found!", (), has_head=False)
            return
        kind = StreamingCall if method.request_streaming else Call
        call = self.calls[stream] = kind(stream, head, method, self, self._loop)
        call.start(body, ended=ended)

    # ---- output of calls

    def respond(self, stream: int, message: bytes) -> bool | None:
        """Send the only answer of a call and status OK."""
        if not self._is_pumping:
            self._soon()
        return self._session.answer(stream, message)

    def head(self, stream: int, metadata: Metadata) -> None:
        """Send initial metadata."""
        self._soon()
        self._session.head(stream, Fields(_HEAD + encode_metadata(metadata)) if metadata else _HEAD_FIELDS)

    def data(self, stream: int, data: bytes) -> bool:
        """Send framed answers."""
        self._soon()
        return self._session.data(stream, data)

    def finish(self, stream: int, code: int, text: str, metadata: Metadata, *, has_head: bool) -> None:
        """Send the status of a call."""
        self._soon()
        if code == Code.OK and has_head and not text and not metadata:
            self._session.finish(stream, _OK_FIELDS)
            return
        fields = trailers(code, text, metadata)
        self._session.finish(stream, Fields(fields if has_head else _HEAD + fields))

    def reset(self, stream: int) -> None:
        """End a call without a status."""
        self._soon()
        self._session.reset(stream, _CANCEL)

    def consume(self, stream: int) -> None:
        """Let the client send more of a request."""
        self._soon()
        self._session.consume(stream)

    def hold(self, size: int) -> bool:
        """Count bytes of requests that are not whole."""
        self._unfinished += size
        return self._unfinished <= self.limits.max_unfinished_bytes

    def has_room(self, size: int) -> bool:
        """Return whether so many more bytes of answers may wait for the client."""
        return self._unread + size <= self.limits.max_unread_bytes

    def note_unread(self, size: int) -> None:
        """Count bytes of answers that wait; they have left or were dropped if it is negative."""
        self._unread += size

    def ended(self, stream: int) -> None:
        """Note the end of a call's handler."""
        self.calls.pop(stream, None)

    # ---- time

    def _look(self) -> None:
        """Ping a silent client, and end a connection that is dead, or idle for long."""
        self._signs.is_open, self._signs.has_calls = self._session.opened, bool(self.calls)
        action, seconds = due(self._signs, self._loop.time(), self.limits)
        if action is Due.ABORT:
            self._transport.abort()
            return
        if action is Due.PING and self._session.ping():
            self._signs.pinged_s = self._loop.time()
        elif action is Due.LEAVE:
            self.leave()
        self._timer = self._loop.call_later(seconds, self._look)
        self._soon()

    def leave(self) -> None:
        """Refuse new calls, and end the connection once the running ones have ended."""
        self._signs.left_s = self._loop.time()
        self._session.go_away()
        self._soon()

    def stop(self) -> None:
        """End the connection now; handlers that still run are cancelled."""
        self._pump(None)  # answers that are ready leave first
        self._session.abort(_NO_ERROR)
        for call in list(self.calls.values()):
            call.leave()
        self._pump(None)
        self._end("")

    def abort(self) -> None:
        """Drop unsent data."""
        self._transport.abort()

    def _end(self, reason: str) -> None:
        if reason:
            log.info("connection ended", peer=self.peer, reason=reason)
        for call in list(self.calls.values()):
            call.leave()
        self._transport.close()
        self._loop.call_later(_CLOSE_SECONDS, self._transport.abort)
