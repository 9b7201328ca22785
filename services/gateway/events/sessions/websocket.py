"""One WebSocket: text frames of JSON, in protobuf's mapping.

client   {"authorize": {"token": "...", "cursor": {"epoch": "...", "sequence": "41"} or null, "clientName": "..."}}
         first, within 5 s; again before the token expires, with a fresh one of the same user
         {"ack": {"place": {...}, "kind": "ACK_KIND_RECEIVED" or "ACK_KIND_SEEN"}}
         {"list": {"pageSize": 20, "pageToken": "", "status": "QUEUED", "container": "..."}}; all may be left out
gateway  {"opened": {...}} or {"reset": {...}} first, then {"event": {...}}: SubscribeResponse. A further
         {"opened": {...}} answers a further authorize, with the place reached and the new expiry
         {"records": {...}}: ListEventsResponse of this user's events, one for each list, in order
         {"error": {"code": "UNAUTHENTICATED", "message": "..."}} and then a close with a code of `CLOSE_CODES`
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

from services.common.model.errors import (
    Code,
    Exhausted,
    InvalidRequest,
    NotAllowed,
    SuiteError,
    Unauthenticated,
    Unavailable,
)
from services.common.rpc.streams import beside
from services.gateway.events.dispatcher.port import DispatcherPort
from services.gateway.events.proto_mapping import ack_of, page_answer, place_of, query_of
from services.gateway.events.sessions.metrics import SessionMetrics
from services.gateway.events.sessions.registry import SessionRegistry
from services.gateway.events.sessions.session import Session
from services.gateway.events.sessions.session_frames import proto_json
from services.gateway.events.sessions.user_tokens import LARGEST_TOKEN, TokenVerifier, User
from services.gen.dexorder.events.v1 import event_service_pb2 as pb

log = structlog.get_logger(__name__)
M = TypeVar("M", bound=Message)
AUTHORIZE_SECONDS = 5.0
LARGEST_MESSAGE = 2 * LARGEST_TOKEN
"""Bytes of a client's message; a larger one ends the connection with 1009."""
LONGEST_NAME = 64
MESSAGES_PER_SECOND, MESSAGES_AT_ONCE = 1_000.0, 10_000.0
"""A client that says more is read more slowly."""
MOST_ACKS = 1_000
"""Most acks that wait for the disk; then no more is read."""


class TooLate(SuiteError):
    """The client did not say who it is."""

    code = Code.DEADLINE_EXCEEDED


CLOSE_CODES: Mapping[type[SuiteError], int] = {
    InvalidRequest: 4400,
    Unauthenticated: 4401,
    NotAllowed: 4403,
    TooLate: 4408,
    Exhausted: 4429,
    Unavailable: 1013,
}
_INTERNAL = 1011


def close_code(error: SuiteError) -> int:
    """With which a WebSocket is closed."""
    return CLOSE_CODES.get(type(error), _INTERNAL)


def error_text(error: SuiteError) -> bytes:
    """What it is told before."""
    return orjson.dumps({"error": {"code": error.code.name, "message": str(error)}})


@dataclass(frozen=True, slots=True)
class SessionBackend:
    """What every conversation needs."""

    sessions: SessionRegistry
    dispatcher: DispatcherPort
    tokens: TokenVerifier
    metrics: SessionMetrics


class WebSocketConnection:
    """``authorize``, then ``run``, then ``close``, in one task.

    Raises:
        SuiteError: To be told to the client; it ends the conversation.
        ConnectionError: The client is gone.
    """

    def __init__(self, socket: web.WebSocketResponse, backend: SessionBackend) -> None:
        self._socket = socket
        self._backend = backend
        self._session: Session | None = None
        self._acks: set[asyncio.Future[None]] = set()
        self._allowance = _Allowance()

    async def authorize(self) -> None:
        """Let the client say who it is, and open its session."""
        try:
            async with asyncio.timeout(AUTHORIZE_SECONDS):
                message = await self._read()
        except TimeoutError:
            raise TooLate(f"no authorize within {AUTHORIZE_SECONDS:g} s") from None
        if message is None:
            raise ConnectionResetError
        kind, said = message
        if kind != "authorize":
            raise Unauthenticated("the first message must be authorize")
        user = self._user(said)
        cursor = _parsed(said["cursor"], pb.Cursor(), "authorize.cursor") if said.get("cursor") is not None else None
        self._session = await self._backend.sessions.open(user, place_of(cursor) if cursor else None, "websocket")

    async def run(self) -> None:
        """Until one of the sides ends it."""
        session = self._opened()
        async with beside(self._listen(session)):
            while items := await session.next():
                for item in items:
                    await self._send(item.text)
                self._backend.metrics.shown("websocket", len(items))
                await asyncio.sleep(0)  # sending to a client that reads waits for nothing, and others wait for us

    def close(self) -> None:
        """No more of it."""
        if self._session:
            self._session.close()

    # ---- what the client says

    async def _listen(self, session: Session) -> None:
        """Until it says no more; the session is told what ended that."""
        try:
            while (message := await self._read()) is not None:
                await self._hear(session, *message)
        except SuiteError as error:
            session.end(error)
        except ConnectionError:
            session.end(None)
        except Exception as error:
            log.error("conversation failed", exc_info=error)
            session.end(SuiteError("internal error; the server's log has the details"))
        else:
            session.end(None)

    async def _hear(self, session: Session, kind: str, said: dict[str, Any]) -> None:
        if kind == "ack":
            await self._ack(session, said)
        elif kind == "list":
            request = _parsed(said, pb.ListEventsRequest(), "list")
            request.user_id = session.user_id
            page = await self._backend.dispatcher.records(query_of(request))
            await self._send(b'{"records":%b}' % proto_json(page_answer(page)))
        elif kind == "authorize":
            session.extend(self._user(said))
        else:
            raise InvalidRequest("a message is one of authorize, ack and list")

    async def _ack(self, session: Session, said: dict[str, Any]) -> None:
        """They are not waited for one by one: each is on disk with the next commit, and order changes nothing."""
        (epoch, sequence), seen = ack_of(_parsed(said, pb.AckRequest(), "ack"))
        done = asyncio.ensure_future(self._backend.dispatcher.acked(session.user_id, epoch, sequence, seen=seen))
        self._backend.metrics.acked("websocket", seen=seen)
        self._acks.add(done)

        def acked(done: asyncio.Future[None]) -> None:
            self._acks.discard(done)
            if not done.cancelled() and (error := done.exception()):
                session.end(error if isinstance(error, SuiteError) else Unavailable("the ack was not kept"))

        done.add_done_callback(acked)
        if len(self._acks) >= MOST_ACKS:
            await asyncio.wait(self._acks, return_when=asyncio.FIRST_COMPLETED)

    def _user(self, said: dict[str, Any]) -> User:
        token, name = said.get("token"), said.get("clientName", "")
        if not isinstance(token, str):
            raise Unauthenticated("authorize.token is missing")
        if not isinstance(name, str) or len(name) > LONGEST_NAME:
            raise InvalidRequest(f"authorize.clientName is no text of up to {LONGEST_NAME} characters")
        return self._backend.tokens.user(token)

    async def _read(self) -> tuple[str, dict[str, Any]] | None:
        """What the client says next, None when it is gone. Nothing of it is in an error: it may be a token."""
        await self._allowance.take()
        message: WSMessage = await self._socket.receive()
        if message.type in (WSMsgType.CLOSE, WSMsgType.CLOSING, WSMsgType.CLOSED, WSMsgType.ERROR):
            return None
        if message.type is not WSMsgType.TEXT:
            raise InvalidRequest("a message is not text")
        try:
            ((kind, said),) = orjson.loads(message.data).items()
        except (ValueError, AttributeError):
            raise InvalidRequest("a message is not a JSON object with one name") from None
        if not isinstance(said, dict):
            raise InvalidRequest("what a message says is not a JSON object")
        return kind, said

    # ---- what it is told

    async def _send(self, text: bytes) -> None:
        await self._socket.send_frame(text, WSMsgType.TEXT)

    def _opened(self) -> Session:
        assert self._session, "authorize comes first"
        return self._session


class _Allowance:
    """Paces what is read: so many at once, then so many a second."""

    def __init__(self) -> None:
        self._left = MESSAGES_AT_ONCE
        self._since_s = time.monotonic()

    async def take(self) -> None:
        now = time.monotonic()
        self._left = min(MESSAGES_AT_ONCE, self._left + (now - self._since_s) * MESSAGES_PER_SECOND) - 1
        self._since_s = now
        if self._left < 0:
            await asyncio.sleep(-self._left / MESSAGES_PER_SECOND)


def _parsed(said: Any, message: M, name: str) -> M:
    try:
        return json_format.ParseDict(said, message)
    except (json_format.ParseError, TypeError, ValueError, AttributeError):
        raise InvalidRequest(f"{name} is not of its form") from None
