"""Dispatcher: takes events of containers, stores them in the outbox, and hands out the effects of each transaction.

One thread owns the containers' sockets, the outbox and the delivery rules. Its cycle: wait; take some messages of each
socket and all calls from the event loop; decide; commit everything in one transaction; then send acks, and hand
provider calls and session events to the event loop. One fsync serves many events, and the disk comes before every
effect. A write to a full disk is repeated until it succeeds; until then answers wait, calls are refused, and
``EventDispatcher.full`` is set. Any other failed write leaves memory ahead of the disk, so it is fatal:
``EventDispatcher.failed`` is set, and the thread ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import structlog

from dexorder_common.clock import Clock
from dexorder_common.model.cursor import Cursor
from dexorder_common.model.errors import Exhausted, SuiteError, Unavailable
from dexorder_common.model.user_events import Channel
from dexorder_common.rpc.streams import retrieved
from dexorder_gateway.events.dispatcher.cycle import ContainerSockets, DispatcherCycle
from dexorder_gateway.events.dispatcher.port import DispatcherOutputs
from dexorder_gateway.events.dispatcher.receiver import read_copies
from dexorder_gateway.events.dispatcher.thread import DispatcherThread
from dexorder_gateway.events.dispatcher.transaction import TransactionProcessor
from dexorder_gateway.events.dispatcher.unit_of_work import AfterCommit
from dexorder_gateway.events.ingress.containers import Container, ContainersFile
from dexorder_gateway.events.model import AckCallback, Contacts, EventKey, Result
from dexorder_gateway.events.store.event_log import EventLog, EventPage, EventQuery, EventRecord, Replay, ReplayBatch

log = structlog.get_logger(__name__)
T = TypeVar("T")
_STOPPED = "the gateway takes no events now"
NO_SPACE = "the disk of the gateway's events is full; repeat the call when it has space"
RETRY_SECONDS = 5.0


class CycleRunner(Protocol):
    """`DispatcherThread`, or another runner of the cycle."""

    def start(self) -> None:
        """Start to run the cycle."""

    def stop(self) -> None:
        """End after a transaction with all calls made until now."""

    def join(self) -> None:
        """Wait for the end."""


class EventDispatcher:
    """`DispatcherPort`: the event loop's side of the dispatcher, called only there. See `start`.

    Args:
        runner: Returns the runner of the cycle, which calls the argument at the end, with the error that ended it, if
            any.

    Attributes:
        failed: Gets the error that ended the dispatcher; never done otherwise.
        full: Set while the disk is full; ``space`` is the opposite.
        outputs: To be set before the event loop runs again after the start.
    """

    outputs: DispatcherOutputs

    def __init__(
        self,
        processor: TransactionProcessor,
        sockets: ContainerSockets,
        event_log: EventLog,
        containers: ContainersFile,
        clock: Clock,
        runner: Callable[[DispatcherCycle, Callable[[Exception | None], object]], CycleRunner] = DispatcherThread,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self.failed: asyncio.Future[None] = self._loop.create_future()
        self.failed.add_done_callback(retrieved)
        self.containers = containers
        self.sub_address = sockets.sub_address
        self.router_address = sockets.router_address
        self._epoch = processor.epoch
        self._log = event_log
        self.full, self.space = asyncio.Event(), asyncio.Event()
        self.space.set()
        self.on_full: list[Callable[[SuiteError], object]] = []
        self._disk = processor.space
        self._waiting: set[asyncio.Future[Any]] = set()
        self._closed = False
        in_loop = self._loop.call_soon_threadsafe
        processor.space.on_change = lambda is_full: in_loop(self._fill, is_full)
        self._cycle = DispatcherCycle(processor, sockets, clock, lambda effects: in_loop(self._carry_out, effects))
        self._runner = runner(self._cycle, lambda failure: in_loop(self._end, failure))

    def publish(self, container: Container, body: bytes, answer: AckCallback) -> None:
        """See `DispatcherPort`."""
        self._check_space()
        self._call(lambda processor: processor.receiver.take(read_copies([(container, body, answer)])))

    def finished(self, key: EventKey, number: int, result: Result) -> None:
        """Handle the result of a `SendRequest`. After the end it is lost: a restart tries the channel again."""
        if not self._closed:
            self._cycle.call(lambda processor: processor.finished(key, number, result))

    async def record(self, key: EventKey) -> EventRecord | None:
        """See `DispatcherPort`."""
        return await asyncio.to_thread(self._log.record, key)

    async def records(self, query: EventQuery) -> EventPage:
        """See `DispatcherPort`."""
        return await asyncio.to_thread(self._log.page, query)

    def session_opened(self, user_id: str) -> None:
        """See `DispatcherPort`."""
        self._call(lambda processor: processor.session_opened(user_id))

    def session_closed(self, user_id: str) -> None:
        """See `DispatcherPort`."""
        if not self._closed:
            self._cycle.call(lambda processor: processor.session_closed(user_id))

    def acked(self, user_id: str, epoch: str, sequence: int, *, seen: bool) -> asyncio.Future[None]:
        """See `DispatcherPort`."""
        return self._ask(lambda processor: processor.acked(user_id, epoch, sequence, seen=seen))

    async def replay(self, user_id: str, cursor: Cursor | None) -> Replay:
        """See `DispatcherPort`."""
        newest, reset = await self._ask(lambda processor: processor.resume(user_id, cursor))
        return await asyncio.to_thread(self._log.replay, self._epoch, user_id, cursor, newest, reset=reset)

    async def replay_more(self, user_id: str, after: int, waiting_to: int) -> ReplayBatch:
        """See `DispatcherPort`."""
        return await asyncio.to_thread(self._log.replay_batch, user_id, after, waiting_to)

    def contacts(self, user_id: str) -> asyncio.Future[Contacts]:
        """See `DispatcherPort`."""
        return self._ask(lambda processor: processor.contacts(user_id))

    def set_contacts(self, user_id: str, contacts: Contacts) -> asyncio.Future[None]:
        """See `DispatcherPort`."""
        return self._ask(lambda processor: processor.set_contacts(user_id, contacts))

    def user_active(self, user_id: str, channel: Channel, until_ns: int) -> None:
        """See `DispatcherPort`."""
        self._check_space()
        self._call(lambda processor: processor.user_active(user_id, channel, until_ns))

    def is_healthy(self) -> bool:
        """Return whether events can be taken."""
        return not self.failed.done() and not self.full.is_set()

    def start(self) -> None:
        """Start the thread."""
        self._runner.start()

    def stop_taking(self) -> None:
        """Take no more events of containers, which keep unacked ones; continue with the events taken so far."""
        self._cycle.stop_taking()

    async def close(self) -> None:
        """Finish and answer all calls, then end the thread."""
        if not self._closed:
            self._closed = True
            self._disk.give_up()
            self._runner.stop()
        await asyncio.to_thread(self._runner.join)

    def _call(self, call: Callable[[TransactionProcessor], object]) -> None:
        if self._closed:
            raise Unavailable(_STOPPED)
        self._cycle.call(call)

    def _ask(self, find: Callable[[TransactionProcessor], T]) -> asyncio.Future[T]:
        future: asyncio.Future[T] = self._loop.create_future()
        self._waiting.add(future)
        future.add_done_callback(self._waiting.discard)
        future.add_done_callback(retrieved)
        try:
            self._check_space()
            self._call(lambda processor: processor.resolve(future, lambda: find(processor)))
        except SuiteError as error:
            future.set_exception(error)
        return future

    def _check_space(self) -> None:
        """Raise Exhausted while the disk is full."""
        if self.full.is_set():
            raise Exhausted(NO_SPACE, retry_seconds=RETRY_SECONDS)

    def _fill(self, is_full: bool) -> None:
        """Note whether the disk is full; calls that wait then are refused, though they take effect later."""
        (self.full if is_full else self.space).set()
        (self.space if is_full else self.full).clear()
        if is_full:
            refusal = Exhausted(NO_SPACE, retry_seconds=RETRY_SECONDS)
            for future in list(self._waiting):
                if not future.done():
                    future.set_exception(refusal)
            for refuse in self.on_full:
                refuse(refusal)

    def _carry_out(self, effects: AfterCommit) -> None:
        self._cycle.transient_taken(len(effects.transient))
        for future, result in effects.resolved:
            if future.done():  # cancelled
                continue
            if isinstance(result, Exception):
                future.set_exception(result)
            else:
                future.set_result(result)
        for answer, ack in effects.acks:
            assert not isinstance(answer, bytes)
            answer(ack)
        if effects.transient:
            self.outputs.inform(effects.transient)
        if effects.session_events:
            self.outputs.show(effects.session_events)
        if effects.sends:
            self.outputs.send(effects.sends)

    def _end(self, failure: Exception | None) -> None:
        self._closed = True
        for future in list(self._waiting):
            if not future.done():
                future.set_exception(Unavailable(_STOPPED))
        if failure and not self.failed.done():
            log.error("event dispatcher failed", error=repr(failure))
            self.failed.set_exception(failure)
