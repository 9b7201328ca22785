"""A gateway with providers, containers and users that no other test uses."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc

from dexorder.events import AsyncPublisher
from dexorder_protos.dexorder.events.v1 import event_service_pb2 as pb
from dexorder_protos.dexorder.events.v1 import event_service_pb2_grpc as rpc
from dexorder_protos.dexorder.events.v1 import user_events_pb2 as given
from tests.integration.events import sessions
from tests.integration.events.container import PATIENCE_S, Container, until
from tests.integration.events.provider_servers import ProviderServers
from tests.rig.events_gateway import EventsGateway, Keys

SPARE_CONTAINERS = 80
KINDS = ("browser", "native")
_USERS = itertools.count()
"""Shared by all rigs, as they share the providers."""


@dataclass
class Rig:
    """Gateway of tests, with its peers.

    Attributes:
        secrets: Texts that no log may have in it.
    """

    gateway: EventsGateway
    keys: Keys
    provider_servers: ProviderServers
    secrets: set[str] = field(default_factory=set)
    _names: Any = field(default_factory=itertools.count)

    def name(self) -> str:
        """Return a new container, which may send for all users."""
        return f"spare-{next(self._names)}"

    def user(self) -> str:
        """Return a new user."""
        return f"user-{next(_USERS)}"

    def container(self, name: str | None = None, identity: bytes | None = None) -> Container:
        """Return a container's connections."""
        curve = (*self.keys.pairs[name or self.name()], self.keys.gateway_key) if self.gateway.curve else None
        return Container(self.gateway.sub, self.gateway.router, curve, identity)

    async def bot(self, outbox: Path, **options: Any) -> AsyncPublisher:
        """Return a container with our own library, to be closed; ``options`` as in `Publisher`."""
        return await AsyncPublisher.open(
            outbox=outbox,
            fast=self.gateway.sub,
            guaranteed=self.gateway.router,
            curve_key=self.keys.secret_file(self.name()),
            curve_server=self.keys.gateway_file.with_suffix(".key"),
            **options,
        )

    def token(self, user: str, **options: Any) -> str:
        """Return a user's JWT, which is remembered as a secret."""
        token = self.keys.token(user, **options)
        self.secrets.add(token)
        return token

    def session(
        self, user: str, kind: str = "browser", cursor: pb.Cursor | None = None
    ) -> Any:  # an async context manager of a Session
        """Return an open session of a user."""
        if kind == "native":
            return sessions.native(self.gateway.address, self.token(user), cursor)
        return sessions.browser(self.gateway.web, self.token(user), cursor)

    async def reachable(self, user: str, **further: Any) -> pb.Contacts:
        """Give a user a contact on every channel, known to the providers; ``further`` replaces some."""
        contacts = pb.Contacts(**{**self.provider_servers.contacts(user), **further})
        self.secrets |= self.provider_servers.secrets(user)
        await self.set_contacts(user, contacts)
        return contacts

    async def set_contacts(self, user: str, contacts: pb.Contacts) -> None:
        """Set contacts as the user."""
        await self.call(rpc.ContactServiceStub, "SetContacts", pb.SetContactsRequest(contacts=contacts), user)

    async def contacts(self, user: str) -> pb.Contacts:
        """Return the contacts as the user sees them."""
        answer = await self.call(rpc.ContactServiceStub, "GetContacts", pb.GetContactsRequest(), user)
        contacts: pb.Contacts = answer.contacts
        return contacts

    async def active(self, user: str, channel: int, seconds: int) -> None:
        """Report that a user is active on a channel, as staff."""
        request = pb.ReportPresenceRequest(user_id=user, channel=channel, active_seconds=seconds)  # type: ignore[arg-type]
        await self.call(rpc.ContactServiceStub, "ReportPresence", request)

    async def record(self, container: str, event_id: str) -> pb.EventRecord | None:
        """Return the record of an event."""
        request = pb.GetEventRequest(container=container, event_id=event_id)
        try:
            answer = await self.call(rpc.EventLogServiceStub, "GetEvent", request)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.NOT_FOUND:
                return None
            raise
        record: pb.EventRecord = answer.record
        return record

    async def until_status(self, container: str, event_id: str, status: int) -> pb.EventRecord:
        """Wait until the log has this status of the event, without asking on 5571."""
        found: list[pb.EventRecord | None] = []

        async def so_it_is() -> bool:
            found[:] = [await self.record(container, event_id)]
            return found[0] is not None and found[0].status == status

        await until(so_it_is)
        assert found[0] is not None
        return found[0]

    async def tried(self, container: str, sent: given.UserEvent) -> None:
        """Wait until the gateway has the result of a first attempt, which it gets a little after the provider."""

        async def so_it_is() -> bool:
            record = await self.record(container, sent.event_id)
            return record is not None and bool(record.attempts)

        await until(so_it_is)

    async def records(self, user: str) -> list[pb.EventRecord]:
        """Return the records of a user, newest first."""
        found: list[pb.EventRecord] = []
        token = ""
        while True:
            request = pb.ListEventsRequest(user_id=user, page_size=1000, page_token=token)
            answer = await self.call(rpc.EventLogServiceStub, "ListEvents", request)
            found += answer.records
            if not (token := answer.next_page_token):
                return found

    async def settled(self, container: str, events: Sequence[given.UserEvent]) -> list[pb.EventRecord]:
        """Return the records of events that must exist."""
        found = [await self.record(container, each.event_id) for each in events]
        assert all(found), found
        return [each for each in found if each is not None]

    async def call(self, stub: Callable[[Any], Any], method: str, request: Any, user: str = "", token: str = "") -> Any:
        """Make one call, as a user or as staff."""
        token = token or (self.token(user) if user else "")
        async with grpc.aio.insecure_channel(self.gateway.address) as channel:
            call = getattr(stub(channel), method)
            # a gateway that has just been started again may not listen yet
            metadata = sessions.bearer(token) if token else None
            return await call(request, timeout=PATIENCE_S, metadata=metadata, wait_for_ready=True)

    def leaked(self) -> list[str]:
        """Return the secrets that a log contains, by their beginnings."""
        logs = self.gateway.logs()
        return sorted(
            f"{secret[:6]}..." for secret in self.secrets | self.provider_servers.secrets("") if secret in logs
        )


@asynccontextmanager
async def publisher(rig: Rig) -> AsyncIterator[Any]:
    """Return a stub of the service for publishers without ZMQ."""
    async with grpc.aio.insecure_channel(rig.gateway.address) as channel:
        yield rpc.EventPublisherServiceStub(channel)


def make_rig(folder: Path, provider_servers: ProviderServers, **settings: Any) -> Rig:
    """Return a rig whose gateway is not started."""
    keys = Keys(folder / "keys")
    for number in range(SPARE_CONTAINERS):
        keys.container(f"spare-{number}")
    keys.write()
    return Rig(EventsGateway(folder, keys, **{**provider_servers.settings(folder), **settings}), keys, provider_servers)
