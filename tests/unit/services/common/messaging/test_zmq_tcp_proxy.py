"""ZMQ behind a door: as without one, but that no connection can break inside libzmq."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest
import zmq

from services.common.messaging.zmq_tcp_proxy import Doors, open_doors
from tests import zmtp
from tests.unit.services.common.messaging.slow_router import HEARTBEAT_MS

LOOPBACK = "tcp://127.0.0.1:0"
HELLO = zmtp.message(b"hello")
LONGEST_MS = 20_000
MUCH = 100_000_000
Socket = zmq.Socket[bytes]


@pytest.fixture
def context() -> Iterator[zmq.Context[Socket]]:
    """Of the peers."""
    with zmq.Context() as made:
        yield made


@contextmanager
def router(doors: Doors, listen: str = LOOPBACK, **options: int) -> Iterator[tuple[Socket, str]]:
    with zmq.Context() as context, context.socket(zmq.ROUTER) as made:
        made.setsockopt(zmq.LINGER, LONGEST_MS)
        for name, value in options.items():
            made.setsockopt(getattr(zmq, name), value)
        yield made, doors.bind(made, listen)


def dealer(context: zmq.Context[Socket], address: str) -> Socket:
    made = context.socket(zmq.DEALER)
    made.setsockopt(zmq.LINGER, 0)
    made.setsockopt(zmq.RCVTIMEO, LONGEST_MS)
    made.setsockopt(zmq.IPV6, 1)
    made.connect(address)
    return made


@pytest.mark.parametrize("listen", [LOOPBACK, "tcp://[::1]:0", "tcp://localhost:0", "tcp://*:0"])
def test_what_is_sent_comes_whole_and_in_order_on_both_ways(context: zmq.Context[Socket], listen: str) -> None:
    parts = [bytes([number]) * number * 1_000 for number in range(200)]
    with (
        open_doors() as doors,
        router(doors, listen) as (behind, address),
        dealer(context, address.replace("*", "127.0.0.1")) as peer,
    ):
        for part in parts:
            peer.send_multipart([part, b""])
        came = [behind.recv_multipart() for _ in parts]
        assert [message[1:] for message in came] == [[part, b""] for part in parts]
        for message in came:
            behind.send_multipart(message)
        assert [peer.recv_multipart() for _ in parts] == [[part, b""] for part in parts]


@contextmanager
def slow_router() -> Iterator[tuple[subprocess.Popen[str], str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.unit.services.common.messaging.slow_router"],
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


@pytest.mark.parametrize("beat", [b"", zmtp.PING], ids=["our heartbeat", "the peer's heartbeat"])
def test_a_peer_that_breaks_off_with_a_full_pipe_ends_nobody(beat: bytes) -> None:
    """Without the door libzmq aborts the process: at our next heartbeat, or when it reads the peer's."""
    with slow_router() as (process, address):
        peer = zmtp.connect(address)
        peer.sendall(HELLO * 1_020 + beat + HELLO * 20)
        time.sleep(HEARTBEAT_MS / 1_000)
        zmtp.reset(peer)
        time.sleep(3 * HEARTBEAT_MS / 1_000)
        output, errors = process.communicate("read\n", timeout=60)
        assert (process.returncode, output) == (0, "1040\n"), errors


def test_who_floods_waits_and_others_are_served(context: zmq.Context[Socket]) -> None:
    flood = zmtp.message(bytes(60_000))
    with (
        open_doors() as doors,
        router(doors, RCVHWM=10, RCVTIMEO=LONGEST_MS) as (behind, address),
        zmtp.connect(address) as flooder,
        dealer(context, address) as peer,
    ):
        flooder.settimeout(1.0)
        sent = 0
        with suppress(TimeoutError):
            while sent < MUCH:
                sent += flooder.send(flood)
        assert sent < MUCH, "all of it is kept somewhere"
        peer.send(b"honest")
        while behind.recv_multipart()[-1] != b"honest":
            pass


def test_a_peer_that_libzmq_cuts_is_cut() -> None:
    with (
        open_doors() as doors,
        router(doors, MAXMSGSIZE=100, HANDSHAKE_IVL=1_000) as (_, address),
        zmtp.connect(address) as too_much,
        plain(address) as silent,
    ):
        too_much.sendall(zmtp.message(bytes(101)))
        assert ends(too_much)
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


def test_what_was_sent_last_still_goes_out(context: zmq.Context[Socket]) -> None:
    with open_doors() as doors, router(doors) as (behind, address):
        peer = dealer(context, address)
        peer.send(b"hello")
        routing_id, _ = behind.recv_multipart()
        for number in range(100):
            behind.send_multipart([routing_id, b"%d" % number * 1_000])
    with peer:
        assert [peer.recv() for _ in range(100)] == [b"%d" % number * 1_000 for number in range(100)]


def test_a_door_can_lead_to_another_socket(context: zmq.Context[Socket]) -> None:
    with open_doors() as doors:
        with router(doors) as (_, address):
            peer = dealer(context, address)
        with peer, router(doors, address) as (second, again):
            assert again == address
            peer.send(b"hello")
            assert second.recv_multipart()[1] == b"hello"


def test_a_peer_that_comes_while_there_is_no_socket_is_cut() -> None:
    with open_doors() as doors:
        with router(doors) as (_, address):
            pass
        with plain(address) as peer:
            assert ends(peer)


@pytest.mark.parametrize("listen", ["tcp://nowhere.invalid:0", "tcp://127.0.0.1:x", "ipc:///tmp/x"])
def test_an_address_that_can_not_be_used_is_named(listen: str) -> None:
    with open_doors() as doors, pytest.raises(OSError, match="can't listen on"), router(doors, listen):
        pass
