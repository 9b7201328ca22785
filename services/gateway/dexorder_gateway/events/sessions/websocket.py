"""Session over one WebSocket: text messages of JSON in protobuf's mapping.

client   {"authorize": {"token": "...", "cursor": {"epoch": "...", "sequence": "41"} or null, "clientName": "..."}}
         as the first message, within 5 s; again before the token expires, with a new token of the same user
         {"ack": {"cursor": {...}, "kind": "ACK_KIND_RECEIVED" or "ACK_KIND_SEEN"}}
         {"list": {"pageSize": 20, "pageToken": "", "status": "QUEUED", "container": "..."}}; all fields are optional
gateway  {"opened": {...}} or {"reset": {...}} first, then {"event": {...}}: WatchEventsResponse. Another
         {"opened": {...}} answers another authorize, with the cursor reached and the new expiry
         {"records": {...}}: ListEventsResponse of this user's events, one for each list, in order
         {"error": {"code": "UNAUTHENTICATED", "message": "..."}}, followed by a close with a code of `CLOSE_CODES`
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import orjson
import structlog
from aiohttp import WSMessage, WSMsgType, web
from google.protobuf import json_format
from google.protobuf.message import Message

from dexorder_common.model.errors import (
    Code,
    Exhausted,
    InvalidRequest,
    NotAllowed,
    SuiteError,
    Unauthenticated,
    Unavailable,
)
from dexorder_common.rpc.field_rules import check_request
from dexorder_common.rpc.streams import beside
from dexorder_gateway.events.dispatcher.port import DispatcherPort
from dexorder_gateway.events.proto_mapping import ack_of, cursor_of, page_answer, query_of
from dexorder_gateway.events.sessions.registry import SessionMetrics, SessionRegistry
from dexorder_gateway.events.sessions.session import UserSession
from dexorder_gateway.events.sessions.session_frames import proto_json
from dexorder_gateway.events.sessions.user_tokens import MAX_TOKEN_CHARACTERS, TokenUser, TokenVerifier
from dexorder_protos.dexorder.events.v1 import event_service_pb2 as pb

log = structlog.get_logger(__name__)
M = TypeVar("M", bound=Message)
AUTHORIZE_SECONDS = 5.0
MAX_MESSAGE_BYTES = 2 * MAX_TOKEN_CHARACTERS
"""Limit of a client's message; a larger one closes the connection with 1009."""
MAX_NAME_CHARACTERS = 64
MESSAGES_PER_SECOND = 1_000.0
MESSAGES_BURST = 10_000.0
"""A client that sends more is read more slowly."""
MAX_PENDING_ACKS = 1_000
"""Limit of acks that wait for the disk; above it the socket is not read."""


class AuthorizeTimeout(SuiteError):
    """The client did not authorize in time."""

    code = Code.DEADLINE_EXCEEDED


CLOSE_CODES: Mapping[type[SuiteError], int] = {
    InvalidRequest: 4400,
    Unauthenticated: 4401,
    NotAllowed: 4403,
    AuthorizeTimeout: 4408,
    Exhausted: 4429,
    Unavailable: 1013,
}
"""Close code by error; `INTERNAL` for all others."""
INTERNAL = 1011


@dataclass(frozen=True, slots=True)
class SessionBackend:
    """Parts of the gateway that serve sessions."""

    sessions: SessionRegistry
    dispatcher: DispatcherPort
    tokens: TokenVerifier
    metrics: SessionMetrics


class WebSocketConnection:
    """Server side of one WebSocket. Call ``authorize``, then ``run``, then ``close``, in one task.

    Raises:
        SuiteError: An error for the client, which ends the connection.
        ConnectionError: The client has disconnected.
    """

    def __init__(self, socket: web.WebSocketResponse, backend: SessionBackend) -> None:
        self._socket = socket
        self._backend = backend
        self._session: UserSession | None = None
        self._acks: set[asyncio.Future[None]] = set()
        self._limit = _RateLimit()

    async def authorize(self) -> None:
        """Read the client's first message and open its session."""
        try:
            async with asyncio.timeout(AUTHORIZE_SECONDS):
                kind, fields = await self._read()
        except TimeoutError:
            raise AuthorizeTimeout(f"no authorize within {AUTHORIZE_SECONDS:g} s") from None
        if kind != "authorize":
            raise Unauthenticated("the first message must be authorize")
        user = self._user(fields)
        cursor = None
        if fields.get("cursor") is not None:
            cursor = cursor_of(_parsed(fields["cursor"], pb.Cursor(), "authorize.cursor"))
        self._session = await self._backend.sessions.open(user, cursor, "websocket")

    async def run(self) -> None:
        """Serve the session until either side ends it."""
        session = self._session
        assert session, "authorize comes first"
        async with beside(self._receive_all(session)):
            while frames := await session.next():
                for frame in frames:
                    await self._send(frame.text)
                self._backend.metrics.shown["websocket"].inc(len(frames))
                await asyncio.sleep(0)  # sending to a client that reads never waits, and other tasks must run

    async def refuse(self, error: SuiteError) -> None:
        """Tell the client of an error and close the socket."""
        await self._send(orjson.dumps({"error": {"code": error.code.name, "message": str(error)}}))
        await self._socket.close(code=CLOSE_CODES.get(type(error), INTERNAL))

    def close(self) -> None:
        """Close the session."""
        if self._session:
            self._session.close()

    async def _receive_all(self, session: UserSession) -> None:
        """Handle messages until the client disconnects or sends an invalid one; the reason ends the session."""
        try:
            while True:
                await self._handle(session, *await self._read())
        except SuiteError as error:
            session.end(error)
        except ConnectionError:
            session.end(None)
        except Exception as error:
            log.error("WebSocket failed", exc_info=error)
            session.end(SuiteError("internal error; the server's log has the details"))

    async def _handle(self, session: UserSession, kind: str, fields: dict[str, Any]) -> None:
        if kind == "ack":
            await self._ack(session, fields)
        elif kind == "list":
            request = _parsed(fields, pb.ListEventsRequest(), "list")
            request.user_id = session.user_id
            page = await self._backend.dispatcher.records(query_of(request))
            await self._send(b'{"records":%b}' % proto_json(page_answer(page)))
        elif kind == "authorize":
            session.extend(self._user(fields))
        else:
            raise InvalidRequest("the message is not one of authorize, ack and list")

    async def _ack(self, session: UserSession, fields: dict[str, Any]) -> None:
        """Record an ack without waiting for it: the next commit writes it, and the order of acks does not matter."""
        (epoch, sequence), seen = ack_of(_parsed(fields, pb.AckEventRequest(), "ack"))
        written = asyncio.ensure_future(self._backend.dispatcher.acked(session.user_id, epoch, sequence, seen=seen))
        self._backend.metrics.acked("websocket", seen=seen)
        self._acks.add(written)

        def done(written: asyncio.Future[None]) -> None:
            self._acks.discard(written)
            if not written.cancelled() and (error := written.exception()):
                session.end(error if isinstance(error, SuiteError) else Unavailable("the ack was not stored"))

        written.add_done_callback(done)
        if len(self._acks) >= MAX_PENDING_ACKS:
            await asyncio.wait(self._acks, return_when=asyncio.FIRST_COMPLETED)

    def _user(self, fields: dict[str, Any]) -> TokenUser:
        token, name = fields.get("token"), fields.get("clientName", "")
        if not isinstance(token, str):
            raise Unauthenticated("authorize.token is missing")
        if not isinstance(name, str) or len(name) > MAX_NAME_CHARACTERS:
            raise InvalidRequest(f"authorize.clientName is not a string of at most {MAX_NAME_CHARACTERS} characters")
        return self._backend.tokens.user(token)

    async def _read(self) -> tuple[str, dict[str, Any]]:
        """Return the next message. Errors do not show it: it may hold a token."""
        await self._limit.acquire()
        message: WSMessage = await self._socket.receive()
        if message.type in (WSMsgType.CLOSE, WSMsgType.CLOSING, WSMsgType.CLOSED, WSMsgType.ERROR):
            raise ConnectionResetError
        if message.type is not WSMsgType.TEXT:
            raise InvalidRequest("the message is not text")
        try:
            ((kind, fields),) = orjson.loads(message.data).items()
        except (ValueError, AttributeError):
            raise InvalidRequest("the message is not a JSON object with one name") from None
        if not isinstance(fields, dict):
            raise InvalidRequest("the message's value is not a JSON object")
        return kind, fields

    async def _send(self, text: bytes) -> None:
        await self._socket.send_frame(text, WSMsgType.TEXT)


class _RateLimit:
    """Limit of the rate at which a client is read: a burst, then a number of messages per second."""

    def __init__(self) -> None:
        self._left = MESSAGES_BURST
        self._since_s = time.monotonic()

    async def acquire(self) -> None:
        now = time.monotonic()
        self._left = min(MESSAGES_BURST, self._left + (now - self._since_s) * MESSAGES_PER_SECOND) - 1
        self._since_s = now
        if self._left < 0:
            await asyncio.sleep(-self._left / MESSAGES_PER_SECOND)


def _parsed(fields: Any, message: M, name: str) -> M:
    try:
        parsed = json_format.ParseDict(fields, message)
    except (json_format.ParseError, TypeError, ValueError, AttributeError):
        raise InvalidRequest(f"{name} does not have the form of {message.DESCRIPTOR.name}") from None
    check_request(parsed)
    return parsed
