"""Connection to the relay's broker, the DEALER side of port 5567.

After a loss the socket is closed and another one, with its own identity, reports everything that the broker
cannot know: free slots, running dispatches, and completions that may not have arrived.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import NamedTuple

import structlog

from dexorder_common.clock import Clock
from dexorder_common.messaging.frames import WorkFrame, decode_work, encode_work
from dexorder_common.model.errors import InvalidRequest
from dexorder_common.model.realtime import RealtimeDispatch
from dexorder_ingestor.broker.dispatches import (
    AnyDispatch,
    StopSignal,
    read_dispatch,
    slot_of,
    used_slot,
    work_complete,
)
from dexorder_ingestor.broker.slots import DispatchEnd, JobKind, JobSlots
from dexorder_ingestor.broker.sockets import BrokerSocket, BrokerSockets, HandshakeRefused, ZmqSockets
from dexorder_ingestor.config import IngestorSettings
from dexorder_ingestor.metrics import IngestorMetrics
from dexorder_protos.dexorder.ingest.v1 import ingest_pb2 as pb

log = structlog.get_logger(__name__)
RunDispatch = Callable[[AnyDispatch, StopSignal, Callable[[], None]], Awaitable[DispatchEnd | None]]
"""Runs a dispatch until it has ended; calls the function once, if at all, when it needs its slot no more."""
_FLUSH_SECONDS = 2.0
_REFUSED_SECONDS = 2.0
_JOB_TYPES = {JobKind.HISTORICAL: pb.HISTORICAL, JobKind.REALTIME: pb.REALTIME}
_SHUTTING_DOWN = "this ingestor is shutting down"


class _ConnectionLost(Exception):
    """The connection to the broker is lost."""


class _Running(NamedTuple):
    """A running dispatch."""

    dispatch: AnyDispatch
    task: asyncio.Task[None]
    stop: StopSignal


class BrokerConnection:
    """Offers slots, runs the dispatches that the broker sends, and reports their completion; see `run`."""

    def __init__(
        self,
        settings: IngestorSettings,
        slots: JobSlots,
        run_dispatch: RunDispatch,
        metrics: IngestorMetrics,
        clock: Clock,
        *,
        on_connected: Callable[[bool], Awaitable[None]],
        sockets: BrokerSockets | None = None,
    ) -> None:
        self._settings = settings
        self._slots = slots
        self._run_dispatch = run_dispatch
        self._metrics = metrics
        self._clock = clock
        self._on_connected = on_connected
        self._sockets = sockets or ZmqSockets(settings)
        self._outgoing: asyncio.Queue[WorkFrame] = asyncio.Queue()
        self._connected = asyncio.Event()
        self._stopped = False
        self._tasks: dict[str, _Running] = {}

    async def run(self, stop: asyncio.Event) -> None:
        """Serve until ``stop`` is set; then offer no slot, drain for ``drain_seconds`` and hand the rest back."""
        with self._sockets:
            async with asyncio.TaskGroup() as group:
                connecting = group.create_task(self._stay_connected(group))
                await stop.wait()
                self._slots.stop()
                await self._drain()
                await self._flush()
                self._stopped = True  # a connection lost at this moment would hide the cancellation
                connecting.cancel()

    async def cancel(self, request_id: str) -> int:
        """Stop the dispatches of a request; return their number when they have ended."""
        found = [running for running in self._tasks.values() if running.dispatch.request_id == request_id]
        message = f"request {request_id} is cancelled"
        for running in found:
            running.task.cancel(message)
        if found:
            await asyncio.wait([running.task for running in found])
        return len(found)

    def offer(self) -> None:
        """Offer the slots that may be offered now."""
        if self._connected.is_set():
            self._queue_offers()

    async def _drain(self) -> None:
        tasks = {running.task for running in self._tasks.values()}
        for running in self._tasks.values():
            running.stop.set(success=False, message=_SHUTTING_DOWN)
        if tasks:
            log.info("waiting for running dispatches", dispatches=len(tasks), seconds=self._settings.drain_seconds)
            _, late = await asyncio.wait(tasks, timeout=self._settings.drain_seconds)
            for task in late:
                task.cancel()
            if late:
                await asyncio.wait(late)

    async def _flush(self) -> None:
        """Wait briefly until the last messages are sent."""
        if self._connected.is_set():
            try:
                async with asyncio.timeout(_FLUSH_SECONDS):
                    await self._outgoing.join()
            except TimeoutError:
                log.warning("the broker did not take the last messages", messages=self._outgoing.qsize())

    async def _stay_connected(self, dispatches: asyncio.TaskGroup) -> None:
        while not self._stopped:
            is_refused = False
            try:
                async with self._sockets.open() as socket, asyncio.TaskGroup() as group:
                    await socket.connected()
                    group.create_task(self._watch(socket))
                    self._metrics.connections.inc()
                    log.info("connected to the broker", broker=self._settings.broker)
                    self._send_state()
                    self._connected.set()
                    await self._on_connected(True)
                    group.create_task(self._send(socket))
                    group.create_task(self._heartbeat())
                    group.create_task(self._receive(socket, dispatches))
            except* _ConnectionLost:
                log.warning("connection to the broker lost", broker=self._settings.broker)
            except* HandshakeRefused as refused:
                advice = str(refused.exceptions[0])
                log.error("handshake with the broker failed", check=advice, broker=self._settings.broker)
                is_refused = True
            if is_refused:  # not in the block above, which would turn a cancellation into an exception group
                await asyncio.sleep(_REFUSED_SECONDS)
            self._connected.clear()
            await self._on_connected(False)

    async def _watch(self, socket: BrokerSocket) -> None:
        await socket.lost()
        raise _ConnectionLost

    def _send_state(self) -> None:
        """Queue everything that the broker has to know on a new connection."""
        while not self._outgoing.empty():  # meant for the previous connection; the current state is queued below
            self._outgoing.get_nowait()
            self._outgoing.task_done()
        for completion in self._slots.unsettled(now_ns=self._clock.monotonic_ns()):
            self._outgoing.put_nowait(work_complete(completion))
        self._queue_heartbeats()
        self._slots.forget_offers()
        self._queue_offers()

    async def _send(self, socket: BrokerSocket) -> None:
        while True:
            message = await self._outgoing.get()
            try:
                await socket.send(encode_work(message))
            finally:
                self._outgoing.task_done()
            if isinstance(message, pb.WorkComplete):
                self._slots.note_sent(message.job_id, now_ns=self._clock.monotonic_ns())

    async def _heartbeat(self) -> None:
        while True:
            await asyncio.sleep(self._settings.heartbeat_seconds)
            self._queue_heartbeats()

    def _queue_heartbeats(self) -> None:
        for dispatch_id in self._slots.running:
            self._outgoing.put_nowait(pb.WorkHeartbeat(job_id=dispatch_id))

    def _queue_offers(self) -> None:
        for venue, kind in self._slots.take_offers():
            self._outgoing.put_nowait(pb.WorkerReady(exchanges=[venue], job_type=_JOB_TYPES[kind]))
        for slot in self._slots.types:
            labels = slot.venue, slot.kind.value
            self._metrics.free_slots.labels(*labels).set(self._slots.free(slot))
            self._metrics.busy_slots.labels(*labels).set(self._slots.busy(slot))

    async def _receive(self, socket: BrokerSocket, dispatches: asyncio.TaskGroup) -> None:
        while True:
            try:
                message = decode_work(await socket.receive())
                if isinstance(message, pb.DataRequest):
                    self._accept(message, dispatches)
                elif isinstance(message, pb.WorkStop):
                    self._stop(message.job_id)
                else:
                    raise InvalidRequest(f"{type(message).__name__} is not a message of the relay")
            except InvalidRequest as error:
                self._metrics.dropped_frames.inc()
                log.warning("frame dropped", reason=str(error))

    def _accept(self, request: pb.DataRequest, dispatches: asyncio.TaskGroup) -> None:
        """Start a dispatch or reject it; ignore one that runs here already."""
        if request.job_id in self._slots.running:
            return
        self._slots.use_offer(used_slot(request))
        try:
            dispatch = read_dispatch(request)
            reason = self._slots.take(dispatch.dispatch_id, slot_of(dispatch))
        except InvalidRequest as error:
            reason = str(error)
        if reason is None:
            stop = StopSignal()
            self._tasks[dispatch.dispatch_id] = _Running(
                dispatch, dispatches.create_task(self._work(dispatch, stop)), stop
            )
        else:
            self._metrics.rejected.inc()
            log.warning("dispatch rejected", dispatch_id=request.job_id, reason=reason)
            self._outgoing.put_nowait(pb.WorkReject(job_id=request.job_id, reason=reason))
        self._queue_offers()  # a rejected dispatch has used an offer too

    def _stop(self, dispatch_id: str) -> None:
        running = self._tasks.get(dispatch_id)
        if running is None or not isinstance(running.dispatch, RealtimeDispatch):
            log.info("WorkStop ignored: no such realtime job runs here", dispatch_id=dispatch_id)
        else:
            running.stop.set(success=True)

    def _free_slot(self, dispatch_id: str) -> None:
        self._slots.fetched(dispatch_id)
        self._queue_offers()

    async def _work(self, dispatch: AnyDispatch, stop: StopSignal) -> None:
        try:
            completion = await self._run_dispatch(dispatch, stop, partial(self._free_slot, dispatch.dispatch_id))
        except asyncio.CancelledError as error:  # by `cancel`, by `_drain`, or by a failure that ends the process
            completion = DispatchEnd(dispatch.dispatch_id, success=False, message=str(error) or _SHUTTING_DOWN)
        except Exception as error:  # a fault in one dispatch must not end the others
            log.exception("dispatch failed", dispatch_id=dispatch.dispatch_id)
            completion = DispatchEnd(
                dispatch.dispatch_id, success=False, message=f"internal error: {type(error).__name__}"
            )
        del self._tasks[dispatch.dispatch_id]
        self._slots.release(dispatch.dispatch_id)
        if completion is not None:
            self._slots.complete(completion)
            self._outgoing.put_nowait(work_complete(completion))
        self._queue_offers()
