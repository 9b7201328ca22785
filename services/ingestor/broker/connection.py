"""The DEALER side of port 5567: one connection after the other, each with a socket and an identity of its own.

A DEALER that reconnects by itself keeps its identity, and what the broker sent to the dead connection is lost without a
sign. So a monitor watches each socket; after a loss it is closed and a new one opened, which says again all that the
broker can't know: free slots, running jobs, completions that may not have arrived.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import structlog
import zmq
import zmq.asyncio
from zmq.utils.monitor import parse_monitor_message

from services.common.clock import Clock
from services.common.messaging.curve import curve_client
from services.common.messaging.frames import WorkFrame, decode_work, encode_work
from services.common.model.errors import InvalidRequest
from services.gen.dexorder.ingest.v1 import ingest_pb2 as pb
from services.ingestor.broker.dispatch import Dispatch, read_dispatch
from services.ingestor.broker.slots import Completion, Slots
from services.ingestor.config import IngestorSettings
from services.ingestor.metrics import IngestorMetrics

log = structlog.get_logger(__name__)
RunDispatch = Callable[[Dispatch], Awaitable[Completion | None]]
_MOST_FRAME_BYTES = 1 << 20
_LINGER_MS = 1_000
_FLUSH_SECONDS = 2.0
_REFUSED_SECONDS = 2.0
_REFUSED = zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
_EVENTS = zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED | _REFUSED


class _Lost(Exception):
    """The connection is gone."""


class _Refused(Exception):
    """No handshake with the broker; this socket will not try again by itself."""


class BrokerConnection:
    """Offers slots, runs what the broker sends, says how it went; see `run`."""

    def __init__(
        self,
        settings: IngestorSettings,
        slots: Slots,
        run_job: RunDispatch,
        metrics: IngestorMetrics,
        clock: Clock,
        *,
        on_connected: Callable[[bool], Awaitable[None]],
    ) -> None:
        self._settings = settings
        self._slots = slots
        self._run_job = run_job
        self._metrics = metrics
        self._clock = clock
        self._on_connected = on_connected
        self._outbox: asyncio.Queue[WorkFrame] = asyncio.Queue()
        self._connected = asyncio.Event()
        self._ended = False
        self._jobs: dict[str, asyncio.Task[None]] = {}

    async def run(self, stop: asyncio.Event) -> None:
        """Work until ``stop`` is set; then offer no slot, let jobs end within ``drain_seconds``, hand the rest back."""
        with zmq.asyncio.Context() as context:
            async with asyncio.TaskGroup() as group:
                connecting = group.create_task(self._stay_connected(context, group))
                await stop.wait()
                self._slots.stop()
                await self._drain()
                await self._flush()
                self._ended = True  # a loss at this moment would be all that is heard of the cancellation
                connecting.cancel()

    async def _drain(self) -> None:
        jobs = set(self._jobs.values())
        if jobs:
            log.info("waiting for running jobs", jobs=len(jobs), seconds=self._settings.drain_seconds)
            _, late = await asyncio.wait(jobs, timeout=self._settings.drain_seconds)
            for job in late:
                job.cancel()
            if late:
                await asyncio.wait(late)

    async def _flush(self) -> None:
        """Give what was said last a moment to leave."""
        if self._connected.is_set():
            try:
                async with asyncio.timeout(_FLUSH_SECONDS):
                    await self._outbox.join()
            except TimeoutError:
                log.warning("the broker did not take the last messages", messages=self._outbox.qsize())

    # ---- connections

    async def _stay_connected(self, context: zmq.asyncio.Context, jobs: asyncio.TaskGroup) -> None:
        while not self._ended:
            try:
                async with self._open(context) as (socket, monitor), asyncio.TaskGroup() as group:
                    if await _wait_for(monitor, zmq.EVENT_HANDSHAKE_SUCCEEDED | _REFUSED) & _REFUSED:
                        raise _Refused
                    group.create_task(self._watch(monitor))
                    self._metrics.connections.inc()
                    log.info("connected to the broker", broker=self._settings.broker)
                    self._say_everything()
                    self._connected.set()
                    await self._on_connected(True)
                    group.create_task(self._send(socket))
                    group.create_task(self._heartbeat())
                    group.create_task(self._receive(socket, jobs))
            except* _Lost:
                log.warning("lost the broker", broker=self._settings.broker)
            except* _Refused:
                log.error("no handshake with the broker; is CURVE set alike?", broker=self._settings.broker)
                await asyncio.sleep(_REFUSED_SECONDS)
            self._connected.clear()
            await self._on_connected(False)

    @asynccontextmanager
    async def _open(self, context: zmq.asyncio.Context) -> AsyncIterator[tuple[zmq.asyncio.Socket, zmq.asyncio.Socket]]:
        socket, monitor = context.socket(zmq.DEALER), None
        try:
            socket.set(zmq.IDENTITY, uuid.uuid4().bytes)
            socket.set(zmq.IMMEDIATE, 1)  # nothing is queued for a connection that is not there
            socket.set(zmq.LINGER, _LINGER_MS)
            socket.set(zmq.MAXMSGSIZE, _MOST_FRAME_BYTES)
            socket.set(zmq.RCVHWM, 0)  # no more than our offers; beside heartbeats a limit is a risk: decision 0018
            socket.set(zmq.RECONNECT_IVL, 200)
            socket.set(zmq.RECONNECT_IVL_MAX, 2_000)
            socket.set(zmq.HEARTBEAT_IVL, 2_000)
            socket.set(zmq.HEARTBEAT_TIMEOUT, 6_000)
            socket.set(zmq.HEARTBEAT_TTL, 10_000)
            socket.set(zmq.HANDSHAKE_IVL, 5_000)
            if self._settings.broker_curve_key and self._settings.broker_curve_server:
                curve_client(socket, self._settings.broker_curve_key, self._settings.broker_curve_server)
            monitor = socket.get_monitor_socket(_EVENTS)
            socket.connect(self._settings.broker)
            yield socket, monitor
        finally:
            if monitor is not None:
                socket.disable_monitor()
                monitor.close(linger=0)
            socket.close()

    async def _watch(self, monitor: zmq.asyncio.Socket) -> None:
        await _wait_for(monitor, zmq.EVENT_DISCONNECTED)
        raise _Lost

    def _say_everything(self) -> None:
        while not self._outbox.empty():  # meant for the connection before; said again below as far as it still holds
            self._outbox.get_nowait()
            self._outbox.task_done()
        for completion in self._slots.unsettled(now_ns=self._clock.monotonic_ns()):
            self._say(_work_complete(completion))
        self._beat()
        self._slots.forget_offers()
        self._offer()

    async def _send(self, socket: zmq.asyncio.Socket) -> None:
        while True:
            message = await self._outbox.get()
            try:
                await socket.send_multipart(encode_work(message))
            finally:
                self._outbox.task_done()
            if isinstance(message, pb.WorkComplete):
                self._slots.sent(message.job_id, now_ns=self._clock.monotonic_ns())

    async def _heartbeat(self) -> None:
        while True:
            await asyncio.sleep(self._settings.heartbeat_seconds)
            self._beat()

    def _beat(self) -> None:
        for job_id in self._slots.running:
            self._say(pb.WorkHeartbeat(job_id=job_id))

    def _offer(self) -> None:
        for venue in self._slots.due():
            self._say(pb.WorkerReady(exchanges=[venue], job_type=pb.HISTORICAL))
        for venue in self._slots.venues:
            self._metrics.free_slots.labels(venue).set(self._slots.free(venue))
            self._metrics.jobs_held.labels(venue).set(self._slots.held(venue))

    def _say(self, message: WorkFrame) -> None:
        self._outbox.put_nowait(message)

    # ---- jobs

    async def _receive(self, socket: zmq.asyncio.Socket, jobs: asyncio.TaskGroup) -> None:
        while True:
            frames: list[bytes] = await socket.recv_multipart()
            try:
                message = decode_work(frames)
                if isinstance(message, pb.DataRequest):
                    self._accept(message, jobs)
                elif isinstance(message, pb.WorkStop):
                    log.info("nothing to stop: only realtime jobs can be", job_id=message.job_id)
                else:
                    raise InvalidRequest(f"{type(message).__name__} does not come from a relay")
            except InvalidRequest as error:
                self._metrics.dropped_frames.inc()
                log.warning("frame dropped", reason=str(error))

    def _accept(self, request: pb.DataRequest, jobs: asyncio.TaskGroup) -> None:
        """Start a dispatch, or reject it; one that runs here already needs neither."""
        if request.job_id in self._slots.running:
            return
        self._slots.used(request.ticker.rpartition(".")[2])
        try:
            job = read_dispatch(request)
            reason = self._slots.take(job.job_id, job.ticker.venue)
        except InvalidRequest as error:
            reason = str(error)
        if reason is None:
            self._jobs[job.job_id] = jobs.create_task(self._work(job))
        else:
            self._metrics.rejected.inc()
            log.warning("job rejected", job_id=request.job_id, reason=reason)
            self._say(pb.WorkReject(job_id=request.job_id, reason=reason))
        self._offer()  # a rejected dispatch has used up an offer too

    async def _work(self, job: Dispatch) -> None:
        completion: Completion | None
        try:
            completion = await self._run_job(job)
        except asyncio.CancelledError:  # only `_drain` cancels jobs, or a failure that ends the process
            completion = Completion(job.job_id, success=False, message="this ingestor is shutting down")
        except Exception as error:  # a fault of ours must not take the other jobs along
            log.exception("job failed", job_id=job.job_id)
            completion = Completion(job.job_id, success=False, message=f"internal error: {type(error).__name__}")
        del self._jobs[job.job_id]
        self._slots.release(job.job_id)
        if completion is not None:
            self._slots.complete(completion)
            self._say(_work_complete(completion))
        self._offer()


def _work_complete(completion: Completion) -> pb.WorkComplete:
    return pb.WorkComplete(
        job_id=completion.job_id, success=completion.success, error_message=completion.message or None
    )


async def _wait_for(monitor: zmq.asyncio.Socket, events: int) -> int:
    """The next event that is one of ``events``."""
    while True:
        event: int = parse_monitor_message(await monitor.recv_multipart())["event"]
        if event & events:
            return event
