"""Bytes of each connection that the owner of a ZeroMQ socket has not read yet, and their limit.

libzmq limits the bytes of one frame and the messages that wait. It limits neither the frames of a message, which it
keeps until the last one arrives, nor the bytes that wait. So `ZmqTcpProxy` counts the bytes that it passes to libzmq,
the owner of the socket counts the bytes that it reads, and a connection with too large a difference has to wait.

The owner knows a message's connection by its address: the proxy reaches libzmq from another loopback address for each.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import zmq

MAX_UNREAD_BYTES = 1 << 20
"""Far more than the largest message, so a connection with this many unread bytes and no complete message breaks the
protocol. A frame of one byte takes 64 bytes in libzmq, so it may take about 20 times as much memory."""
FRAME_BYTES = 42
"""Most that ZMTP and CURVE add to a frame."""
_FIRST, _LAST = 0x7F010001, 0x7FFFFFFE


class Connection:
    """Count of one connection. The proxy's thread writes all but ``read``, which the socket's owner adds to.

    Attributes:
        address: Loopback address from which the proxy reaches libzmq.
        passed: Bytes that were passed on to libzmq.
        read: Bytes that the owner has read; up to `FRAME_BYTES` too many per frame.
        is_waiting: Whether the owner has to call ``has_room`` when it has read more.
    """

    __slots__ = ("_surplus", "address", "has_room", "is_waiting", "passed", "read")

    def __init__(self, address: str, has_room: Callable[[], object]) -> None:
        self.address = address
        self.has_room = has_room
        self.passed = self.read = self._surplus = 0
        self.is_waiting = False

    @property
    def unread(self) -> int:
        """Return the bytes that have not been read. Bytes that were counted as read too early give no credit."""
        unread = self.passed - self.read + self._surplus
        if unread < 0:
            self._surplus -= unread
            return 0
        return unread

    @property
    def is_full(self) -> bool:
        """Return whether the connection has to wait."""
        return self.unread >= MAX_UNREAD_BYTES


class UnreadBytes:
    """Connections of one socket. ``received`` and ``reads`` are for its owner, the rest for the proxy's thread.

    Attributes:
        reads: How often the owner has looked for messages.
    """

    def __init__(self) -> None:
        self._connections: dict[str, Connection] = {}
        self._numbers = itertools.cycle(range(_FIRST, _LAST))
        self.reads = 0

    def opened(self, has_room: Callable[[], object]) -> Connection:
        """Count a new connection, from an address that no other one has.

        Args:
            has_room: Called in the owner's thread when it has read from a connection that waits.
        """
        address = next(each for each in map(_text, self._numbers) if each not in self._connections)
        made = self._connections[address] = Connection(address, has_room)
        return made

    def closed(self, connection: Connection) -> None:
        """Forget a connection."""
        self._connections.pop(connection.address, None)

    def received(self, frames: Sequence[bytes], last: zmq.Frame) -> None:
        """Count a message that the owner has read; ``last`` is ZMQ's object of its last frame.

        Peers of ZMTP 1.0 and 2.0 do not have an address, so bytes read from them are not counted: they may send at most
        the limit in all.
        """
        try:
            address = str(last["Peer-Address"])
        except zmq.ZMQError:
            return
        connection = self._connections.get(address)
        if connection is not None:
            connection.read += sum(map(len, frames)) + FRAME_BYTES * len(frames)
            if connection.is_waiting:
                connection.has_room()


def _text(address: int) -> str:
    return ".".join(map(str, address.to_bytes(4)))
