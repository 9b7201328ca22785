"""ZeroMQ behind the proxy behaves as without it, except that no connection breaks inside libzmq."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest
import zmq

from dexorder_common.messaging.zmq_tcp_proxy import ZmqTcpProxy, zmq_tcp_proxy
from tests import zmtp
from tests.integration.services.common.messaging.slow_router import HEARTBEAT_MS

LOOPBACK = "tcp://127.0.0.1:0"
HELLO = zmtp.message(b"hello")
TIMEOUT_MS = 20_000
FLOOD_BYTES = 100_000_000
Socket = zmq.Socket[bytes]


@pytest.fixture
def context() -> Iterator[zmq.Context[Socket]]:
    """Context of the peers."""
    with zmq.Context() as made:
        yield made


@contextmanager
def router(proxy: ZmqTcpProxy, listen: str = LOOPBACK, **options: int) -> Iterator[tuple[Socket, str]]:
    with zmq.Context() as context, context.socket(zmq.ROUTER) as made:
        made.setsockopt(zmq.LINGER, TIMEOUT_MS)
        for name, value in options.items():
            made.setsockopt(getattr(zmq, name), value)
        yield made, proxy.bind(made, listen)


def dealer(context: zmq.Context[Socket], address: str) -> Socket:
    made = context.socket(zmq.DEALER)
    made.setsockopt(zmq.LINGER, 0)
    made.setsockopt(zmq.RCVTIMEO, TIMEOUT_MS)
    made.setsockopt(zmq.IPV6, 1)
    made.connect(address)
    return made


@pytest.mark.parametrize("listen", [LOOPBACK, "tcp://[::1]:0", "tcp://localhost:0", "tcp://*:0"])
def test_messages_arrive_whole_and_in_order_in_both_directions(context: zmq.Context[Socket], listen: str) -> None:
    parts = [bytes([number]) * number * 1_000 for number in range(200)]
    with (
        zmq_tcp_proxy() as proxy,
        router(proxy, listen) as (behind, address),
        dealer(context, address.replace("*", "127.0.0.1")) as peer,
    ):
        for part in parts:
            peer.send_multipart([part, b""])
        received = [behind.recv_multipart() for _ in parts]
        assert [message[1:] for message in received] == [[part, b""] for part in parts]
        for message in received:
            behind.send_multipart(message)
        assert [peer.recv_multipart() for _ in parts] == [[part, b""] for part in parts]


@contextmanager
def slow_router() -> Iterator[tuple[subprocess.Popen[str], str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.integration.services.common.messaging.slow_router"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        yield process, process.stdout.readline().strip()
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("heartbeat", [b"", zmtp.PING], ids=["our heartbeat", "the peer's heartbeat"])
def test_connection_that_breaks_with_a_full_pipe_does_not_abort_the_process(heartbeat: bytes) -> None:
    """Without the proxy libzmq aborts the process: at our next heartbeat, or when it reads the peer's."""
    with slow_router() as (process, address):
        peer = zmtp.connect(address)
        peer.sendall(HELLO * 1_020 + heartbeat + HELLO * 20)
        time.sleep(HEARTBEAT_MS / 1_000)
        zmtp.reset(peer)
        time.sleep(3 * HEARTBEAT_MS / 1_000)
        output, errors = process.communicate("read\n", timeout=60)
        assert (process.returncode, output) == (0, "1040\n"), errors


def test_flooding_peer_has_to_wait_and_others_are_served(context: zmq.Context[Socket]) -> None:
    flood = zmtp.message(bytes(60_000))
    with (
        zmq_tcp_proxy() as proxy,
        router(proxy, RCVHWM=10, RCVTIMEO=TIMEOUT_MS) as (behind, address),
        zmtp.connect(address) as flooder,
        dealer(context, address) as peer,
    ):
        flooder.settimeout(1.0)
        sent = 0
        with suppress(TimeoutError):
            while sent < FLOOD_BYTES:
                sent += flooder.send(flood)
        assert sent < FLOOD_BYTES, "no limit holds the flood back"
        peer.send(b"honest")
        while behind.recv_multipart()[-1] != b"honest":
            pass


def test_peer_that_libzmq_disconnects_is_disconnected() -> None:
    with (
        zmq_tcp_proxy() as proxy,
        router(proxy, MAXMSGSIZE=100, HANDSHAKE_IVL=1_000) as (_, address),
        zmtp.connect(address) as oversized,
        plain(address) as silent,
    ):
        oversized.sendall(zmtp.message(bytes(101)))
        assert ends(oversized)
        assert ends(silent)


def plain(address: str) -> socket.socket:
    host, port = address.removeprefix("tcp://").split(":")
    return socket.create_connection((host, int(port)), timeout=20)


def ends(peer: socket.socket) -> bool:
    try:
        while peer.recv(65_536):
            pass
    except ConnectionResetError:
        pass
    return True


def test_last_messages_go_out_before_the_proxy_closes(context: zmq.Context[Socket]) -> None:
    with zmq_tcp_proxy() as proxy, router(proxy) as (behind, address):
        peer = dealer(context, address)
        peer.send(b"hello")
        routing_id, _ = behind.recv_multipart()
        for number in range(100):
            behind.send_multipart([routing_id, b"%d" % number * 1_000])
    with peer:
        assert [peer.recv() for _ in range(100)] == [b"%d" % number * 1_000 for number in range(100)]


def test_address_can_lead_to_another_socket_later(context: zmq.Context[Socket]) -> None:
    with zmq_tcp_proxy() as proxy:
        with router(proxy) as (_, address):
            peer = dealer(context, address)
        with peer, router(proxy, address) as (second, again):
            assert again == address
            while not second.poll(100):
                peer.send(b"hello")  # ZeroMQ drops a message that is on its way when a connection ends
            assert second.recv_multipart()[1] == b"hello"


def test_peer_is_disconnected_while_there_is_no_socket() -> None:
    with zmq_tcp_proxy() as proxy:
        with router(proxy) as (_, address):
            pass
        with plain(address) as peer:
            assert ends(peer)


@pytest.mark.parametrize("listen", ["tcp://nowhere.invalid:0", "tcp://127.0.0.1:x", "ipc:///tmp/x"])
def test_error_names_an_address_that_can_not_be_bound(listen: str) -> None:
    with zmq_tcp_proxy() as proxy, pytest.raises(OSError, match="can't listen on"), router(proxy, listen):
        pass
