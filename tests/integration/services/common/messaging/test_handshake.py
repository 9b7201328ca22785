"""ZMTP handshakes through a proxy that waits for the first bytes, and ports that take connections of proxies only."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import zmq
import zmq.asyncio
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from dexorder.events.config import PublisherSettings
from dexorder.events.connection import Connection
from dexorder_common.messaging.curve import make_keys
from dexorder_common.messaging.handshake import REFUSALS, explain_refusal
from dexorder_gateway.events.config import EventsSettings
from dexorder_gateway.events.ingress.containers import ContainersFile
from dexorder_gateway.events.ingress.sockets import open_sockets
from dexorder_ingestor.broker.sockets import HandshakeRefused, ZmqSockets
from dexorder_ingestor.config import IngestorSettings
from dexorder_relay.broker.router import open_broker
from dexorder_relay.config import RelaySettings
from dexorder_relay.metrics import RelayMetrics
from tests.fakes.tcp_proxy import DetectingProxy, in_a_thread
from tests.unit.services.relay.harness import settings as relay_settings

DETECTION_SECONDS = 10
"""Linkerd's default wait for a protocol that it knows."""
CALLERS = "callers:\n- {client_id: a, uri: spiffe://cluster.local/ns/a/sa/a}\n"


@contextmanager
def bound(kind: int) -> Iterator[int]:
    with zmq.Context() as context, context.socket(kind) as server:
        server.setsockopt(zmq.LINGER, 0)
        yield server.bind_to_random_port("tcp://127.0.0.1")


async def ingestor_connects(port: int, seconds: float) -> None:
    settings = IngestorSettings(broker=f"tcp://127.0.0.1:{port}", broker_handshake_seconds=seconds)
    with ZmqSockets(settings) as sockets:
        async with sockets.open() as opened, asyncio.timeout(20):
            await opened.connected()


def publisher_connects(port: int, seconds: float, folder: Path) -> str:
    """Return what the log says of a refusal; empty for a connection."""
    settings = PublisherSettings(outbox=folder / "o.db", handshake_seconds=seconds)
    with zmq.Context() as context, capture_logs() as lines:
        connection = Connection(context, zmq.DEALER, f"tcp://127.0.0.1:{port}", settings)
        try:
            while not connection.connected and not lines:
                assert connection.monitor.poll(20_000)
                connection.poll(now_ns=1)
            return "" if connection.connected else str(lines[0]["check"])
        finally:
            connection.close()


def check_blames_the_proxy(text: str) -> None:
    assert "opaque" in text and "waits for the first bytes" in text and "CURVE" not in text


async def test_a_handshake_may_take_as_long_as_a_proxy_waits(tmp_path: Path) -> None:
    with bound(zmq.ROUTER) as port, in_a_thread(DetectingProxy(port, 0.3)) as proxied:
        await ingestor_connects(proxied, 10)
        assert await asyncio.to_thread(publisher_connects, proxied, 10, tmp_path) == ""


async def test_a_limit_below_it_says_what_to_check_and_does_not_blame_curve(tmp_path: Path) -> None:
    with bound(zmq.ROUTER) as port, in_a_thread(DetectingProxy(port, 20)) as proxied:
        with pytest.raises(HandshakeRefused) as refused:
            await ingestor_connects(proxied, 0.1)
        check_blames_the_proxy(str(refused.value))
        check_blames_the_proxy(await asyncio.to_thread(publisher_connects, proxied, 0.1, tmp_path))


def test_limits_are_above_the_wait_of_the_proxies_on_the_way(tmp_path: Path) -> None:
    """A caller's proxy and a server's may both wait; of a server's own limit only the last one's wait is a part."""
    assert IngestorSettings().broker_handshake_seconds > 2 * DETECTION_SECONDS
    assert PublisherSettings(outbox=tmp_path / "o.db").handshake_seconds > 2 * DETECTION_SECONDS
    assert RelaySettings().broker_handshake_seconds > DETECTION_SECONDS
    assert EventsSettings().handshake_seconds > DETECTION_SECONDS


def test_curve_is_blamed_only_where_it_may_be_the_cause() -> None:
    for event in REFUSALS:
        assert "check the CURVE keys" in explain_refusal(event, curve=True)
        assert "check the CURVE keys" not in explain_refusal(event, curve=False)
    assert "requires CURVE, which is off here" in explain_refusal(zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL, curve=False)


def own_address() -> str:
    """Return an address of this machine beyond loopback; nothing is sent to find it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("198.51.100.1", 9))
        except OSError:
            pytest.skip("this machine has only loopback")
        return str(probe.getsockname()[0])


def answers(host: str, port: str) -> bool:
    """Return whether ZMTP's greeting comes."""
    with socket.create_connection((host, int(port)), timeout=20) as peer:
        try:
            return peer.recv(1) == b"\xff"
        except ConnectionResetError:
            return False


@contextmanager
def relay_port(folder: Path, **given: Any) -> Iterator[str]:
    (folder / "callers.yaml").write_text(CALLERS)
    forwarded = {"identity": "forwarded", "tokens": folder / "callers.yaml", "broker_listen": "tcp://0.0.0.0:0"}
    with open_broker(relay_settings(folder, **forwarded | given), RelayMetrics(CollectorRegistry())) as broker:
        yield broker.address.rpartition(":")[2]


@contextmanager
def event_ports(folder: Path, **given: Any) -> Iterator[str]:
    admits = relay_settings(folder, identity="forwarded", tokens=folder / "callers.yaml").proxies_only()
    settings = EventsSettings(sub="tcp://0.0.0.0:0", router="tcp://0.0.0.0:0", **given)
    with open_sockets(settings, ContainersFile(None), print, admits) as ports:
        yield ports.router_address.rpartition(":")[2]


async def test_without_a_sidecar_nobody_connects_to_a_port_that_trusts_the_mesh(tmp_path: Path) -> None:
    """A pod without its sidecar, or a policy that is missing, must not open the broker to every pod."""
    (tmp_path / "callers.yaml").write_text(CALLERS)
    for opened in (relay_port, event_ports):
        with opened(tmp_path) as port:
            assert not await asyncio.to_thread(answers, own_address(), port)
            assert await asyncio.to_thread(answers, "127.0.0.6", port)


async def test_networks_of_proxies_and_curve_let_others_in(tmp_path: Path) -> None:
    make_keys(tmp_path, "server")
    (tmp_path / "clients").mkdir()
    keys = {"broker_curve_key": tmp_path / "server.key_secret", "broker_curve_clients": tmp_path / "clients"}
    for given in ({"forwarded_from": own_address()}, {"allow_insecure": True}, keys):
        with ExitStack() as stack:
            port = stack.enter_context(relay_port(tmp_path, **given))
            assert await asyncio.to_thread(answers, own_address(), port)
