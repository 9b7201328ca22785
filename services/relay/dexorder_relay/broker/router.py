"""ROUTER socket of the broker: decodes frames for the engine and sends dispatches.

``dexorder_common/messaging/frames.py`` has the frames of port 5567. Any other frame is dropped and counted, and the
peer stays connected. With CURVE, a peer without an allowed key gets no connection and cannot send frames.
Peers connect through a TCP proxy (``dexorder_common/messaging/zmq_tcp_proxy.py``): a peer that dies while it
floods the socket could otherwise end the process, and one that sends a message without an end fill its memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import structlog
import zmq
import zmq.asyncio
from zmq.utils.monitor import parse_monitor_message

from dexorder_common.messaging.curve import curve_server
from dexorder_common.messaging.frames import FROM_INGESTOR, BadFrame, WorkFrame, decode_work, encode_work
from dexorder_common.messaging.handshake import REFUSALS, REFUSED
from dexorder_common.messaging.unread_bytes import UnreadBytes
from dexorder_common.messaging.zmq_tcp_proxy import zmq_tcp_proxy
from dexorder_common.model.realtime import RealtimeDispatch, Stop
from dexorder_common.rpc.realtime_messages import encode_params
from dexorder_protos.dexorder.ingest.v1 import ingest_pb2 as pb
from dexorder_relay.broker.dispatcher import JobDispatcher, ToIngestor
from dexorder_relay.config import RelaySettings
from dexorder_relay.metrics import RelayMetrics
from dexorder_relay.state.workers import Slot, SlotKind

log = structlog.get_logger(__name__)
FRAMES_BEFORE_A_BREAK = 100
_MONITOR = "inproc://broker-monitor"


class Broker:
    """A bound ROUTER socket; ``open_broker`` creates it."""

    def __init__(
        self,
        socket: zmq.asyncio.Socket,
        monitor: zmq.asyncio.Socket,
        metrics: RelayMetrics,
        address: str,
        unread: UnreadBytes,
    ) -> None:
        """Use sockets that the caller closes; ``address`` is the endpoint that peers connect to."""
        self._socket = socket
        self._unread = unread
        self._monitor = monitor
        self._metrics = metrics
        self.address = address

    async def run(self, dispatcher: JobDispatcher) -> None:
        """Receive frames until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._receive_frames(dispatcher))
            tasks.create_task(self._count_refusals())
            tasks.create_task(self._show_that_it_reads())

    async def _count_refusals(self) -> None:
        while True:
            event = parse_monitor_message(await self._monitor.recv_multipart())["event"]
            self._metrics.connections_refused.labels(REFUSALS[zmq.Event(event)]).inc()

    async def _show_that_it_reads(self) -> None:
        while True:  # frames are received in this event loop, each connection's in its turn
            await asyncio.sleep(1)
            self._unread.reads += 1

    async def _receive_frames(self, dispatcher: JobDispatcher) -> None:
        received = 0
        while True:
            message = await self._socket.recv_multipart(copy=False)
            identity, *frames = contents = [frame.bytes for frame in message]
            self._unread.received(contents, message[-1])
            reason = self._handle(identity, frames, dispatcher)
            if reason:
                self._metrics.dropped.labels(reason).inc()
                log.debug("frame dropped", reason=reason)
            received += 1
            if received % FRAMES_BEFORE_A_BREAK == 0:  # a receive with data available never yields to the loop
                await asyncio.sleep(0)

    def _handle(self, identity: bytes, frames: list[bytes], dispatcher: JobDispatcher) -> str | None:
        """Pass a message to the dispatcher; return the reason if it is dropped."""
        try:
            message = decode_work(frames)
        except BadFrame as error:
            return error.reason
        if not isinstance(message, FROM_INGESTOR):
            return "direction"
        if isinstance(message, pb.WorkerReady):
            return _handle_ready(identity, message, dispatcher)
        if not message.job_id:
            return "no_job_id"
        return None if _handle_dispatch(identity, message, dispatcher) else "not_current"

    async def send(self, identity: bytes, message: ToIngestor) -> bool:
        """Send a message; return False if the peer is gone (EHOSTUNREACH) or its queue is full (EAGAIN)."""
        try:
            await self._socket.send_multipart([identity, *encode_work(_encode(message))], flags=zmq.NOBLOCK)
        except zmq.ZMQError as error:
            if error.errno in (zmq.EHOSTUNREACH, zmq.EAGAIN):
                return False
            raise
        return True


def _encode(message: ToIngestor) -> pb.DataRequest | pb.WorkStop:
    if isinstance(message, Stop):
        return pb.WorkStop(job_id=message.dispatch_id)
    request = pb.DataRequest(
        request_id=message.request_id, client_id=message.client_id or None, job_id=message.dispatch_id
    )
    if isinstance(message, RealtimeDispatch):
        request.type = pb.DataRequest.REALTIME_TICKS
        request.ticker = message.ticker
        request.realtime.CopyFrom(encode_params(message.params))
        return request
    series = message.series
    request.type = pb.DataRequest.RequestType.ValueType(series.dataset.job_type)
    request.ticker = series.ticker
    if series.dataset.code:
        request.dataset = series.dataset.code
    if series.dataset.whole_exchange:
        return request
    request.historical.start_time = message.span.start_ns
    request.historical.end_time = message.span.end_ns
    request.historical.period_seconds = series.period_seconds
    return request


def _handle_ready(identity: bytes, message: pb.WorkerReady, dispatcher: JobDispatcher) -> str | None:
    if len(message.exchanges) != 1 or message.exchanges[0] not in dispatcher.venues:
        return "exchange"
    if int(message.job_type) not in set(SlotKind):
        return "job_type"
    slot = Slot(identity, message.exchanges[0], SlotKind(message.job_type))
    return None if dispatcher.ready(slot) else "too_many_slots"


def _handle_dispatch(identity: bytes, message: WorkFrame, dispatcher: JobDispatcher) -> bool:
    if isinstance(message, pb.WorkHeartbeat):
        return dispatcher.heartbeat(message.job_id, identity)
    if isinstance(message, pb.WorkReject):
        reason = f"the ingestor rejected it: {message.reason or 'no reason given'}"
        return dispatcher.give_back(message.job_id, reason, kind="rejected", rejected_by=identity)
    assert isinstance(message, pb.WorkComplete)
    if message.success:
        return dispatcher.complete(message.job_id)
    reason = f"the ingestor cannot continue: {message.error_message or 'no reason given'}"
    return dispatcher.give_back(message.job_id, reason, kind="failed")


@contextmanager
def open_broker(settings: RelaySettings, metrics: RelayMetrics) -> Iterator[Broker]:
    """Bind the ROUTER socket; frames unsent at the end are dropped. Needs a running event loop.

    Raises:
        OSError: The address cannot be bound.
        ValueError: A key file cannot be used.
    """
    context = zmq.asyncio.Context()
    socket, monitor = context.socket(zmq.ROUTER), context.socket(zmq.PAIR)
    with ExitStack() as closing:
        proxy = closing.enter_context(zmq_tcp_proxy())
        closing.callback(context.term)
        closing.callback(monitor.close, linger=0)
        closing.callback(socket.close)
        heartbeat_ms = int(settings.broker_heartbeat_seconds * 1_000)
        for option, value in (
            (zmq.LINGER, 0),
            (zmq.ROUTER_MANDATORY, 1),  # else a message to a dead peer is dropped without an error
            (zmq.ROUTER_HANDOVER, 1),  # a peer that reconnects under its identity replaces the dead connection
            (zmq.MAXMSGSIZE, settings.broker_max_frame_bytes),
            (zmq.HEARTBEAT_IVL, heartbeat_ms),
            (zmq.HEARTBEAT_TIMEOUT, 2 * heartbeat_ms),
            (zmq.HEARTBEAT_TTL, 3 * heartbeat_ms),
            (
                zmq.HANDSHAKE_IVL,
                int(settings.broker_handshake_seconds * 1_000),
            ),  # a silent connection does not hold a file descriptor
        ):
            socket.setsockopt(option, value)
        if settings.broker_curve_key and settings.broker_curve_clients:
            closing.enter_context(
                curve_server(context, socket, settings.broker_curve_key, settings.broker_curve_clients)
            )
        monitor.setsockopt(zmq.RCVHWM, 0)  # a full monitor would block the thread that serves all connections
        socket.monitor(_MONITOR, REFUSED)
        closing.callback(socket.disable_monitor)
        monitor.connect(_MONITOR)
        unread = UnreadBytes()
        admits = None if settings.broker_curve_key else settings.proxies_only()
        yield Broker(socket, monitor, metrics, proxy.bind(socket, settings.broker_listen, unread, admits), unread)
