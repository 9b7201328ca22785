"""A socket to the gateway that knows whether it is connected, and is opened anew where libzmq would give up."""

from __future__ import annotations

from typing import Any

import structlog
import zmq
from zmq.utils.monitor import parse_monitor_message

from dexorder.events.config import PublisherSettings
from services.common.messaging.curve import curve_client

log = structlog.get_logger(__name__)
_REFUSED = zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
_EVENTS = zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED | _REFUSED
_SEND_LIMIT = 10_000
_LINGER_MS = 1_000
_AGAIN_NS = 2_000_000_000


class Connection:
    """An XPUB or DEALER with its monitor, for one thread.

    Attributes:
        socket: Another one after `look` has said so.
        address: Where it is bound, or connects to.
        connected: The handshake with the gateway is done; if we bind, with whoever came last.
    """

    def __init__(self, context: zmq.Context[Any], kind: int, address: str, settings: PublisherSettings) -> None:
        self._context = context
        self._kind = kind
        self.address = address
        self._settings = settings
        self.connected = False
        self._reopen_ns: int | None = None
        self._say_again_ns = 0
        self._open()

    def _open(self) -> None:
        settings, socket = self._settings, self._context.socket(self._kind)
        socket.setsockopt(zmq.LINGER, 0)
        try:
            self._prepare(socket)
            self.monitor = socket.get_monitor_socket(_EVENTS)
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
            (zmq.IMMEDIATE, 1),  # no queue without a gateway, and XPUB is told of the end of its subscriptions
            (zmq.SNDHWM, _SEND_LIMIT),
            (zmq.RCVHWM, 0),  # acks of its own events; with heartbeats a full pipe ends the process: decision 0017
            (zmq.MAXMSGSIZE, self._settings.max_frame_bytes),
            (zmq.RECONNECT_IVL, 100),
            (zmq.RECONNECT_IVL_MAX, 2_000),
            (zmq.HEARTBEAT_IVL, beat_ms),
            (zmq.HEARTBEAT_TIMEOUT, 2 * beat_ms),
            (zmq.HEARTBEAT_TTL, 3 * beat_ms),
            (zmq.HANDSHAKE_IVL, max(2 * beat_ms, 2_000)),
            (zmq.IPV6, int("[" in self.address)),
        ):
            socket.setsockopt(option, value)
        if self._kind == zmq.XPUB:
            socket.setsockopt(zmq.XPUB_NODROP, 1)  # a full pipe says EAGAIN instead of losing the event
            socket.setsockopt(zmq.LINGER, _LINGER_MS)  # the fast path has no second copy
        if self._settings.curve_key and self._settings.curve_server:
            curve_client(socket, self._settings.curve_key, self._settings.curve_server)

    def look(self, *, now_ns: int) -> bool:
        """Take what the monitor says; whether the link is connected anew. ``socket`` may be another one then."""
        anew = False
        while self.monitor.poll(0):
            event = parse_monitor_message(self.monitor.recv_multipart())["event"]
            if event & _REFUSED:
                if now_ns >= self._say_again_ns:  # some refusals libzmq tries again ten times a second
                    log.error("no handshake with the gateway; is CURVE set alike?", address=self.address)
                    self._say_again_ns = now_ns + _AGAIN_NS
                self._reopen_ns = None if self._settings.bind else self._reopen_ns or now_ns + _AGAIN_NS
            self.connected = event == zmq.EVENT_HANDSHAKE_SUCCEEDED
            if self.connected:
                anew = True
                self._reopen_ns = None
        if self._reopen_ns is not None and now_ns >= self._reopen_ns:  # libzmq does not try again after a refusal
            self._reopen_ns = None
            self._close(linger_ms=0)
            self._open()
        return anew

    def next_due_ns(self) -> int | None:
        """When `look` wants to be called at the latest."""
        return self._reopen_ns

    def close(self) -> None:
        """Close it; what a XPUB still has leaves within a second."""
        self._close(linger_ms=None)

    def _close(self, linger_ms: int | None) -> None:
        self.socket.disable_monitor()
        self.monitor.close(linger=0)
        self.socket.close(linger=linger_ms)
        self.connected = False
