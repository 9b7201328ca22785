"""Sessions, the log and contacts over a real gRPC server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from dexorder_common.model.user_events import Channel, Status
from dexorder_common.rpc.channel import ChannelSettings, open_channel
from dexorder_gateway.events.delivery.changes import AttemptRow
from dexorder_gateway.events.sessions import session as session_module
from dexorder_protos.dexorder.events.v1 import event_service_pb2 as pb
from dexorder_protos.dexorder.events.v1 import event_service_pb2_grpc as rpc
from dexorder_protos.dexorder.events.v1 import user_events_pb2 as events_pb
from tests.fakes.events.contacts import contacts_with
from tests.fakes.events.sessions_gateway import Served, served, until
from tests.unit.services.common.rpc.test_identity import write_callers

PATIENCE_S = 20.0
INVALID, FORBIDDEN = grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.PERMISSION_DENIED
UNKNOWN_CALLER = grpc.StatusCode.UNAUTHENTICATED


@dataclass
class Stubs:
    """Stubs of all services with one caller's metadata; "" sends no token."""

    events: Any
    log: Any
    contacts: Any
    metadata: tuple[tuple[str, str], ...]


@asynccontextmanager
async def calling(gateway: Served, token: str = "") -> AsyncIterator[Stubs]:
    async with open_channel(gateway.grpc, ChannelSettings()) as channel:
        yield Stubs(
            rpc.EventServiceStub(channel),
            rpc.EventLogServiceStub(channel),
            rpc.ContactServiceStub(channel),
            (("authorization", f"Bearer {token}"),) if token else (),
        )


async def code_of(call: Any) -> grpc.StatusCode:
    """Return the status of a unary call, or of a stream that sends no more."""
    try:
        async with asyncio.timeout(PATIENCE_S):
            if hasattr(call, "read"):
                while await call.read() is not grpc.aio.EOF:
                    pass
                return grpc.StatusCode(await call.code())
            await call
            return grpc.StatusCode.OK
    except grpc.aio.AioRpcError as error:
        return error.code()


# ---- sessions ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "metadata",
    [
        (),
        (("authorization", "Bearer nonsense"),),
        (("authorization", "TOKEN"),),
        (("authorization", "Bearer TOKEN"), ("authorization", "Bearer TOKEN")),
        (("token", "TOKEN"),),
    ],
)
async def test_without_a_valid_token_there_is_no_session(metadata: tuple[tuple[str, str], ...], tmp_path: Path) -> None:
    async with served(tmp_path) as gateway, calling(gateway) as nobody:
        shown = tuple((key, value.replace("TOKEN", gateway.token("alice"))) for key, value in metadata)
        assert await code_of(nobody.events.WatchEvents(pb.WatchEventsRequest(), metadata=shown)) is UNKNOWN_CALLER
        request = pb.AckEventRequest(cursor=pb.Cursor(epoch="e1", sequence=1), kind=pb.ACK_KIND_SEEN)
        assert await code_of(nobody.events.AckEvent(request, metadata=shown)) is UNKNOWN_CALLER
        assert gateway.dispatcher.calls == []
        refused = {"kind": "grpc", "reason": "UNAUTHENTICATED"}
        assert gateway.registry.get_sample_value("dexorder_gateway_event_sessions_refused_total", refused) == 1


@pytest.mark.parametrize(
    "request_",
    [
        pb.AckEventRequest(kind=pb.ACK_KIND_SEEN),
        pb.AckEventRequest(cursor=pb.Cursor(epoch="e1", sequence=1)),
        pb.AckEventRequest(cursor=pb.Cursor(epoch="e1", sequence=1), kind=9),  # type: ignore[arg-type]
        pb.AckEventRequest(cursor=pb.Cursor(epoch="e1"), kind=pb.ACK_KIND_SEEN),
        pb.AckEventRequest(cursor=pb.Cursor(epoch="e1", sequence=2**63), kind=pb.ACK_KIND_SEEN),
        pb.AckEventRequest(cursor=pb.Cursor(epoch="other", sequence=1), kind=pb.ACK_KIND_SEEN),
        pb.WatchEventsRequest(cursor=pb.Cursor(epoch="e1", sequence=2**63)),
        pb.WatchEventsRequest(client_name="x" * 65),
    ],
)
async def test_invalid_requests_are_refused(request_: Any, tmp_path: Path) -> None:
    async with served(tmp_path) as gateway, calling(gateway, gateway.token("alice")) as alice:
        is_ack = isinstance(request_, pb.AckEventRequest)
        call = (alice.events.AckEvent if is_ack else alice.events.WatchEvents)(request_, metadata=alice.metadata)
        assert await code_of(call) is INVALID
        async with calling(gateway) as nobody:
            call = (nobody.events.AckEvent if is_ack else nobody.events.WatchEvents)(request_)
            assert await code_of(call) is UNKNOWN_CALLER, "fields are checked once it is known who calls"


async def overrun(gateway: Served, alice: Stubs) -> Any:
    """Open a session that does not read, and send it events until the gateway closes it; return its call."""
    call = alice.events.WatchEvents(pb.WatchEventsRequest(), metadata=alice.metadata)
    await call.read()
    while gateway.dispatcher.calls[-1][0] != "closed":
        gateway.dispatcher.keep("alice", "e", payload=b"x" * 50_000)
        await asyncio.sleep(0)
    return call


async def test_a_stream_that_is_not_read_is_closed_and_its_task_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_module, "CLOSE_SECONDS", 0.2)
    tasks: list[asyncio.Task[Any] | None] = []
    async with served(tmp_path, session_queue=50) as gateway, calling(gateway, gateway.token("alice")) as alice:
        opened = gateway.backend.sessions.open

        async def remember(*arguments: Any) -> Any:
            tasks.append(asyncio.current_task())
            return await opened(*arguments)

        monkeypatch.setattr(gateway.backend.sessions, "open", remember)
        await overrun(gateway, alice)
        (task,) = tasks
        assert task is not None
        await until(task.done)


async def test_a_stream_that_is_read_too_slowly_ends_with_resource_exhausted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_module, "CLOSE_SECONDS", 60.0)  # the client reads on before its task is cancelled
    async with served(tmp_path, session_queue=50) as gateway, calling(gateway, gateway.token("alice")) as alice:
        call = await overrun(gateway, alice)
        assert await code_of(call) is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_a_client_that_disconnects_closes_its_session(tmp_path: Path) -> None:
    async with served(tmp_path) as gateway, calling(gateway, gateway.token("alice")) as alice:
        call = alice.events.WatchEvents(pb.WatchEventsRequest(), metadata=alice.metadata)
        await call.read()
        call.cancel()
        await until(lambda: gateway.dispatcher.calls[-1] == ("closed", "alice"))
        ended = {"kind": "grpc", "reason": "CLOSED"}
        assert gateway.registry.get_sample_value("dexorder_gateway_event_sessions_ended_total", ended) == 1
        assert gateway.registry.get_sample_value("dexorder_gateway_event_sessions", {"kind": "grpc"}) == 0


# ---- who may ask for what ------------------------------------------------------------------------------------------


async def test_users_see_their_own_contacts_and_staff_those_of_all(tmp_path: Path) -> None:
    callers = write_callers(
        tmp_path / "callers.yaml",
        {"client_id": "boss", "token": "boss-token", "role": "admin"},
        {"client_id": "desk", "token": "desk-token", "role": "client"},
    )
    async with served(tmp_path, server={"identity": "token", "tokens": callers}) as gateway:
        gateway.dispatcher.kept_contacts["bob"] = contacts_with(email="bob@example.com")
        alice = gateway.token("alice")
        for token, whose, expected in (
            (alice, "", "OK"),
            (alice, "alice", "OK"),
            (alice, "bob", "PERMISSION_DENIED"),
            ("boss-token", "bob", "OK"),
            ("boss-token", "", "INVALID_ARGUMENT"),
            ("boss-token", "a\0b", "INVALID_ARGUMENT"),
            ("boss-token", "é" * 129, "INVALID_ARGUMENT"),
            ("desk-token", "bob", "UNAUTHENTICATED"),
            ("", "bob", "UNAUTHENTICATED"),
            ("x", "", "UNAUTHENTICATED"),
        ):
            async with calling(gateway, token) as caller:
                request = pb.GetContactsRequest(user_id=whose)
                assert (await code_of(caller.contacts.GetContacts(request, metadata=caller.metadata))).name == expected
        presence = pb.ReportPresenceRequest(user_id="bob", channel=events_pb.TELEGRAM, active_seconds=60)
        for token, reports, lists in (
            (alice, FORBIDDEN, UNKNOWN_CALLER),
            ("desk-token", FORBIDDEN, FORBIDDEN),
            ("", FORBIDDEN, UNKNOWN_CALLER),
            ("boss-token", grpc.StatusCode.OK, grpc.StatusCode.OK),
        ):
            async with calling(gateway, token) as caller:
                call = caller.contacts.ReportPresence(presence, metadata=caller.metadata)
                assert await code_of(call) is reports
                call = caller.log.ListEvents(pb.ListEventsRequest(), metadata=caller.metadata)
                assert await code_of(call) is lists
        assert [(user, channel) for user, channel, _ in gateway.dispatcher.presence] == [("bob", Channel.TELEGRAM)]


async def test_fields_of_contacts_are_checked_once_it_is_known_who_calls(tmp_path: Path) -> None:
    callers = write_callers(tmp_path / "callers.yaml", {"client_id": "boss", "token": "boss-token", "role": "admin"})
    async with served(tmp_path, server={"identity": "token", "tokens": callers}) as gateway:
        for token, expected in (("boss-token", {INVALID}), ("", {UNKNOWN_CALLER, FORBIDDEN})):
            async with calling(gateway, token) as caller:
                for method, request in (
                    (caller.contacts.GetContacts, pb.GetContactsRequest(user_id="x" * 257)),
                    (caller.contacts.SetContacts, pb.SetContactsRequest(user_id="bob")),
                    (caller.contacts.ReportPresence, pb.ReportPresenceRequest(user_id="bob", active_seconds=10**7)),
                ):
                    assert await code_of(method(request, metadata=caller.metadata)) in expected


async def test_without_identity_a_caller_without_a_token_is_staff(tmp_path: Path) -> None:
    async with served(tmp_path) as gateway, calling(gateway) as anyone:
        await anyone.contacts.GetContacts(pb.GetContactsRequest(user_id="bob"))
        async with calling(gateway, gateway.token("alice")) as alice:
            call = alice.contacts.GetContacts(pb.GetContactsRequest(user_id="bob"), metadata=alice.metadata)
            assert await code_of(call) is FORBIDDEN


async def test_contacts_are_stored_and_their_secrets_not_shown(tmp_path: Path) -> None:
    async with served(tmp_path) as gateway, calling(gateway, gateway.token("alice")) as alice:
        url = "https://discord.com/api/webhooks/1/s3cret"
        given = pb.Contacts(email="a@b.c", discord_webhook_url=url, mobile_tokens=["s3cret"])
        await alice.contacts.SetContacts(pb.SetContactsRequest(contacts=given), metadata=alice.metadata)
        shown = (await alice.contacts.GetContacts(pb.GetContactsRequest(), metadata=alice.metadata)).contacts
        assert shown == pb.Contacts(email="a@b.c", discord_webhook_url="***", mobile_tokens=["***"])
        shown.email = "d@e.f"
        await alice.contacts.SetContacts(pb.SetContactsRequest(contacts=shown), metadata=alice.metadata)
        assert gateway.dispatcher.kept_contacts["alice"] == contacts_with(
            email="d@e.f", discord_webhook_url=url, mobile_tokens=("s3cret",)
        )
        given.discord_webhook_url = "https://evil.example/s3cret"
        with pytest.raises(grpc.aio.AioRpcError, match="discord_webhook_url: host not allowed") as caught:
            await alice.contacts.SetContacts(pb.SetContactsRequest(contacts=given), metadata=alice.metadata)
        assert "s3cret" not in str(caught.value.details())


@pytest.mark.parametrize(
    ("channel", "seconds"), [(events_pb.WEB, 1), (events_pb.ACTIVE_SESSION, 1), (42, 1), (events_pb.TELEGRAM, 2**31)]
)
async def test_presence_is_of_a_channel_outside_of_sessions(channel: Any, seconds: int, tmp_path: Path) -> None:
    async with served(tmp_path) as gateway, calling(gateway) as staff:
        request = pb.ReportPresenceRequest(user_id="bob", channel=channel, active_seconds=seconds)
        assert await code_of(staff.contacts.ReportPresence(request)) is INVALID


# ---- the log -------------------------------------------------------------------------------------------------------


async def test_an_events_record_is_complete(tmp_path: Path) -> None:
    async with served(tmp_path) as gateway, calling(gateway) as staff:
        gateway.dispatcher.keep("alice", "e1", container="box")
        (kept,) = gateway.dispatcher.users["alice"]
        ms = 1_000_000
        attempts = (
            AttemptRow(kept.record.key, 1, Channel.TELEGRAM, 2 * ms, 3 * ms, "blocked by the user", 9 * ms),
            AttemptRow(kept.record.key, 2, Channel.EMAIL, 4 * ms),
        )
        kept.record = replace(kept.record, accepted_ns=ms, attempts=attempts)
        request = pb.GetEventRequest(container="box", event_id="e1")
        record = (await staff.log.GetEvent(request)).record
        assert record == pb.EventRecord(
            container="box",
            event=events_pb.UserEvent.FromString(kept.record.body),
            accepted_ms=1,
            status=events_pb.QUEUED,
            attempts=[
                pb.Attempt(
                    number=1,
                    channel=events_pb.TELEGRAM,
                    started_ms=2,
                    ended_ms=3,
                    outcome="blocked by the user",
                    retry_ms=9,
                ),
                pb.Attempt(number=2, channel=events_pb.EMAIL, started_ms=4),
            ],
        )
        assert not record.HasField("delivered_via")
        kept.record = replace(
            kept.record, status=Status.DELIVERED, via=Channel.WEB, completed_ns=5 * ms, seen_ns=6 * ms
        )
        record = (await staff.log.GetEvent(request)).record
        assert (record.delivered_via, record.completed_ms, record.seen_ms) == (events_pb.WEB, 5, 6)
        for request, code in (
            (pb.GetEventRequest(container="other", event_id="e1"), grpc.StatusCode.NOT_FOUND),
            (pb.GetEventRequest(container="box"), INVALID),
            (pb.GetEventRequest(event_id="e1"), INVALID),
        ):
            assert await code_of(staff.log.GetEvent(request)) is code


async def test_events_are_listed_in_pages_newest_first(tmp_path: Path) -> None:
    async with served(tmp_path) as gateway, calling(gateway) as staff:
        for number in range(5):
            gateway.dispatcher.keep("alice", f"e{number}", container="even" if number % 2 == 0 else "odd")
        gateway.dispatcher.users["alice"][0].record = replace(
            gateway.dispatcher.users["alice"][0].record, status=Status.ERROR, error="expired"
        )
        names, token = [], ""
        while True:
            page = await staff.log.ListEvents(pb.ListEventsRequest(page_size=2, page_token=token))
            names += [record.event.event_id for record in page.records]
            if not (token := page.next_page_token):
                break
        assert names == ["e4", "e3", "e2", "e1", "e0"]
        for request, expected in (
            (pb.ListEventsRequest(container="odd"), ["e3", "e1"]),
            (pb.ListEventsRequest(user_id="bob"), []),
            (pb.ListEventsRequest(status=events_pb.ACK_ERROR), ["e0"]),
            (pb.ListEventsRequest(status=events_pb.DELIVERED), []),
        ):
            page = await staff.log.ListEvents(request)
            assert [record.event.event_id for record in page.records] == expected
        for bad in (
            pb.ListEventsRequest(page_size=1_001),
            pb.ListEventsRequest(page_token="-1"),
            pb.ListEventsRequest(page_token="9" * 19),
            pb.ListEventsRequest(status=7),  # type: ignore[arg-type]
        ):
            assert await code_of(staff.log.ListEvents(bad)) is INVALID
