"""The gRPC services of user events but publishing: sessions, what became of events, and users' contacts.

EventService and ContactService check their callers themselves, since a user's JWT is in no callers file: give
`OWN_IDENTITY` and `ROLES` to ``lifecycle.grpc_server``, and `OPTIONS`, by which frozen clients are noticed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping
from typing import Any

import grpc

from services.common.clock import Clock, SystemClock
from services.common.model.errors import InvalidRequest, NotAllowed, NotFound, SuiteError
from services.common.model.user_events import SESSION_CHANNELS, Channel
from services.common.rpc.identity import STAFF, Role, bearer_token, current_caller, trusted_socket
from services.gateway.events.contacts import HostCheck, contacts_answer, contacts_of
from services.gateway.events.dispatcher.port import DispatcherPort
from services.gateway.events.proto_mapping import ack_of, key_of, page_answer, place_of, query_of, record_answer
from services.gateway.events.sessions.session_frames import join_frames
from services.gateway.events.sessions.user_tokens import LONGEST_USER_ID, TokenVerifier, User
from services.gateway.events.sessions.websocket import LONGEST_NAME, SessionBackend
from services.gen.dexorder.events.v1 import event_service_pb2 as pb
from services.gen.dexorder.events.v1 import event_service_pb2_grpc as rpc

Context = grpc.aio.ServicerContext[Any, Any]
_SERVICES = pb.DESCRIPTOR.services_by_name
EVENTS, PUBLISHER, LOG, CONTACTS = (
    _SERVICES[name].full_name for name in ("EventService", "EventPublisherService", "EventLogService", "ContactService")
)
NAMES = (EVENTS, PUBLISHER, LOG, CONTACTS)
OWN_IDENTITY = (EVENTS, CONTACTS)
ROLES: Mapping[str, Collection[Role]] = {PUBLISHER: tuple(Role), LOG: STAFF}
OPTIONS = (
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.ping_timeout_ms", 5_000),  # gRPC's own is a minute, and the keepalive's does not shorten it
)
"""A client that is frozen or has vanished is cut after as long."""
LONGEST_PRESENCE_SECONDS = 30 * 86_400
_PRESENCE = {channel.value: channel for channel in Channel if channel not in SESSION_CHANNELS}


class EventService(rpc.EventServiceServicer):
    """Sessions of users."""

    def __init__(self, backend: SessionBackend) -> None:
        self._backend = backend

    async def Subscribe(self, request: pb.SubscribeRequest, context: Context) -> AsyncIterator[list[bytes]]:  # type: ignore[override]  # noqa: N802
        """Lists of serialized answers, as `server_interceptor` takes them."""
        try:
            user = self._user(context)
            if len(request.client_name) > LONGEST_NAME:
                raise InvalidRequest(f"client_name has more than {LONGEST_NAME} characters")
            cursor = place_of(request.cursor) if request.HasField("cursor") else None
            session = await self._backend.sessions.open(user, cursor, "grpc")
        except SuiteError as error:
            self._backend.metrics.refused("grpc", error.code.name)
            raise
        try:
            while items := await session.next():
                most = request.most_events
                yield list(join_frames(items, most)) if most else [item.wire for item in items]
                self._backend.metrics.shown("grpc", len(items))
        finally:
            session.close()

    async def Ack(self, request: pb.AckRequest, context: Context) -> pb.AckResponse:  # noqa: N802
        """Answered when it is on disk."""
        user = self._user(context)
        (epoch, sequence), seen = ack_of(request)
        self._backend.metrics.acked("grpc", seen=seen)
        await self._backend.dispatcher.acked(user.user_id, epoch, sequence, seen=seen)
        return pb.AckResponse()

    def _user(self, context: Context) -> User:
        return self._backend.tokens.user(bearer_token(context))


class EventLogService(rpc.EventLogServiceServicer):
    """What became of events."""

    def __init__(self, dispatcher: DispatcherPort) -> None:
        self._dispatcher = dispatcher

    async def GetEvent(self, request: pb.GetEventRequest, context: Context) -> pb.GetEventResponse:  # noqa: N802
        """One event."""
        record = await self._dispatcher.record(key_of(request))
        if record is None:
            raise NotFound(
                f"event_id {request.event_id[:64]!r} of container {request.container[:64]!r} was never accepted, or is "
                "past its retention"
            )
        return pb.GetEventResponse(record=record_answer(record))

    async def ListEvents(self, request: pb.ListEventsRequest, context: Context) -> pb.ListEventsResponse:  # noqa: N802
        """A page of events."""
        return page_answer(await self._dispatcher.records(query_of(request)))


class ContactService(rpc.ContactServiceServicer):
    """How users can be reached."""

    def __init__(
        self,
        dispatcher: DispatcherPort,
        tokens: TokenVerifier,
        host_problem: HostCheck,
        *,
        identity: bool,
        clock: Clock | None = None,
    ) -> None:
        """Made once.

        Args:
            identity: Whether the server asks callers who they are. If not, one who shows no token is staff, as for all
                services.
        """
        self._dispatcher = dispatcher
        self._tokens = tokens
        self._host_problem = host_problem
        self._identity = identity
        self._clock = clock or SystemClock()

    async def GetContacts(self, request: pb.GetContactsRequest, context: Context) -> pb.GetContactsResponse:  # noqa: N802
        """A user's contacts."""
        user_id = self._whose(request.user_id, context)
        return pb.GetContactsResponse(contacts=contacts_answer(await self._dispatcher.contacts(user_id)))

    async def SetContacts(self, request: pb.SetContactsRequest, context: Context) -> pb.SetContactsResponse:  # noqa: N802
        """Replace them."""
        user_id = self._whose(request.user_id, context)
        before = await self._dispatcher.contacts(user_id)
        await self._dispatcher.set_contacts(user_id, contacts_of(request.contacts, before, self._host_problem))
        return pb.SetContactsResponse()

    async def ReportPresence(  # noqa: N802
        self, request: pb.ReportPresenceRequest, context: Context
    ) -> pb.ReportPresenceResponse:
        """A user is active on a channel."""
        if not self._is_staff(context):
            raise NotAllowed("presence is reported by staff")
        user_id = self._whose(request.user_id, context)
        channel = request.channel
        if channel not in _PRESENCE:
            raise InvalidRequest(f"channel {channel} is none outside of sessions")
        if request.active_seconds > LONGEST_PRESENCE_SECONDS:
            raise InvalidRequest(f"active_seconds {request.active_seconds} is above {LONGEST_PRESENCE_SECONDS}")
        until_ns = self._clock.wall_ns() + request.active_seconds * 1_000_000_000
        self._dispatcher.user_active(user_id, _PRESENCE[channel], until_ns)
        return pb.ReportPresenceResponse()

    def _whose(self, user_id: str, context: Context) -> str:
        """Whose contacts the call is about.

        Raises:
            Unauthenticated: The caller is neither staff nor a user.
            NotAllowed: A user asks for another one's.
            InvalidRequest: Staff names nobody.
        """
        if self._is_staff(context):
            if not 0 < len(user_id.encode()) <= LONGEST_USER_ID or "\0" in user_id:
                raise InvalidRequest(f"user_id is not of 1 to {LONGEST_USER_ID} bytes without NUL")
            return user_id
        own = self._tokens.user(bearer_token(context)).user_id
        if user_id not in ("", own):
            raise NotAllowed("a user's token is for that user's own contacts")
        return own

    def _is_staff(self, context: Context) -> bool:
        if caller := current_caller():
            return caller.role in STAFF
        return not (self._identity and not trusted_socket(context)) and not _shows_a_token(context)


def _shows_a_token(context: Context) -> bool:
    return any(key == "authorization" for key, _ in context.invocation_metadata() or ())
