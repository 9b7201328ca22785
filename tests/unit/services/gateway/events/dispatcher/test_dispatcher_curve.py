"""Check 24 over CURVE: only the key identifies a sender, on both ports, and a removed key is disconnected."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import zmq

from dexorder_common.messaging.curve import curve_client, make_keys, read_public_key
from dexorder_common.messaging.frames import encode_event
from dexorder_common.model.user_events import Priority, Status
from dexorder_gateway.events.model import Ack
from dexorder_protos.dexorder.events.v1 import user_events_pb2 as pb
from tests.unit.services.gateway.events.dispatcher.dispatcher_stage import Peer, Stage, peer, running, until
from tests.unit.services.gateway.events.samples import user_event

NOT_OWNED = Ack("f", Status.ERROR, "user not owned")


class Keys:
    """Keys of a gateway, two containers and a stranger, and the containers file."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.file = folder / "containers.yaml"
        self.server, self.server_secret = make_keys(folder, "gateway")
        for name in ("alice", "bob", "stranger"):
            make_keys(folder, name)
        self.write("alice", "bob")

    def write(self, *names: str) -> None:
        keys = {name: read_public_key(self._folder / f"{name}.key").decode() for name in names}
        entries = [f'  - {{container: {name}-bot, users: [{name}], curve: "{key}"}}\n' for name, key in keys.items()]
        self.file.write_text("containers:\n" + "".join(entries))

    def of(self, name: str) -> Path:
        return self._folder / f"{name}.key_secret"

    def settings(self) -> dict[str, Any]:
        return {"curve_key": self.server_secret, "containers": self.file}


@asynccontextmanager
async def staged(folder: Path, *names: str) -> AsyncIterator[tuple[Keys, Stage, list[Peer]]]:
    keys = Keys(folder)
    async with running(folder, **keys.settings()) as stage, AsyncExitStack() as opened:
        yield keys, stage, [await opened.enter_async_context(peer(stage, keys.of(name), keys.server)) for name in names]


async def test_container_sends_for_its_own_users_only_on_both_ports(tmp_path: Path) -> None:
    async with staged(tmp_path, "alice") as (_, stage, [alice]):
        await alice.send(user_event(priority=Priority.CRITICAL), user_event("f", "bob", Priority.CRITICAL))
        assert await alice.ack() == Ack("e1", Status.QUEUED)
        assert await alice.ack() == NOT_OWNED
        stage.dispatcher.session_opened("bob")
        assert await alice.subscription() == b"\x01USER:bob\x00"
        stage.dispatcher.session_opened("alice")
        assert await alice.subscription() == b"\x01USER:alice\x00"
        forged = user_event("f", "bob", Priority.INFORMATIONAL)
        await alice.publish(forged)
        await alice.xpub.send_multipart([b"USER:alice\x00", *encode_event(forged)])
        await alice.publish(user_event("i", "alice", Priority.INFORMATIONAL))
        await until(lambda: stage.heard.informed)
        assert [(i.user_id, i.container) for i in stage.heard.informed] == [("alice", "alice-bot")]
        assert stage.dropped("not_owned") == 2
        assert [s.user_id for s in stage.heard.session_events] == ["alice"]


async def test_claimed_routing_id_gives_no_rights(tmp_path: Path) -> None:
    async with staged(tmp_path) as (keys, stage, _):
        with zmq.asyncio.Context() as context, context.socket(zmq.DEALER) as dealer, context.socket(zmq.XPUB) as xpub:
            dealer.setsockopt(zmq.LINGER, 0)
            dealer.setsockopt(zmq.ROUTING_ID, b"alice-bot")
            curve_client(dealer, keys.of("bob"), keys.server)
            dealer.connect(stage.dispatcher.router_address)
            await dealer.send_multipart(encode_event(user_event("f", "alice", Priority.CRITICAL)))
            assert await Peer(dealer, xpub).ack() == NOT_OWNED


@pytest.mark.parametrize("key", ["stranger", None])
async def test_stranger_reaches_neither_port(tmp_path: Path, key: str | None) -> None:
    async with staged(tmp_path, "alice") as (keys, stage, [alice]):
        stage.dispatcher.session_opened("alice")
        async with peer(stage, key and keys.of(key), keys.server) as stranger:  # type: ignore[arg-type]
            with pytest.raises(zmq.Again):  # IMMEDIATE: there is no connection to send it over
                await stranger.dealer.send_multipart(encode_event(user_event()), zmq.NOBLOCK)
            await alice.send(user_event())
            assert await alice.ack() == Ack("e1", Status.QUEUED)
            with pytest.raises(TimeoutError):
                await stranger.subscription(0.1)


async def test_removed_key_is_disconnected_and_added_key_connects(tmp_path: Path) -> None:
    async with staged(tmp_path, "alice", "bob") as (keys, stage, [alice, bob]):
        for each, name in ((alice, "alice"), (bob, "bob")):
            await each.send(user_event("e1", name, Priority.CRITICAL))
            assert await each.ack() == Ack("e1", Status.QUEUED)
        stage.dispatcher.session_opened("alice")
        await alice.subscription()
        keys.write("bob", "stranger")
        async with peer(stage, keys.of("stranger"), keys.server) as late:
            assert await said_again(late, user_event("e1", "stranger")) == Ack("e1", Status.QUEUED)
        await alice.publish(user_event("i", "alice", Priority.INFORMATIONAL))
        assert await said_again(bob, user_event("e2", "bob", Priority.CRITICAL)) == Ack("e2", Status.QUEUED)
        with pytest.raises(TimeoutError):  # alice's container has no connection
            async with asyncio.timeout(0.3):
                await alice.send(user_event("f", "alice", Priority.CRITICAL))
        assert not stage.heard.informed


async def test_gateway_that_connects_still_authorizes_containers(tmp_path: Path) -> None:
    keys = Keys(tmp_path)
    with zmq.asyncio.Context() as context, context.socket(zmq.DEALER) as dealer, context.socket(zmq.XPUB) as xpub:
        for socket in (dealer, xpub):
            socket.setsockopt(zmq.LINGER, 0)
            curve_client(socket, keys.of("alice"), keys.server)
            socket.bind("tcp://127.0.0.1:0")
        sub, router = (s.getsockopt_string(zmq.LAST_ENDPOINT).rstrip("\x00") for s in (xpub, dealer))
        async with running(tmp_path, connect=True, sub=sub, router=router, **keys.settings()) as stage:
            stage.dispatcher.session_opened("alice")
            container = Peer(dealer, xpub)
            assert await container.subscription() == b"\x01USER:alice\x00"
            await container.send(user_event("f", "bob"), user_event())
            assert [await container.ack(), await container.ack()] == [NOT_OWNED, Ack("e1", Status.QUEUED)]


async def test_ack_is_not_sent_to_the_next_container_at_the_address_of_a_disconnected_one(tmp_path: Path) -> None:
    keys = Keys(tmp_path)
    with zmq.asyncio.Context() as context, context.socket(zmq.XPUB) as xpub:
        xpub.bind("tcp://127.0.0.1:0")
        dealer = bound(context, keys.of("alice"), keys.server, "tcp://127.0.0.1:0")
        sub, router = (s.getsockopt_string(zmq.LAST_ENDPOINT).rstrip("\x00") for s in (xpub, dealer))
        async with running(tmp_path, connect=True, sub=sub, router=router, **keys.settings()) as stage:
            alice = Peer(dealer, xpub)
            await alice.send(user_event(priority=Priority.CRITICAL))
            assert await alice.ack() == Ack("e1", Status.QUEUED)
            stage.dispatcher.session_opened("alice")
            await until(lambda: stage.heard.session_events)
            dealer.close()
            await asyncio.sleep(0.3)  # the gateway detects that
            await stage.dispatcher.acked("alice", (await stage.dispatcher.replay("alice", None)).epoch, 1, seen=False)
            with bound(context, keys.of("bob"), keys.server, router) as other:
                bob = Peer(other, xpub)
                await bob.send(user_event("e9", "bob", Priority.CRITICAL))
                assert await bob.ack() == Ack("e9", Status.QUEUED)  # and no ack of alice's before
        assert stage.dropped("container_gone") == 1


async def said_again(container: Peer, event: pb.UserEvent) -> Ack:
    """Return the ack of an event that is resent until it has one: the others are disconnected, too, and reconnect."""
    while True:
        with suppress(TimeoutError):
            async with asyncio.timeout(1):
                await container.send(event)
                return await container.ack()


def bound(context: zmq.asyncio.Context, key: Path, server: Path, address: str) -> zmq.asyncio.Socket:
    """Return a container's DEALER that waits for the gateway."""
    dealer = context.socket(zmq.DEALER)
    dealer.setsockopt(zmq.LINGER, 0)
    curve_client(dealer, key, server)
    for _ in range(100):
        try:
            dealer.bind(address)
            break
        except zmq.ZMQError:  # the previous one is still closing
            time.sleep(0.02)
    return dealer
