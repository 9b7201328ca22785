"""Reasons to wake the dispatcher's poll other than messages: calls of other threads, lost connections of a ROUTER."""

from __future__ import annotations

import socket as std_socket
from contextlib import suppress

import zmq
from zmq.utils.monitor import parse_monitor_message


class Waker:
    """Wakes a thread that waits in ``poll``; ``wake`` is thread-safe."""

    def __init__(self) -> None:
        self._sender, self._receiver = std_socket.socketpair()
        self._sender.setblocking(False)
        self._receiver.setblocking(False)

    def fileno(self) -> int:
        """Return the file descriptor to poll."""
        return self._receiver.fileno()

    def wake(self) -> None:
        """End the present wait, or the next one."""
        with suppress(BlockingIOError):  # it is full of wakes already
            self._sender.send(b"\x00")

    def clear(self) -> None:
        """Consume all wakes after a wait."""
        with suppress(BlockingIOError):
            self._receiver.recv(4096)

    def close(self) -> None:
        """Close both ends."""
        self._sender.close()
        self._receiver.close()


class SocketMonitor:
    """Monitor of a ROUTER that connects, for connections that are lost and that libzmq makes again under the same id.

    ZMQ_IMMEDIATE would end the route to a lost peer, but also in the middle of a message, which aborts the process
    (docs/decisions/0017). So acks would wait for the next peer at that address, unless the socket is closed first.
    A socket that is connected already is too late: its first connection is missed.
    """

    def __init__(self, socket: zmq.Socket[bytes]) -> None:
        self._socket = socket
        self._connected = set[bytes]()
        self.events = socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED)

    def connection_lost(self) -> bool:
        """Read all monitor events; return whether a connection that had been established was lost."""
        lost = False
        while self.events.poll(0):
            event = parse_monitor_message(self.events.recv_multipart())
            if event["event"] == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self._connected.add(event["endpoint"])
            else:
                lost |= event["endpoint"] in self._connected
        return lost

    def close(self) -> None:
        """Close the monitor, before its socket."""
        self._socket.disable_monitor()
        self.events.close(linger=0)
