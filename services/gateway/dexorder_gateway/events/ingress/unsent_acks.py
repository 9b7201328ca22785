"""Acks that connections did not take when they were due: each connection gets its own later, in their order.

libzmq takes a limited number of messages for a connection (SNDHWM), and frees places in steps of half that limit. A
gateway that was suspended, or one that answers thousands of events at once, has more acks than that.
A container that counts answers never gets back the place of an ack that is dropped, so they wait here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from enum import Enum, auto

MAX_ACKS = 20_000
"""Acks that wait for one connection: twice a container's events in flight, for each event's QUEUED and its end."""
MAX_ALL_ACKS = 200_000
"""Acks that wait for all connections; above it the connection with the most loses its own."""


class Taken(Enum):
    """Result of giving an ack to the socket."""

    SENT = auto()
    FULL = auto()
    GONE = auto()


class UnsentAcks:
    """Queue of encoded acks for each routing id. For one thread.

    Args:
        send: Gives an ack to the socket, which takes it or not.
        dropped: Gets the reason for each ack that is given up.
    """

    def __init__(self, send: Callable[[bytes, bytes], Taken], dropped: Callable[[str], None]) -> None:
        self._send = send
        self._dropped = dropped
        self._queues: dict[bytes, deque[bytes]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def is_full(self, routing_id: bytes) -> bool:
        """Return whether a connection has too many unread acks, so that no more of its events should be taken."""
        queue = self._queues.get(routing_id)
        return queue is not None and len(queue) >= MAX_ACKS

    def send(self, routing_id: bytes, ack: bytes) -> None:
        """Send an ack after the earlier ones of its connection, now or later."""
        queue = self._queues.get(routing_id)
        if queue is None:
            taken = self._send(routing_id, ack)
            if taken is Taken.GONE:
                self._dropped("container_gone")
            elif taken is Taken.FULL:
                self._queues[routing_id] = deque((ack,))
                self._added()
        elif len(queue) >= MAX_ACKS:
            self._dropped("container_full")
        else:
            queue.append(ack)
            self._added()

    def send_again(self) -> None:
        """Send the acks that the connections take now."""
        for routing_id, queue in list(self._queues.items()):
            while queue:
                taken = self._send(routing_id, queue[0])
                if taken is Taken.FULL:
                    break
                if taken is Taken.GONE:
                    self._drop(routing_id, "container_gone")
                    break
                queue.popleft()
                self._count -= 1
            else:
                del self._queues[routing_id]

    def clear(self) -> None:
        """Drop all, because all connections are closed."""
        for routing_id in list(self._queues):
            self._drop(routing_id, "container_gone")

    def _added(self) -> None:
        self._count += 1
        if self._count > MAX_ALL_ACKS:
            self._drop(max(self._queues, key=lambda each: len(self._queues[each])), "container_full")

    def _drop(self, routing_id: bytes, reason: str) -> None:
        queue = self._queues.pop(routing_id)
        self._count -= len(queue)
        for _ in queue:
            self._dropped(reason)
