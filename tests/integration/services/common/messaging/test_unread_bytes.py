"""Bytes of a connection that are not read are limited, whatever they are; honest peers are read on."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest
import zmq

from dexorder_common.messaging import zmq_tcp_proxy as proxying
from dexorder_common.messaging.unread_bytes import MAX_UNREAD_BYTES, UnreadBytes
from dexorder_common.messaging.zmq_tcp_proxy import zmq_tcp_proxy
from tests import zmtp

KERNEL_BYTES = 40 << 20
"""More than the buffers of the connections between a peer and libzmq."""
Socket = zmq.Socket[bytes]


class Reader:
    """Owner of a ROUTER, which reads all messages while ``reads`` is set, and answers with the last frame."""

    def __init__(self, router: Socket, unread: UnreadBytes) -> None:
        self.reads = threading.Event()
        self.ends = threading.Event()
        self._router = router
        self._unread = unread

    def run(self) -> None:
        while not self.ends.is_set():
            if not self.reads.wait(0.05):
                continue
            self._unread.reads += 1
            if self._router.poll(20):
                frames = self._router.recv_multipart(copy=False)
                contents = [frame.bytes for frame in frames]
                self._unread.received(contents, frames[-1])
                with suppress(zmq.ZMQError):
                    self._router.send_multipart([contents[0], contents[-1][:10]], zmq.NOBLOCK)


def hear(peer: socket.socket, text: bytes) -> None:
    """Read until a text has come, which may be behind a greeting or in several pieces."""
    heard = b""
    while text not in heard:
        part = peer.recv(4_096)
        assert part, f"closed after {heard!r}"
        heard += part


@contextmanager
def serving() -> Iterator[tuple[str, Reader]]:
    with zmq_tcp_proxy() as proxy, zmq.Context() as context, context.socket(zmq.ROUTER) as router:
        router.setsockopt(zmq.LINGER, 0)
        router.setsockopt(zmq.RCVHWM, 100_000)
        unread = UnreadBytes()
        address = proxy.bind(router, "tcp://127.0.0.1:0", unread)
        reader = Reader(router, unread)
        thread = threading.Thread(target=reader.run)
        thread.start()
        try:
            yield address, reader
        finally:
            reader.ends.set()
            thread.join()


def push(peer: socket.socket, part: bytes) -> int:
    """Send until the peer has to wait, or its connection is closed; return the bytes."""
    peer.settimeout(1.0)
    sent = 0
    with suppress(OSError):
        while sent < 10 * KERNEL_BYTES:
            sent += peer.send(part)
    return sent


@pytest.mark.parametrize("part", [bytes(200_000), b"a" * 1_000, b""], ids=["large frames", "frames", "empty frames"])
def test_a_message_without_an_end_costs_the_connection(monkeypatch: pytest.MonkeyPatch, part: bytes) -> None:
    monkeypatch.setattr(proxying, "STUCK_SECONDS", 0.2)
    more = zmtp.message(part, b"")[: -len(zmtp.message(b""))]  # one frame, and more to come
    with serving() as (address, reader), zmtp.connect(address) as peer, zmtp.connect(address) as honest:
        reader.reads.set()
        assert push(peer, more * (1 + 65_536 // len(more))) < KERNEL_BYTES
        peer.settimeout(20)
        with suppress(ConnectionResetError):
            while peer.recv(65_536):
                pass
        honest.sendall(zmtp.message(b"honest"))
        hear(honest, b"honest")


def test_a_peer_waits_while_its_messages_are_unread_and_loses_none() -> None:
    count, message = 400, zmtp.message(bytes(200_000))
    with serving() as (address, reader), zmtp.connect(address) as peer:
        sending = threading.Thread(target=lambda: peer.sendall(message * count))
        sending.start()
        time.sleep(0.5)
        assert sending.is_alive(), "the unread bytes have no limit"
        reader.reads.set()
        heard = 0
        while heard < count * len(zmtp.message(bytes(10))):
            heard += len(peer.recv(65_536))
        sending.join()


def test_a_connection_that_waits_for_its_reader_is_not_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxying, "STUCK_SECONDS", 0.1)
    message = zmtp.message(bytes(200_000))
    with serving() as (address, reader), zmtp.connect(address) as peer:
        peer.sendall(message * (2 * MAX_UNREAD_BYTES // len(message)))
        time.sleep(0.5)
        reader.reads.set()
        heard = b""
        while len(heard) < 2 * MAX_UNREAD_BYTES // len(message) * len(zmtp.message(bytes(10))):
            part = peer.recv(65_536)
            assert part, "the connection was closed"
            heard += part


def test_a_peer_of_an_old_protocol_is_read_like_any_other() -> None:
    """Its messages have no properties, which must not end whoever reads them."""
    with serving() as (address, reader), zmtp.connect(address) as honest:
        reader.reads.set()
        host, port = address.removeprefix("tcp://").split(":")
        with socket.create_connection((host, int(port)), timeout=20) as old:
            old.sendall(b"\x01\x00" + b"\x06\x00hello")  # ZMTP 1.0: an empty routing id, then a message
            honest.sendall(zmtp.message(b"honest"))
            hear(honest, b"honest")
            hear(old, b"hello")
        honest.sendall(zmtp.message(b"again"))
        hear(honest, b"again")


def test_no_more_connections_than_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxying, "MAX_CONNECTIONS", 2)
    with serving() as (address, _), zmtp.connect(address), zmtp.connect(address) as second:
        host, port = address.removeprefix("tcp://").split(":")
        with socket.create_connection((host, int(port)), timeout=20) as third, suppress(ConnectionResetError):
            assert third.recv(1) == b""
        second.close()
        for _ in range(50):
            with suppress(OSError, AssertionError), zmtp.connect(address):
                return
        pytest.fail("the place of a connection that was closed was not given back")
