"""Start and stop of all parts of user events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

import grpc
import structlog
from prometheus_client import CollectorRegistry

from dexorder_gateway.events import service
from dexorder_gateway.events.channels.registry import open_channels
from dexorder_gateway.events.channels.rendering import render
from dexorder_gateway.events.config import EventsSettings
from dexorder_gateway.events.dispatcher.dispatcher import EventDispatcher
from dexorder_gateway.events.dispatcher.metrics import DispatcherMetrics, SendMetrics
from dexorder_gateway.events.dispatcher.port import DispatcherOutputs
from dexorder_gateway.events.dispatcher.sender import ChannelSender
from dexorder_gateway.events.dispatcher.start import open_dispatcher
from dexorder_gateway.events.publisher_service import EventPublisherService
from dexorder_gateway.events.service import ContactService, EventLogService, EventService
from dexorder_gateway.events.sessions.registry import SessionMetrics, SessionRegistry
from dexorder_gateway.events.sessions.user_tokens import TokenVerifier
from dexorder_gateway.events.sessions.web_server import web_server
from dexorder_gateway.events.sessions.websocket import SessionBackend
from dexorder_protos.dexorder.events.v1 import event_service_pb2_grpc as rpc

log = structlog.get_logger(__name__)


class UserEvents:
    """All running parts, with the arguments of `lifecycle.grpc_server` for their services."""

    names = service.NAMES
    roles = service.ROLES
    own_identity = service.OWN_IDENTITY
    options = service.OPTIONS

    def __init__(self, dispatcher: EventDispatcher, backend: SessionBackend, settings: EventsSettings) -> None:
        self._dispatcher = dispatcher
        self._backend = backend
        self.settings = settings
        self._publisher = EventPublisherService(dispatcher, dispatcher.containers.current)

    def register(self, server: grpc.aio.Server, *, identity: bool) -> Sequence[str]:
        """Add the gRPC services and return their full names."""
        contacts = ContactService(self._dispatcher, self._backend.tokens, self.settings, identity=identity)
        rpc.add_EventServiceServicer_to_server(EventService(self._backend), server)
        rpc.add_EventPublisherServiceServicer_to_server(self._publisher, server)
        rpc.add_EventLogServiceServicer_to_server(EventLogService(self._dispatcher), server)
        rpc.add_ContactServiceServicer_to_server(contacts, server)
        return self.names

    async def until_failed(self) -> None:
        """Wait until the dispatcher fails, and raise its error."""
        await asyncio.shield(self._dispatcher.failed)

    async def report_space(self, set_serving: Callable[[bool], Awaitable[None]]) -> None:
        """Report whether events can be taken: not while the disk is full."""
        dispatcher = self._dispatcher
        while True:
            await dispatcher.full.wait()
            log.error("the disk of the events is full; new events wait until it has space, acknowledged ones are safe")
            await set_serving(False)
            await dispatcher.space.wait()
            log.info("the disk has space again")
            await set_serving(True)

    def stop_taking(self) -> None:
        """Refuse new events and end the sessions; their clients resume from their cursors."""
        self._dispatcher.stop_taking()
        self._publisher.stop_taking()
        self._backend.sessions.stop()


@asynccontextmanager
async def user_events(
    settings: EventsSettings, registry: CollectorRegistry, *, admits: Callable[[str], bool] | None = None
) -> AsyncIterator[UserEvents]:
    """Run everything but the gRPC server until the block ends.

    Then the page closes, calls of providers are cancelled (the next start repeats them) and changes are written.

    Args:
        admits: Decides which IP addresses may use unencrypted ports; None: any.
    Raises:
        BadSettings: A setting can't be used; names its variable.
        OSError: An address can't be bound.
    """
    async with AsyncExitStack() as stack:
        channels = await stack.enter_async_context(open_channels(settings))
        text = partial(render, link_url=settings.link_url)
        dispatcher = await stack.enter_async_context(
            open_dispatcher(
                settings, DispatcherMetrics(registry), render=text, reachable=channels.reachable, admits=admits
            )
        )
        sender = ChannelSender(channels, settings, dispatcher.finished, SendMetrics(registry))
        metrics = SessionMetrics(registry)
        tokens = TokenVerifier(settings)
        # without the link, which leads to the page that shows the session
        sessions = SessionRegistry(dispatcher, partial(render, link_url=""), settings, metrics)
        dispatcher.outputs = DispatcherOutputs(sender.send, sessions.show, sessions.show_transient)
        await stack.enter_async_context(sender)
        backend = SessionBackend(sessions, dispatcher, tokens, metrics)
        await stack.enter_async_context(web_server(settings, backend, healthy=dispatcher.is_healthy, admits=admits))
        log.info("user events served", fast=dispatcher.sub_address, guaranteed=dispatcher.router_address)
        yield UserEvents(dispatcher, backend, settings)
