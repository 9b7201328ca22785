"""gRPC services of user events except publishing: sessions, records of events, and users' contacts.

EventService and ContactService authenticate their callers themselves, because users show a JWT and are not in the
callers file; then they check the rules of the request's fields. ``lifecycle.grpc_server`` needs `OWN_IDENTITY` and
`ROLES`, and `OPTIONS` to detect frozen clients.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping
from typing import Any

import grpc
from google.protobuf.message import Message

from dexorder_common.clock import SystemClock
from dexorder_common.model.errors import (
    AUTHORIZATION,
    OWN_AUTHORIZATION,
    InvalidRequest,
    NotAllowed,
    NotFound,
    SuiteError,
)
from dexorder_common.model.user_events import SESSION_CHANNELS, Channel
from dexorder_common.rpc.field_rules import check_request
from dexorder_common.rpc.identity import STAFF, Role, bearer_token, current_caller, trusted_socket
from dexorder_gateway.events.channels.spec import EventChannelSettings
from dexorder_gateway.events.dispatcher.port import DispatcherPort
from dexorder_gateway.events.proto_mapping import (
    ack_of,
    contacts_answer,
    contacts_of,
    cursor_of,
    key_of,
    page_answer,
    query_of,
    record_answer,
)
from dexorder_gateway.events.sessions.session_frames import join_frames
from dexorder_gateway.events.sessions.user_tokens import MAX_USER_ID_BYTES, TokenUser, TokenVerifier
from dexorder_gateway.events.sessions.websocket import SessionBackend
from dexorder_protos.dexorder.events.v1 import event_service_pb2 as pb
from dexorder_protos.dexorder.events.v1 import event_service_pb2_grpc as rpc

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
    ("grpc.http2.ping_timeout_ms", 5_000),  # the default is a minute, which the keepalive's timeout does not shorten
)
"""Time after which a frozen or vanished client is disconnected."""
_PRESENCE = {channel.value: channel for channel in Channel if channel not in SESSION_CHANNELS}


class EventService(rpc.EventServiceServicer):
    """Sessions of users."""

    def __init__(self, backend: SessionBackend) -> None:
        self._backend = backend

    async def WatchEvents(self, request: pb.WatchEventsRequest, context: Context) -> AsyncIterator[list[bytes]]:  # type: ignore[override]  # noqa: N802
        """Open a session; yields lists of serialized responses, as `server_interceptor` accepts them."""
        try:
            user = self._user(request, context)
            cursor = cursor_of(request.cursor) if request.HasField("cursor") else None
            session = await self._backend.sessions.open(user, cursor, "grpc")
        except SuiteError as error:
            self._backend.metrics.refused.labels("grpc", error.code.name).inc()
            raise
        try:
            while frames := await session.next():
                max_events = request.max_events
                yield list(join_frames(frames, max_events)) if max_events else [frame.wire for frame in frames]
                self._backend.metrics.shown["grpc"].inc(len(frames))
        finally:
            session.close()

    async def AckEvent(self, request: pb.AckEventRequest, context: Context) -> pb.AckEventResponse:  # noqa: N802
        """Record an ack; answers when it is on disk."""
        user = self._user(request, context)
        (epoch, sequence), seen = ack_of(request)
        self._backend.metrics.acked("grpc", seen=seen)
        await self._backend.dispatcher.acked(user.user_id, epoch, sequence, seen=seen)
        return pb.AckEventResponse()

    def _user(self, request: Message, context: Context) -> TokenUser:
        user = self._backend.tokens.user(bearer_token(context))
        check_request(request)
        return user


class EventLogService(rpc.EventLogServiceServicer):
    """Records of events."""

    def __init__(self, dispatcher: DispatcherPort) -> None:
        self._dispatcher = dispatcher

    async def GetEvent(self, request: pb.GetEventRequest, context: Context) -> pb.GetEventResponse:  # noqa: N802
        """Return the record of one event."""
        record = await self._dispatcher.record(key_of(request))
        if record is None:
            raise NotFound(
                f"event_id {request.event_id[:64]!r} of container {request.container[:64]!r} was never accepted, or is "
                "past its retention"
            )
        return pb.GetEventResponse(record=record_answer(record))

    async def ListEvents(self, request: pb.ListEventsRequest, context: Context) -> pb.ListEventsResponse:  # noqa: N802
        """Return a page of records, newest first."""
        return page_answer(await self._dispatcher.records(query_of(request)))


class ContactService(rpc.ContactServiceServicer):
    """Contacts and presence of users."""

    def __init__(
        self, dispatcher: DispatcherPort, tokens: TokenVerifier, settings: EventChannelSettings, *, identity: bool
    ) -> None:
        """Create the service; without ``identity``, a caller without a token is staff, as for all services."""
        self._dispatcher = dispatcher
        self._tokens = tokens
        self._settings = settings
        self._identity = identity

    async def GetContacts(self, request: pb.GetContactsRequest, context: Context) -> pb.GetContactsResponse:  # noqa: N802
        """Return a user's contacts."""
        user_id = self._user_id(request, context)
        return pb.GetContactsResponse(contacts=contacts_answer(await self._dispatcher.contacts(user_id)))

    async def SetContacts(self, request: pb.SetContactsRequest, context: Context) -> pb.SetContactsResponse:  # noqa: N802
        """Replace a user's contacts."""
        user_id = self._user_id(request, context)
        before = await self._dispatcher.contacts(user_id)
        await self._dispatcher.set_contacts(user_id, contacts_of(request.contacts, before, self._settings))
        return pb.SetContactsResponse()

    async def ReportPresence(  # noqa: N802
        self, request: pb.ReportPresenceRequest, context: Context
    ) -> pb.ReportPresenceResponse:
        """Record that a user is active on a channel."""
        if not self._is_staff(context):
            raise NotAllowed("only staff may report presence")
        user_id = self._user_id(request, context)
        if request.channel not in _PRESENCE:
            raise InvalidRequest(f"channel {request.channel} is not a channel outside of sessions")
        until_ns = SystemClock().wall_ns() + request.active_seconds * 1_000_000_000
        self._dispatcher.user_active(user_id, _PRESENCE[request.channel], until_ns)
        return pb.ReportPresenceResponse()

    def _user_id(
        self, request: pb.GetContactsRequest | pb.SetContactsRequest | pb.ReportPresenceRequest, context: Context
    ) -> str:
        """Return the user that the call is about, and check the request's fields once it is known who calls."""
        own = None if self._is_staff(context) else self._tokens.user(bearer_token(context)).user_id
        check_request(request)
        user_id = request.user_id
        if own is None:
            if not 0 < len(user_id.encode()) <= MAX_USER_ID_BYTES or not user_id.isprintable():
                raise InvalidRequest(f"user_id does not have 1 to {MAX_USER_ID_BYTES} bytes, all printable")
            return user_id
        if user_id not in ("", own):
            raise NotAllowed("a user may only access their own contacts")
        return own

    def _is_staff(self, context: Context) -> bool:
        if caller := current_caller():
            return caller.role in STAFF
        has_token = any(key in (AUTHORIZATION, OWN_AUTHORIZATION) for key, _ in context.invocation_metadata() or ())
        return not has_token and (not self._identity or trusted_socket(context))
