"""Sockets of containers: XSUB 5570, without acks, and ROUTER 5571, with acks. For one thread.

Frames are in ``dexorder_common/messaging/frames.py``. With CURVE, the sender of a message is the owner of the key
that encrypted it (``User-Id``), never the routing id it claims; without, every sender is the container ``local``.
"""

from __future__ import annotations

import socket as std_socket
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress

import structlog
import zmq
from tenacity import retry, retry_if_exception_type, stop_after_delay, wait_fixed
from zmq.utils.monitor import parse_monitor_message

from dexorder_common.messaging.curve import curve_authentication, curve_socket
from dexorder_common.messaging.frames import VERSION, BadFrame, encode_ack, event_body, published_body
from dexorder_common.messaging.unread_bytes import UnreadBytes
from dexorder_common.messaging.zmq_tcp_proxy import Admits, ZmqTcpProxy, zmq_tcp_proxy
from dexorder_common.model.user_events import Status
from dexorder_gateway.events.config import EventsSettings
from dexorder_gateway.events.event_codec import ack_message
from dexorder_gateway.events.ingress.containers import STRANGER, Container, ContainersFile
from dexorder_gateway.events.ingress.unsent_acks import Taken, UnsentAcks
from dexorder_gateway.events.model import Ack

log = structlog.get_logger(__name__)
Socket = zmq.Socket[bytes]
Dropped = Callable[[str], None]
LINGER_MS = 500
"""Time for the last acks when the sockets close."""
MAX_UNREAD = 5_000
"""Messages of one connection in memory. Heartbeats of containers wait behind these, so it is far more than our library
sends ahead. `UnreadBytes` limits their bytes."""
_ASSIGNED_ID_BYTES = 5
_NOT_ASSIGNED = Ack("", Status.ERROR, "connect without a routing id")
_REOPEN_SECONDS = 5.0
_KEEPALIVE_S = 5
"""A container is forgotten after four times as long if its host disappears silently."""
_SUBSCRIBE, _UNSUBSCRIBE = b"\x01", b"\x00"
_MALFORMED = frozenset({"frame_count", "version"})
_SEND_LAST = int(zmq.NOBLOCK)
_SEND_MORE = int(zmq.NOBLOCK | zmq.SNDMORE)
"""Plain numbers: to combine the enum's members takes longer than to send a frame."""


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


class _SocketMonitor:
    """Monitor of a ROUTER that connects, for connections that are lost and that libzmq makes again under the same id.

    ZMQ_IMMEDIATE would end the route to a lost peer, but might do so in the middle of a message, which aborts the
    process (docs/decisions/0017). So acks would wait for the next peer at that address, unless the socket is closed.
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


class EventSockets:
    """Both sockets; `open_sockets` opens them.

    When a key is removed from the containers file, all connections are closed, as ZMQ can't close a single one. The
    others reconnect at once and resend unacked events; messages in transit on the fast path are lost. Where we
    connect, ROUTER's connections are closed when one is lost: acks for one container must not go to the next.
    """

    def __init__(
        self,
        context: zmq.Context[Socket],
        settings: EventsSettings,
        containers: ContainersFile,
        dropped: Dropped,
        waker: Waker,
        proxy: ZmqTcpProxy,
        admits: Admits | None,
    ) -> None:
        self._context = context
        self._admits = None if settings.curve_key else admits
        self._proxy = proxy
        self._settings = settings
        self._curve = settings.curve_key is not None
        self._containers = containers
        self._dropped = dropped
        self._keys = containers.current().keys
        self._waker = waker
        self._poller = zmq.Poller()
        self._topics: set[bytes] = set()
        self._unsubscribed = False
        self._unsent = UnsentAcks(self._send_ack, dropped)
        self.sub_address = self._open_sub(settings.sub)
        self.router_address = self._open_router(settings.router)

    def _open_sub(self, addresses: str) -> str:
        self._sub = _socket(self._context, zmq.XSUB, self._settings)
        self._sub_unread = UnreadBytes()
        try:
            return self._attach(self._sub, addresses, self._sub_unread)
        except BaseException:
            self._close(self._sub, 0)
            raise

    def _open_router(self, addresses: str) -> str:
        self._router = _socket(self._context, zmq.ROUTER, self._settings)
        self._router_unread = UnreadBytes()
        self._monitor = _SocketMonitor(self._router) if self._settings.connect else None
        try:
            return self._attach(self._router, addresses, self._router_unread)
        except BaseException:
            self._close_router(0)
            raise

    def _attach(self, socket: Socket, addresses: str, unread: UnreadBytes) -> str:
        """Bind or connect a socket; return its last address. Only TCP ports that we bind limit unread bytes."""
        for address in map(str.strip, addresses.split(",")):
            try:
                if self._settings.connect:
                    socket.connect(address)
                elif address.startswith("tcp:"):
                    last = self._proxy.bind(socket, address, unread, self._admits)
                    continue
                else:
                    socket.bind(address)
            except zmq.ZMQError as error:
                verb = "connect to" if self._settings.connect else "listen on"
                raise OSError(f"can't {verb} {address}: {error}") from error
            last = socket.getsockopt_string(zmq.LAST_ENDPOINT).rstrip("\x00")
        return last

    def close(self, *, linger_ms: int = LINGER_MS) -> None:
        """Close both sockets."""
        self._close(self._sub, linger_ms)
        self._close_router(linger_ms)

    def _close_router(self, linger_ms: int) -> None:
        if self._monitor:
            self._unregister(self._monitor.events)
            self._monitor.close()
        self._close(self._router, linger_ms)
        self._unsent.clear()

    def _close(self, socket: Socket, linger_ms: int) -> None:
        self._unregister(socket)
        socket.close(linger=linger_ms)

    def _unregister(self, socket: Socket) -> None:
        if socket in self._poller:
            self._poller.unregister(socket)

    @property
    def has_unsent(self) -> bool:
        """Return whether connections have acks to take yet."""
        return len(self._unsent) > 0

    def wake(self) -> None:
        """End the present wait, or the next one; thread-safe."""
        self._waker.wake()

    def wait(self, timeout_ms: int, *, router: bool, sub: bool) -> tuple[bool, bool]:
        """Wait for messages on ROUTER and SUB, as far as requested, or for a wake; return which of them has some."""
        self._close_if_revoked()
        self._close_if_lost()
        for socket, unread, wanted in (
            (self._router, self._router_unread, router),
            (self._sub, self._sub_unread, sub),
        ):
            if wanted:
                unread.reads += 1
                self._poller.register(socket, zmq.POLLIN)
            else:
                self._unregister(socket)
        self._poller.register(self._waker, zmq.POLLIN)
        if self._monitor:
            self._poller.register(self._monitor.events, zmq.POLLIN)
        ready = {socket for socket, _ in self._poller.poll(timeout_ms)}
        self._waker.clear()
        return self._router in ready, self._sub in ready

    def _close_if_revoked(self) -> None:
        keys = self._containers.current().keys if self._curve else self._keys
        if revoked := self._keys - keys:
            log.warning("container key revoked; all containers reconnect", revoked=len(revoked))
            self.close(linger_ms=0)
            _reopen(self._open_sub, _bound(self._settings.sub, self.sub_address))
            _reopen(self._open_router, _bound(self._settings.router, self.router_address))
            for topic in self._topics:
                self._sub.send(_SUBSCRIBE + topic)
        self._keys = keys

    def _close_if_lost(self) -> None:
        if self._monitor and self._monitor.connection_lost():
            self._close_router(linger_ms=0)
            self._open_router(self._settings.router)

    def events(self, limit: int) -> Iterator[tuple[Container, bytes | None, bytes]]:
        """Receive from ROUTER, at most ``limit`` messages: sender, UserEvent, routing id.

        The UserEvent is None where the message is well-formed but of an unknown type. Malformed messages are dropped,
        and so are messages of a connection that does not read its acks. A connection that chooses its routing id could
        take over another one's acks, so its messages are refused.
        """
        for (routing_id, *frames), sender in self._receive(self._router, self._router_unread, limit):
            if len(routing_id) != _ASSIGNED_ID_BYTES or routing_id[0]:
                self._dropped("routing_id")
                self._unsent.send(routing_id, encode_ack(ack_message(_NOT_ASSIGNED))[1])
                continue
            if self._unsent and self._unsent.is_full(routing_id):
                self._dropped("container_full")
                continue
            try:
                yield sender or STRANGER, event_body(frames), routing_id
            except BadFrame as error:
                if error.reason in _MALFORMED:
                    self._dropped(error.reason)
                else:
                    yield sender or STRANGER, None, routing_id

    def published(self, limit: int) -> Iterator[tuple[Container, bytes, bytes]]:
        """Receive from XSUB, at most ``limit`` messages: sender, topic, UserEvent. XSUB takes all topics."""
        for frames, sender in self._receive(self._sub, self._sub_unread, limit):
            try:
                topic, body = published_body(frames)
            except BadFrame as error:
                self._dropped(error.reason)
                continue
            if topic not in self._topics:
                self._dropped("no_session")
            elif sender is None:
                self._dropped("not_owned")
            else:
                yield sender, topic, body

    def _receive(
        self, socket: Socket, unread: UnreadBytes, limit: int
    ) -> Iterator[tuple[list[bytes], Container | None]]:
        containers = self._containers.current()
        local = containers.local()
        with suppress(zmq.Again):
            for _ in range(limit):
                frames, last = _message(socket)
                unread.received(frames, last)
                yield frames, containers.by_key(str(last["User-Id"])) if self._curve else local

    def send_acks(self, acks: Iterable[tuple[bytes, Ack]]) -> None:
        """Send acks to routing ids, and acks that connections did not take before; see `UnsentAcks`."""
        unsent = self._unsent
        if unsent:
            unsent.send_again()
        for routing_id, ack in acks:
            unsent.send(routing_id, encode_ack(ack_message(ack))[1])

    def _send_ack(self, routing_id: bytes, body: bytes) -> Taken:
        send = self._router.send
        try:
            send(routing_id, _SEND_MORE)  # send_multipart takes four times as long
            send(VERSION, _SEND_MORE)
            send(body, _SEND_LAST)
        except zmq.ZMQError as error:
            if error.errno not in (zmq.EHOSTUNREACH, zmq.EAGAIN):
                raise
            return Taken.GONE if error.errno == zmq.EHOSTUNREACH else Taken.FULL
        return Taken.SENT

    def unsubscribe_all(self) -> None:
        """Show containers that SUB is without a listener: they send to ROUTER, which is not read either, and wait.

        Both stay bound: to unbind would close the connections over which acks have yet to be sent.
        """
        if not self._unsubscribed:
            self._unsubscribed = True
            self.subscribe((), tuple(self._topics))

    def subscribe(self, opened: Iterable[bytes], closed: Iterable[bytes]) -> None:
        """Subscribe to topics, and unsubscribe from others."""
        for topic in () if self._unsubscribed else opened:
            self._sub.send(_SUBSCRIBE + topic)
            self._topics.add(topic)
        for topic in closed:
            if topic in self._topics:
                self._sub.send(_UNSUBSCRIBE + topic)
                self._topics.remove(topic)


@contextmanager
def open_sockets(
    settings: EventsSettings, containers: ContainersFile, dropped: Dropped, admits: Admits | None = None
) -> Iterator[EventSockets]:
    """Bind both sockets, or connect them.

    Args:
        dropped: Gets the reason for each message or ack that is dropped.
        admits: Decides which peers may connect where CURVE does not; None takes any.

    Raises:
        OSError: An address can't be used.
        ValueError: The key can't be used.
    """
    context: zmq.Context[Socket] = zmq.Context()
    with ExitStack() as closing:
        proxy = closing.enter_context(zmq_tcp_proxy())
        closing.callback(context.destroy, linger=0)  # closes sockets that a failure left open
        if settings.curve_key:
            closing.enter_context(curve_authentication(context, containers))
        waker = Waker()
        closing.callback(waker.close)
        ports = EventSockets(context, settings, containers, dropped, waker, proxy, admits)
        closing.callback(ports.close)
        yield ports


def _message(socket: Socket) -> tuple[list[bytes], zmq.Frame]:
    """Return the frames of a message, and ZMQ's object of the last one.

    Faster than ``recv_multipart``, which asks the socket after each frame whether more follow; the frame knows that.

    Raises:
        zmq.Again: No message has arrived.
    """
    frame = socket.recv(zmq.NOBLOCK, copy=False)
    frames = [frame.bytes]
    while frame.more:
        frame = socket.recv(zmq.NOBLOCK, copy=False)
        frames.append(frame.bytes)
    return frames, frame


@retry(
    retry=retry_if_exception_type(OSError), stop=stop_after_delay(_REOPEN_SECONDS), wait=wait_fixed(0.02), reraise=True
)
def _reopen(open_socket: Callable[[str], object], addresses: str) -> None:
    """Open a socket at addresses where ZMQ's own thread may still be closing the previous listener."""
    open_socket(addresses)


def _bound(configured: str, bound: str) -> str:
    """Return the addresses to reopen: a single one with the port that was bound, where port 0 was configured."""
    return configured if "," in configured else bound


def _socket(context: zmq.Context[Socket], kind: int, settings: EventsSettings) -> Socket:
    socket = context.socket(kind)
    for option, value in (
        (zmq.MAXMSGSIZE, settings.max_frame_bytes),
        # we send no heartbeats, they abort the process: docs/decisions/0017; containers' heartbeats are answered
        (zmq.RCVHWM, MAX_UNREAD),
        (zmq.TCP_KEEPALIVE, 1),
        (zmq.TCP_KEEPALIVE_IDLE, _KEEPALIVE_S),
        (zmq.TCP_KEEPALIVE_INTVL, _KEEPALIVE_S),
        (zmq.TCP_KEEPALIVE_CNT, 3),
        (
            zmq.HANDSHAKE_IVL,
            int(settings.handshake_seconds * 1_000),
        ),  # a silent connection must not hold a file descriptor forever
        (zmq.IPV6, int("[" in settings.sub + settings.router)),
    ):
        socket.setsockopt(option, value)
    if kind == zmq.ROUTER:
        socket.setsockopt(zmq.ROUTER_MANDATORY, 1)  # else an ack to a closed connection looks like a sent one
        socket.setsockopt(zmq.ROUTER_HANDOVER, 1)  # a connection that is not let in is never read, and never freed
    if settings.curve_key:
        curve_socket(socket, settings.curve_key)
    return socket
