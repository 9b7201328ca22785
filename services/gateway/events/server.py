"""User events: what of them starts, and in which order it stops."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

import grpc
import structlog
from prometheus_client import CollectorRegistry

from services.gateway.events import service
from services.gateway.events.channels.registry import open_channels
from services.gateway.events.channels.rendering import render
from services.gateway.events.config import EventsSettings
from services.gateway.events.contacts import host_check
from services.gateway.events.delivery.changes import SendRequest, SessionEvent
from services.gateway.events.dispatcher.dispatcher import Dispatcher
from services.gateway.events.dispatcher.metrics import DispatcherMetrics, SendMetrics
from services.gateway.events.dispatcher.sender import Sender
from services.gateway.events.dispatcher.start import open_dispatcher
from services.gateway.events.ingress.publisher_service import EventPublisherService
from services.gateway.events.service import ContactService, EventLogService, EventService
from services.gateway.events.sessions.metrics import SessionMetrics
from services.gateway.events.sessions.registry import SessionRegistry
from services.gateway.events.sessions.user_tokens import TokenVerifier
from services.gateway.events.sessions.web_server import web_server
from services.gateway.events.sessions.websocket import SessionBackend
from services.gateway.events.store.records import TransientEvent
from services.gen.dexorder.events.v1 import event_service_pb2_grpc as rpc

log = structlog.get_logger(__name__)


class _Outside:
    """Gives what the dispatcher decided to those who do it; they are made after it."""

    sender: Sender
    sessions: SessionRegistry

    def send(self, sends: Sequence[SendRequest]) -> None:
        self.sender.send(sends)

    def show(self, shows: Sequence[SessionEvent]) -> None:
        self.sessions.show(shows)

    def inform(self, informed: Sequence[TransientEvent]) -> None:
        self.sessions.inform(informed)


class UserEvents:
    """All parts, at work; and what a gRPC server must know of their services.

    Attributes:
        names: Full names of the services.
        roles, own_identity, options: As `lifecycle.grpc_server` takes them.
    """

    names, roles, own_identity, options = service.NAMES, service.ROLES, service.OWN_IDENTITY, service.OPTIONS

    def __init__(self, dispatcher: Dispatcher, backend: SessionBackend, settings: EventsSettings) -> None:
        self._dispatcher = dispatcher
        self._backend = backend
        self._settings = settings
        self._publisher = EventPublisherService(dispatcher, dispatcher.containers.current)

    def register(self, server: grpc.aio.Server, *, identity: bool) -> Sequence[str]:
        """Add the gRPC services; their full names."""
        hosts = host_check(self._settings)
        contacts = ContactService(self._dispatcher, self._backend.tokens, hosts, identity=identity)
        rpc.add_EventServiceServicer_to_server(EventService(self._backend), server)
        rpc.add_EventPublisherServiceServicer_to_server(self._publisher, server)
        rpc.add_EventLogServiceServicer_to_server(EventLogService(self._dispatcher), server)
        rpc.add_ContactServiceServicer_to_server(contacts, server)
        return self.names

    async def until_failed(self) -> None:
        """Raise what ended the dispatcher."""
        await asyncio.shield(self._dispatcher.failed)

    def stop_taking(self) -> None:
        """Take no more events, and end the sessions, which go on elsewhere or later from their cursors."""
        self._dispatcher.stop_taking()
        self._publisher.stop_taking()
        self._backend.sessions.stop()


@asynccontextmanager
async def user_events(settings: EventsSettings, registry: CollectorRegistry) -> AsyncIterator[UserEvents]:
    """Everything but the gRPC server, until the block ends.

    Then the page closes; calls of providers are cut off, to be made again after the next start; what the dispatcher was
    told is written.

    Raises:
        BadSettings: A setting can't be used; names its variable.
        OSError: An address can't be bound.
    """
    async with AsyncExitStack() as stack:
        ways = await stack.enter_async_context(open_channels(settings))
        reads, outside = partial(render, link_url=settings.link_url), _Outside()
        dispatcher = await stack.enter_async_context(
            open_dispatcher(settings, outside, DispatcherMetrics(registry), render=reads, reachable=ways.reachable)
        )
        outside.sender = Sender(ways, settings, dispatcher.finished, SendMetrics(registry))
        metrics, tokens = SessionMetrics(registry), TokenVerifier.of(settings)
        # without the link: who sees it there is on that page
        outside.sessions = SessionRegistry(dispatcher, partial(render, link_url=""), settings, metrics)
        await stack.enter_async_context(outside.sender)
        backend = SessionBackend(outside.sessions, dispatcher, tokens, metrics)
        await stack.enter_async_context(web_server(settings, backend, healthy=lambda: not dispatcher.failed.done()))
        log.info("events", fast=dispatcher.sub_address, guaranteed=dispatcher.router_address)
        yield UserEvents(dispatcher, backend, settings)
