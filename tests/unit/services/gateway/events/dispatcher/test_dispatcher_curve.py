"""Check 24 over CURVE: only the key identifies a sender, on both ports, and a removed key is disconnected."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import zmq

from dexorder_common.messaging.curve import curve_client, make_keys, read_public_key
from dexorder_common.model.user_events import Priority, Status
from dexorder_gateway.events.model import Ack
from tests.unit.services.gateway.events.dispatcher.dispatcher_stage import Peer, running, until
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
