"""Check 24: senders' users, and receivers of events."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from contextlib import AsyncExitStack

import grpc
import jwt
import pytest
import zmq
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from zmq.utils.monitor import recv_monitor_message

from dexorder_protos.dexorder.events.v1 import event_service_pb2 as pb
from dexorder_protos.dexorder.events.v1 import event_service_pb2_grpc as rpc
from dexorder_protos.dexorder.events.v1 import user_events_pb2 as given
from tests.integration.events import sessions
from tests.integration.events.container import CRITICAL, INFORMATIONAL, NORMAL, PATIENCE_S, Container, event, until
from tests.integration.events.rig import KINDS, Rig

WEB, TELEGRAM = given.WEB, given.TELEGRAM
RELOAD_S = 10.0
kinds = pytest.mark.parametrize("kind", KINDS)


async def test_24_a_container_speaks_for_its_own_users_only(rig: Rig) -> None:
    alice, bob = rig.user(), rig.user()
    rig.keys.container("alice-bot", [alice])
    rig.keys.write()
    await rig.reachable(bob)
    async with rig.container("alice-bot") as container, AsyncExitStack() as stack:
        await until_let_in(container, alice)
        session = await stack.enter_async_context(rig.session(bob))
        hers = await stack.enter_async_context(rig.session(alice))
        for priority in (NORMAL, CRITICAL, INFORMATIONAL):
            await container.send(sent := event(bob, f"e-{priority}", priority, [WEB, TELEGRAM]))
            assert await container.failed(sent) == "user not owned"
        await container.subscribed(bob)
        await container.publish(event(bob, "e-4", INFORMATIONAL), event(bob, "e-5", NORMAL))
        await container.subscribed(alice)
        await container.publish(event(bob, "e-6", NORMAL), to=alice)  # under her own user's topic
        await container.publish(event(alice, "e-7", NORMAL), to=bob)
        await session.hears_nothing(0.3)
        await hers.hears_nothing()
        await container.publish(event(alice, "e-8", INFORMATIONAL))
        assert (await hers.next()).event.event_id == "e-8"
    assert rig.provider_servers.order(bob) == [] and await rig.records(bob) == []


async def test_24_a_claimed_routing_id_changes_nobody_s_rights_or_answers(rig: Rig) -> None:
    alice, bob = rig.user(), rig.user()
    rig.keys.container("bob-bot", [bob])
    rig.keys.write()
    async with rig.container(name := rig.name()) as first:
        await first.queued(sent := event(alice, "c-1", CRITICAL, [WEB]))
        async with rig.container("bob-bot") as second:
            await until_let_in(second, bob)
        for identity in (name.encode(), b"same", b"\x00alice", b"same"):
            async with rig.container("bob-bot", identity=identity) as thief:
                await thief.send(event(alice, "c-2", CRITICAL, [WEB]))
                assert (await thief.ack()).error_message == "connect without a routing id"
                await thief.hears_nothing()
        async with rig.session(alice) as session:
            assert (await session.take()).event.event_id == "c-1"
            assert await first.delivered(sent) == WEB
            await session.hears_nothing()


@kinds
async def test_24_a_user_whose_name_begins_another_hears_nothing_of_it(rig: Rig, kind: str) -> None:
    short = rig.user()
    alice = short + "lice"
    async with rig.container() as container, rig.session(short, kind) as a, rig.session(alice, kind) as hers:
        await container.subscribed(alice)
        await container.publish(event(alice, "i-1", INFORMATIONAL))
        await container.queued(event(alice, "c-1", CRITICAL, [WEB]))
        assert {(await hers.next()).event.event_id for _ in range(2)} == {"i-1", "c-1"}
        await a.hears_nothing()
    async with rig.session(short, kind) as again:
        await again.hears_nothing()


async def test_24_a_user_s_token_is_for_that_user_alone(rig: Rig) -> None:
    alice, bob = rig.user(), rig.user()
    await rig.reachable(bob)
    for method, request in (
        ("GetContacts", pb.GetContactsRequest(user_id=bob)),
        ("SetContacts", pb.SetContactsRequest(user_id=bob, contacts=pb.Contacts())),
    ):
        code = await refused(rig.call(rpc.ContactServiceStub, method, request, user=alice))
        assert code is grpc.StatusCode.PERMISSION_DENIED, method
    async with rig.container() as container:
        await container.queued(event(bob, "c-1", CRITICAL, [WEB]))
        async with rig.session(bob) as his:
            heard = await his.next()
            ack = pb.AckEventRequest(cursor=his.place(heard), kind=pb.ACK_KIND_RECEIVED)
            await refused_or_without_effect(rig.call(rpc.EventServiceStub, "AckEvent", ack, user=alice))
            await container.hears_nothing()
    async with rig.session(alice) as hers:
        assert (await hers.list(10)).records == []


async def test_24_a_socket_does_not_change_hands(rig: Rig) -> None:
    alice, bob = rig.user(), rig.user()
    async with rig.session(alice) as session, rig.container() as container:
        await container.subscribed(alice)
        await session.authorize(rig.token(alice))  # in band, before it expires
        await session.hears_nothing(0.05)
        assert not session.ended
        await session.authorize(rig.token(bob))
        await ended(session, str(sessions.CLOSED_FORBIDDEN))
        await container.sees_no_subscription(bob)


@kinds
async def test_24_only_a_good_token_opens_a_session(rig: Rig, kind: str) -> None:
    user = rig.user()
    other_key = jwt.encode(
        {"sub": user, "aud": "dexorder", "iat": 1, "exp": 2**33}, Ed25519PrivateKey.generate(), "EdDSA"
    )
    bad = [
        rig.token(user, seconds=-1),
        rig.token(user, claims={"aud": "others"}),
        rig.token(user, kid="unknown"),
        rig.token(user, seconds=100_000),
        rig.token(user, claims={"sub": ""}),
        other_key,
        "",
        "x.y.z",
        jwt.encode({"sub": user, "aud": "dexorder"}, "", "none"),
    ]
    at, opening = (rig.gateway.address, sessions.native) if kind == "native" else (rig.gateway.web, sessions.browser)
    for token in bad:
        with pytest.raises(ConnectionRefusedError, match=f"UNAUTHENTICATED|{sessions.CLOSED_AUTH}"):
            async with opening(at, token):
                pass


@kinds
async def test_24_a_session_ends_with_its_token(rig: Rig, kind: str) -> None:
    token = rig.token(rig.user(), seconds=1.5)
    at, opening = (rig.gateway.address, sessions.native) if kind == "native" else (rig.gateway.web, sessions.browser)
    async with opening(at, token) as session:
        await ended(session, "UNAUTHENTICATED" if kind == "native" else str(sessions.CLOSED_AUTH))


async def test_24_a_revoked_key_is_cut(rig: Rig) -> None:
    user = rig.user()
    rig.keys.container("revoked", "*")
    rig.keys.write()
    async with rig.container("revoked") as container, rig.container() as other, AsyncExitStack() as stack:
        await until_let_in(container, user)
        session = await stack.enter_async_context(rig.session(user))
        await container.subscribed(user)
        await container.publish(event(user, "i-0", INFORMATIONAL))
        assert (await session.next()).event.event_id == "i-0"
        watches = [
            each.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_HANDSHAKE_FAILED_AUTH)
            for each in (container.sure, container.fast)
        ]
        del rig.keys.entries["revoked"]
        rig.keys.write()
        for watch in watches:  # it was disconnected, and reconnects in vain
            seen = await asyncio.wait_for(recv_monitor_message(watch), RELOAD_S)
            assert seen["event"] == zmq.EVENT_HANDSHAKE_FAILED_AUTH
        for each in (container.sure, container.fast):
            each.disable_monitor()
        await stack.enter_async_context(rig.session(someone := rig.user()))
        with pytest.raises(TimeoutError):
            await container.subscribed(someone, seconds=0.5)
        await asyncio.sleep(0.5)  # until the others have reconnected
        await other.queued(event(user, "c-1", CRITICAL, [WEB]))
        assert (await session.next()).event.event_id == "c-1"
        await other.subscribed(user)
        await other.publish(event(user, "i-1", INFORMATIONAL))
        assert (await session.next()).event.event_id == "i-1"


async def test_24_an_unknown_key_and_no_key_are_not_let_in(rig: Rig) -> None:
    public, secret = zmq.curve_keypair()
    for curve, why in (
        ((public, secret, rig.keys.gateway_key), zmq.EVENT_HANDSHAKE_FAILED_AUTH),
        (None, zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL),
    ):
        async with Container(rig.gateway.sub, rig.gateway.router, curve) as container:
            assert await handshake(container) == why
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(container.send(event(rig.user(), "c-1", CRITICAL, [WEB])), 0.3)


async def handshake(container: Container) -> int:
    """Return how the next connection to 5571 ends."""
    watch = container.sure.get_monitor_socket(
        zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    )
    seen = await asyncio.wait_for(recv_monitor_message(watch), PATIENCE_S)
    container.sure.disable_monitor()
    return int(seen["event"])


async def until_let_in(container: Container, user: str) -> None:
    """Wait until the file is read again: the container's events for the absent user are accepted."""

    async def let_in() -> bool:
        return (await container.state(event(user, "probe", INFORMATIONAL))).error_message == "no active session"

    await until(let_in, RELOAD_S)


async def refused(call: Awaitable[object]) -> grpc.StatusCode:
    """Return the status of a call that must fail."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.code()


async def refused_or_without_effect(call: Awaitable[object]) -> None:
    """Ack a place that is not in the user's own log."""
    try:
        await call
    except grpc.aio.AioRpcError as error:
        assert error.code() in {grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.INVALID_ARGUMENT}, error


async def ended(session: sessions.Session, how: str) -> None:
    """Wait until the gateway closes it."""
    await until(lambda: bool(session.ended))
    assert how in session.ended, session.ended
