"""Socket to the gateway that tracks its connection, and is reopened where libzmq would give up."""

from __future__ import annotations

from typing import Any

import structlog
import zmq
from zmq.utils.monitor import parse_monitor_message

from dexorder.events.config import PublisherSettings
from dexorder_common.messaging.curve import curve_client
from dexorder_common.messaging.handshake import CLIENT_EVENTS, REFUSED, explain_refusal

log = structlog.get_logger(__name__)
_SEND_LIMIT = 10_000
_LINGER_MS = 1_000
_REOPEN_NS = 2_000_000_000


class Connection:
    """XPUB or DEALER socket with its monitor, for one thread.

    Attributes:
        socket: Present socket; `poll` may replace it.
        address: Address that it is bound or connected to.
        connected: Whether the handshake with the gateway is complete; with ``bind``, with the latest peer.
        due_ns: Latest time for the next `poll`; None for no limit.
    """

    def __init__(self, context: zmq.Context[Any], kind: int, address: str, settings: PublisherSettings) -> None:
        self._context = context
        self._kind = kind
        self.address = address
        self._settings = settings
        self.connected = False
        self.due_ns: int | None = None
        self._log_again_ns = 0
        self._open()

    def _open(self) -> None:
        settings, socket = self._settings, self._context.socket(self._kind)
        socket.setsockopt(zmq.LINGER, 0)
        try:
            self._prepare(socket)
            self.monitor = socket.get_monitor_socket(CLIENT_EVENTS)
            if settings.bind:
                socket.bind(self.address)
                self.address = str(socket.getsockopt_string(zmq.LAST_ENDPOINT)).rstrip("\x00")
            else:
                socket.connect(self.address)
        except zmq.ZMQError as error:
            socket.close()
            raise OSError(f"can't {'bind' if settings.bind else 'connect to'} {self.address}: {error}") from None
        self.socket = socket

    def _prepare(self, socket: zmq.Socket[Any]) -> None:
        beat_ms = self._settings.heartbeat_ms
        for option, value in (
            (zmq.IMMEDIATE, 1),  # no queue without a gateway, and XPUB learns when subscriptions end
            (zmq.SNDHWM, _SEND_LIMIT),
            # only acks of our events; a full pipe with heartbeats would abort the process: decision 0017
            (zmq.RCVHWM, 0),
            (zmq.MAXMSGSIZE, self._settings.max_frame_bytes),
            (zmq.RECONNECT_IVL, 100),
            (zmq.RECONNECT_IVL_MAX, 2_000),
            (zmq.HEARTBEAT_IVL, beat_ms),
            (zmq.HEARTBEAT_TIMEOUT, 2 * beat_ms),
            (zmq.HEARTBEAT_TTL, 3 * beat_ms),
            (zmq.HANDSHAKE_IVL, int(self._settings.handshake_seconds * 1_000)),
            (zmq.IPV6, int("[" in self.address)),
        ):
            socket.setsockopt(option, value)
        if self._kind == zmq.XPUB:
            socket.setsockopt(zmq.XPUB_NODROP, 1)  # a full pipe gives EAGAIN instead of dropping the event
            socket.setsockopt(zmq.LINGER, _LINGER_MS)  # the fast path keeps no copy
        if self._settings.curve_key and self._settings.curve_server:
            curve_client(socket, self._settings.curve_key, self._settings.curve_server)

    def poll(self, *, now_ns: int) -> bool:
        """Process monitor events. Returns whether the connection was established again; ``socket`` may be a new one."""
        reconnected = False
        while self.monitor.poll(0):
            event = parse_monitor_message(self.monitor.recv_multipart())["event"]
            if event & REFUSED:
                if now_ns >= self._log_again_ns:  # libzmq repeats some refused handshakes ten times a second
                    advice = explain_refusal(event, curve=self._settings.curve_key is not None)
                    log.error("the handshake with the gateway failed", check=advice, address=self.address)
                    self._log_again_ns = now_ns + _REOPEN_NS
                self.due_ns = None if self._settings.bind else self.due_ns or now_ns + _REOPEN_NS
            self.connected = event == zmq.EVENT_HANDSHAKE_SUCCEEDED
            if self.connected:
                reconnected = True
                self.due_ns = None
        if self.due_ns is not None and now_ns >= self.due_ns:  # libzmq does not retry after a refusal
            self.due_ns = None
            self.close(linger_ms=0)
            self._open()
        return reconnected

    def receive(self) -> list[bytes] | None:
        """Return the frames of the next message; None if no message has arrived."""
        try:
            frames: list[bytes] = self.socket.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return None
        return frames

    def send(self, frames: list[bytes]) -> bool:
        """Send a message; return False if the queue is full."""
        try:
            self.socket.send_multipart(frames, zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True

    def close(self, *, linger_ms: int | None = None) -> None:
        """Close the socket; by default an XPUB sends its queued events within a second."""
        self.socket.disable_monitor()
        self.monitor.close(linger=0)
        self.socket.close(linger=linger_ms)
        self.connected = False
