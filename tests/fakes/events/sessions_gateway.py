"""The gateway's sessions, page and gRPC services in front of a dispatcher in memory.

``python -m tests.fakes.events.sessions_gateway [--web HOST:PORT] [--page DIR]`` serves them by hand: prints the address
and a token of "alice", and sends her an event per second.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
from prometheus_client import CollectorRegistry

from dexorder_common.rpc.lifecycle import grpc_server
from dexorder_common.rpc.settings import ServiceSettings
from dexorder_gateway.events.config import EventsSettings
from dexorder_gateway.events.ingress.containers import ContainersFile
from dexorder_gateway.events.model import Event, EventMessage
from dexorder_gateway.events.publisher_service import EventPublisherService
from dexorder_gateway.events.service import (
    NAMES,
    OPTIONS,
    OWN_IDENTITY,
    ROLES,
    ContactService,
    EventLogService,
    EventService,
)
from dexorder_gateway.events.sessions import user_tokens
from dexorder_gateway.events.sessions.registry import SessionMetrics, SessionRegistry
from dexorder_gateway.events.sessions.web_server import PAGE, web_server
from dexorder_gateway.events.sessions.websocket import SessionBackend
from dexorder_protos.dexorder.events.v1 import event_service_pb2_grpc as rpc
from dexorder_protos.dexorder.events.v1 import user_events_pb2 as given
from tests.fakes.events.dispatcher import FakeDispatcher


@dataclass
class Served:
    """Addresses and parts of a running gateway, and the key that signs its tokens."""

    grpc: str
    web: str
    dispatcher: FakeDispatcher
    backend: SessionBackend
    publisher: EventPublisherService
    registry: CollectorRegistry
    key: Path

    def token(self, user_id: str, seconds: int = 600) -> str:
        return user_tokens.sign(self.key, user_id, seconds=seconds)


async def until(done: Callable[[], Any], seconds: float = 30.0) -> None:
    """Poll until a condition holds."""
    async with asyncio.timeout(seconds):
        while not done():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


def render(event: Event) -> EventMessage:
    """Return a plain text of an event."""
    return EventMessage("0" * 32, f"{event.key.event_id}!", event.payload.decode(), event.priority, event.timestamp_ms)


@asynccontextmanager
async def served(
    folder: Path, *, server: dict[str, Any] | None = None, page: Path = PAGE, **settings: Any
) -> AsyncIterator[Served]:
    """Run all parts until the block ends.

    Args:
        folder: Folder for the keys.
        server: Settings of the gRPC server.
        settings: Settings of user events.
    """
    key = folder / "jwt" / "test.key"
    if not key.exists():
        user_tokens.make_keys(folder / "jwt", "test")
    for_events: dict[str, Any] = {"web_listen": "127.0.0.1:0", "jwt_keys": folder / "jwt"} | settings
    for_server: dict[str, Any] = {"listen": "127.0.0.1:0", "drain_seconds": 1.0} | (server or {})
    events, service = EventsSettings(**for_events), ServiceSettings(**for_server)
    registry, dispatcher = CollectorRegistry(), FakeDispatcher()
    metrics, checked = SessionMetrics(registry), user_tokens.TokenVerifier(events)
    dispatcher.sessions = SessionRegistry(dispatcher, render, events, metrics)
    backend = SessionBackend(dispatcher.sessions, dispatcher, checked, metrics)
    publisher = EventPublisherService(dispatcher, ContainersFile(events.containers).current)

    def register(server: grpc.aio.Server) -> Sequence[str]:
        rpc.add_EventServiceServicer_to_server(EventService(backend), server)
        rpc.add_EventPublisherServiceServicer_to_server(publisher, server)
        rpc.add_EventLogServiceServicer_to_server(EventLogService(dispatcher), server)
        contacts = ContactService(dispatcher, checked, events, identity=service.identity != "none")
        rpc.add_ContactServiceServicer_to_server(contacts, server)
        return NAMES

    async with (
        grpc_server(
            service, register, registry=registry, roles=ROLES, own_identity=OWN_IDENTITY, options=OPTIONS
        ) as running,
        web_server(events, backend, page=page) as web,
    ):
        try:
            yield Served(running.address, web, dispatcher, backend, publisher, registry, key)
        finally:
            publisher.stop_taking()
            dispatcher.sessions.stop()


async def main(arguments: list[str] | None = None) -> None:
    """Serve by hand."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--web", default="127.0.0.1:8080")
    parser.add_argument("--page", type=Path, default=PAGE)
    asked = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        async with served(Path(folder), page=asked.page, web_listen=asked.web) as gateway:
            print(f"http://{gateway.web}/ and gRPC at {gateway.grpc}\ntoken of alice: {gateway.token('alice', 900)}")
            number = 0
            while True:
                await asyncio.sleep(1)
                number += 1
                payload = {"symbol": "BTC/USDT", "side": "buy", "quantity": "0.5", "price": "60000", "status": "filled"}
                gateway.dispatcher.keep(
                    "alice", f"order-{number}", event_type=given.ORDER_FILLED, payload=json.dumps(payload).encode()
                )


if __name__ == "__main__":
    asyncio.run(main())
