"""When a connection that a ROUTER made is lost, where it is the one that connects."""

from __future__ import annotations

import zmq
from zmq.utils.monitor import parse_monitor_message


class SocketMonitor:
    """Whether one of a ROUTER's connections is lost; of those we make, which libzmq makes again under the same id.

    Its IMMEDIATE would end the way to whoever is gone, but in the midst of a message too, and that aborts the process
    (docs/decisions/0017). So acks wait for whoever comes to that address, unless the socket is closed first.

    Args:
        socket: Not connected yet, or the first connection is not known of.
    """

    def __init__(self, socket: zmq.Socket[bytes]) -> None:
        self._socket = socket
        self._there = set[bytes]()
        self.monitor = socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED)

    def look(self) -> bool:
        """Take what the monitor says. Who was never let in is not lost."""
        lost = False
        while self.monitor.poll(0):
            said = parse_monitor_message(self.monitor.recv_multipart())
            if said["event"] == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self._there.add(said["endpoint"])
            else:
                lost |= said["endpoint"] in self._there
        return lost

    def close(self) -> None:
        """Before the socket."""
        self._socket.disable_monitor()
        self.monitor.close(linger=0)
