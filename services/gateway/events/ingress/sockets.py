"""The ports of containers: SUB 5570, whose events are not answered, and ROUTER 5571, whose are. For one thread.

Frames are in ``services/common/messaging/frames.py``. With CURVE a message's sender is the owner of the key it
was encrypted with (``User-Id``), never the routing id it claims; without, everybody is the container ``local``.
"""

from __future__ import annotations

import socket as std_socket
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress

import structlog
import zmq
from tenacity import retry, retry_if_exception_type, stop_after_delay, wait_fixed

from services.common.messaging.curve import curve_authentication, curve_socket
from services.common.messaging.frames import BadFrame, encode_ack, event_body, published_body
from services.gateway.events.config import EventsSettings
from services.gateway.events.ingress.acks import Ack
from services.gateway.events.ingress.containers import STRANGER, Container, ContainersFile
from services.gateway.events.ingress.socket_monitor import SocketMonitor

log = structlog.get_logger(__name__)
Socket = zmq.Socket[bytes]
Dropped = Callable[[str], None]
LAST_ACKS_MS = 500
"""How long acks that are under way get at the end."""
MOST_UNREAD = 5_000
"""Messages of one connection in memory. Heartbeats of containers wait behind these, so they are far more than our
library has on its way; but of a connection that claims a routing id in use libzmq reads none, and keeps them until the
socket is closed, whether the other side is gone or not."""
_REOPEN_SECONDS = 5.0
_KEEPALIVE_S = 5
"""A container whose host is gone without a word is forgotten after four times as long."""
_FORM = frozenset({"frame_count", "version"})
_NOW, _NOW_MORE = int(zmq.NOBLOCK), int(zmq.NOBLOCK | zmq.SNDMORE)
"""Plain numbers: to join the enum's takes longer than to send a frame."""


class Waker:
    """Wakes a thread that waits in ``poll``; ``wake`` may be called from any other."""

    def __init__(self) -> None:
        self._there, self._here = std_socket.socketpair()
        self._there.setblocking(False)
        self._here.setblocking(False)

    def fileno(self) -> int:
        """What to poll."""
        return self._here.fileno()

    def wake(self) -> None:
        """End the wait, or the next one."""
        with suppress(BlockingIOError):  # it is full of wakes already
            self._there.send(b"\x00")

    def clear(self) -> None:
        """The wait has ended."""
        with suppress(BlockingIOError):
            self._here.recv(4096)

    def close(self) -> None:
        """No more."""
        self._there.close()
        self._here.close()


class EventSockets:
    """Both sockets; `open_ports` makes them.

    When a key is taken out of the containers file, all connections are cut, as ZMQ can't cut a single one. The others
    come back at once and send again what was not answered; what was on its way on the fast path is lost. Where we
    connect, those of ROUTER are cut when one of them is lost: what is for one container must not go to the next.

    Attributes:
        sub_address, router_address: Where containers connect to.
    """

    def __init__(
        self, context: zmq.Context[Socket], settings: EventsSettings, containers: ContainersFile, dropped: Dropped
    ) -> None:
        self._context = context
        self._settings = settings
        self._curve = settings.curve_key is not None
        self._containers = containers
        self._dropped = dropped
        self._keys = containers.current().keys
        self._poller = zmq.Poller()
        self._topics: set[bytes] = set()
        self._gone = False
        self._open_sub(settings.sub)
        try:
            self._open_router(settings.router)
        except BaseException:
            self._sub.close(linger=0)
            raise
        self.sub_address = self._sub.getsockopt_string(zmq.LAST_ENDPOINT).rstrip("\x00")
        self.router_address = self._router.getsockopt_string(zmq.LAST_ENDPOINT).rstrip("\x00")

    def _open_sub(self, addresses: str) -> None:
        self._sub = _socket(self._context, zmq.SUB, self._settings)
        try:
            _attach(self._sub, addresses, connect=self._settings.connect)
        except BaseException:
            self._close(self._sub, 0)
            raise

    def _open_router(self, addresses: str) -> None:
        self._router = _socket(self._context, zmq.ROUTER, self._settings)
        self._losses = SocketMonitor(self._router) if self._settings.connect else None
        try:
            _attach(self._router, addresses, connect=self._settings.connect)
        except BaseException:
            self._close_router(0)
            raise

    def close(self, *, linger_ms: int = LAST_ACKS_MS) -> None:
        """Close both."""
        self._close(self._sub, linger_ms)
        self._close_router(linger_ms)

    def _close_router(self, linger_ms: int) -> None:
        if self._losses:
            self._forget(self._losses.monitor)
            self._losses.close()
        self._close(self._router, linger_ms)

    def _close(self, socket: Socket, linger_ms: int) -> None:
        self._forget(socket)
        socket.close(linger=linger_ms)

    def _forget(self, socket: Socket) -> None:
        if socket in self._poller:
            self._poller.unregister(socket)

    def wait(self, waker: Waker, timeout_ms: int, *, router: bool, sub: bool) -> tuple[bool, bool]:
        """Wait until something comes; whether ROUTER and SUB have something, of those that were asked."""
        self._cut_if_revoked()
        self._cut_if_lost()
        asked = (*((self._router,) if router else ()), *((self._sub,) if sub else ()))
        for one in (self._router, self._sub):
            if one in asked:
                self._poller.register(one, zmq.POLLIN)
            else:
                self._forget(one)
        self._poller.register(waker, zmq.POLLIN)
        if self._losses:
            self._poller.register(self._losses.monitor, zmq.POLLIN)
        ready = {one for one, _ in self._poller.poll(timeout_ms)}
        waker.clear()
        return self._router in ready, self._sub in ready

    def _cut_if_revoked(self) -> None:
        keys = self._containers.current().keys if self._curve else self._keys
        if revoked := self._keys - keys:
            log.warning("a key is revoked: all containers connect again", revoked=len(revoked))
            self.close(linger_ms=0)
            _again(self._open_sub, _same(self._settings.sub, self.sub_address))
            _again(self._open_router, _same(self._settings.router, self.router_address))
            for topic in self._topics:
                self._sub.subscribe(topic)
        self._keys = keys

    def _cut_if_lost(self) -> None:
        if self._losses and self._losses.look():
            self._close_router(linger_ms=0)
            self._open_router(self._settings.router)

    def events(self, most: int) -> Iterator[tuple[Container, bytes | None, bytes]]:
        """What came on ROUTER: who sent it, the UserEvent, and the routing id.

        The UserEvent is None where the message has the right form and is of no type we know. Others are dropped.
        """
        for (routing_id, *frames), sender in self._receive(self._router, most):
            try:
                yield sender or STRANGER, event_body(frames), routing_id
            except BadFrame as error:
                if error.reason in _FORM:
                    self._dropped(error.reason)
                else:
                    yield sender or STRANGER, None, routing_id

    def published(self, most: int) -> Iterator[tuple[Container, bytes, bytes]]:
        """What came on SUB: who sent it, its topic, and the UserEvent."""
        for frames, sender in self._receive(self._sub, most):
            try:
                named, body = published_body(frames)
            except BadFrame as error:
                self._dropped(error.reason)
                continue
            if sender is None:
                self._dropped("not_owned")
            else:
                yield sender, named, body

    def _receive(self, socket: Socket, most: int) -> Iterator[tuple[list[bytes], Container | None]]:
        known = self._containers.current()
        local = known.local()
        with suppress(zmq.Again):
            for _ in range(most):
                frames, last = _message(socket)
                yield frames, known.by_key(str(last["User-Id"])) if self._curve else local

    def answer(self, acks: Iterable[tuple[bytes, Ack]]) -> None:
        """Send acks; those to a connection that is gone or takes no more are dropped and counted."""
        send = self._router.send
        for routing_id, ack in acks:
            version, body = encode_ack(ack.proto())
            try:
                send(routing_id, _NOW_MORE)  # send_multipart takes four times as long
                send(version, _NOW_MORE)
                send(body, _NOW)
            except zmq.ZMQError as error:
                if error.errno not in (zmq.EHOSTUNREACH, zmq.EAGAIN):
                    raise
                self._dropped("container_gone" if error.errno == zmq.EHOSTUNREACH else "container_full")

    def let_go(self) -> None:
        """Let containers see that nobody listens on SUB: they turn to ROUTER, which is not read either, and wait.

        Both stay bound: to unbind would cut the connections over which acks are still to go.
        """
        if not self._gone:
            self._gone = True
            self.subscribe((), tuple(self._topics))

    def subscribe(self, opened: Iterable[bytes], closed: Iterable[bytes]) -> None:
        """Hear the events of these topics, and no longer those."""
        for topic in () if self._gone else opened:
            self._sub.subscribe(topic)
            self._topics.add(topic)
        for topic in closed:
            if topic in self._topics:
                self._sub.unsubscribe(topic)
                self._topics.remove(topic)


@contextmanager
def open_sockets(settings: EventsSettings, containers: ContainersFile, dropped: Dropped) -> Iterator[EventSockets]:
    """Bind both, or connect them.

    Args:
        dropped: Told why a message or an ack was dropped.

    Raises:
        OSError: An address can't be used.
        ValueError: The key can't be used.
    """
    context: zmq.Context[Socket] = zmq.Context()
    with ExitStack() as closing:
        closing.callback(context.term)
        if settings.curve_key:
            closing.enter_context(curve_authentication(context, containers))
        ports = EventSockets(context, settings, containers, dropped)
        closing.callback(ports.close)
        yield ports


def _message(socket: Socket) -> tuple[list[bytes], zmq.Frame]:
    """The frames of one that has come, and its last as ZMQ has it.

    As ``recv_multipart``, which asks the socket after each frame whether there are more: that takes longer than the
    frame, which knows it.

    Raises:
        zmq.Again: None has.
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
def _again(opening: Callable[[str], None], addresses: str) -> None:
    """At addresses whose listener may still be closing: that is done in ZMQ's own thread."""
    opening(addresses)


def _same(given: str, bound: str) -> str:
    """Where a socket was: with its port, where it was given none."""
    return given if "," in given else bound


def _socket(context: zmq.Context[Socket], kind: int, settings: EventsSettings) -> Socket:
    socket = context.socket(kind)
    try:
        _set_up(socket, settings)
    except BaseException:
        socket.close(linger=0)
        raise
    return socket


def _set_up(socket: Socket, settings: EventsSettings) -> None:
    for option, value in (
        (zmq.MAXMSGSIZE, settings.max_frame_bytes),
        # no heartbeats of our own, they end the process: docs/decisions/0017; containers have them, and are answered
        (zmq.RCVHWM, MOST_UNREAD),
        (zmq.TCP_KEEPALIVE, 1),
        (zmq.TCP_KEEPALIVE_IDLE, _KEEPALIVE_S),
        (zmq.TCP_KEEPALIVE_INTVL, _KEEPALIVE_S),
        (zmq.TCP_KEEPALIVE_CNT, 3),
        (zmq.HANDSHAKE_IVL, 10_000),  # who connects and says nothing does not hold a file descriptor for ever
        (zmq.IPV6, int("[" in settings.sub + settings.router)),
    ):
        socket.setsockopt(option, value)
    if socket.type == zmq.ROUTER:
        socket.setsockopt(zmq.ROUTER_MANDATORY, 1)  # without it an ack to a dead container looks like a sent one
    if settings.curve_key:
        curve_socket(socket, settings.curve_key)


def _attach(socket: Socket, addresses: str, *, connect: bool) -> None:
    for address in addresses.split(","):
        try:
            (socket.connect if connect else socket.bind)(address.strip())
        except zmq.ZMQError as error:
            raise OSError(f"can't {'connect to' if connect else 'listen on'} {address}: {error}") from error
