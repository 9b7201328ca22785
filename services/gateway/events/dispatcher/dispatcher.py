"""Dispatcher: takes events of containers, stores them in the outbox, and hands out what follows from each transaction.

One thread owns the containers' sockets, the outbox and the delivery rules. Its cycle: wait; take some messages of each
socket and all calls from the event loop; decide; commit everything in one transaction; then send acks, and hand
provider calls and session events to the event loop. One fsync serves many events, and nothing is sent before it is on
disk. A failed write leaves memory ahead of the disk, so it is fatal: ``Dispatcher.failed`` is set and nothing follows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

import structlog

from services.common.clock import Clock
from services.common.model.errors import Unavailable
from services.common.model.user_events import Channel
from services.common.rpc.streams import retrieved
from services.gateway.events.delivery.changes import SendRequest, SessionEvent
from services.gateway.events.dispatcher.thread import DispatcherThread
from services.gateway.events.dispatcher.transaction import TransactionProcessor
from services.gateway.events.dispatcher.unit_of_work import AfterCommit
from services.gateway.events.ingress.acks import AckCallback
from services.gateway.events.ingress.containers import Container, ContainersFile
from services.gateway.events.ingress.sockets import EventSockets
from services.gateway.events.model import Contacts, EventKey, Result
from services.gateway.events.store.event_log import EventLog
from services.gateway.events.store.records import Page, Query, Record, Replay, ReplayBatch, TransientEvent

log = structlog.get_logger(__name__)
T = TypeVar("T")


class Outside(Protocol):
    """What is done in the event loop; called there, with all that came of a turn."""

    def send(self, sends: Sequence[SendRequest]) -> None:
        """Try channels; each result goes to `Dispatcher.finished`."""

    def show(self, shows: Sequence[SessionEvent]) -> None:
        """Put events before sessions."""

    def inform(self, informed: Sequence[TransientEvent]) -> None:
        """Likewise those that are not kept."""


class Dispatcher:
    """The event loop's side; all of it is called there, and done in the order of the calls. See `open_dispatcher`.

    Attributes:
        failed: Gets the error that ended the dispatcher; never done otherwise.
        containers: Who may publish.
        sub_address, router_address: Where containers connect to.
    """

    def __init__(
        self,
        processor: TransactionProcessor,
        ports: EventSockets,
        path: Path,
        containers: ContainersFile,
        outside: Outside,
        clock: Clock,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self.failed: asyncio.Future[None] = self._loop.create_future()
        self.failed.add_done_callback(retrieved)
        self.containers = containers
        self.sub_address = ports.sub_address
        self.router_address = ports.router_address
        self._epoch = processor.epoch
        self._log = EventLog(path)
        self._outside = outside
        self._waiting: set[asyncio.Future[Any]] = set()
        self._closed = False
        self._thread = DispatcherThread(processor, ports, clock, self._hand_over, self._ended)

    # ---- events

    def publish(self, container: Container, body: bytes, answer: AckCallback) -> None:
        """Accept a UserEvent; ``answer`` gets its state and, unless that was final, once more when it is.

        Raises:
            Unavailable: The dispatcher has ended. Those who wait for an answer then hear no more.
        """
        self._ask(lambda processor: processor.take([(container, body, answer)]))

    def finished(self, key: EventKey, number: int, result: Result) -> None:
        """What came of a `SendOut`. After the end it is lost, and the channel is tried again after a restart."""
        if not self._closed:
            self._thread.ask(lambda processor: processor.finished(key, number, result))

    async def record(self, key: EventKey) -> Record | None:
        """What became of an event; None for one that is not kept."""
        return await asyncio.to_thread(self._log.record, key)

    async def records(self, query: Query) -> Page:
        """What became of many, newest first."""
        return await asyncio.to_thread(self._log.page, query)

    # ---- sessions

    def session_opened(self, user_id: str) -> None:
        """One more session of a user is open; from now on what is for them is shown."""
        self._ask(lambda processor: processor.session_opened(user_id))

    def session_closed(self, user_id: str) -> None:
        """One less."""
        if not self._closed:
            self._thread.ask(lambda processor: processor.session_closed(user_id))

    def acked(self, user_id: str, epoch: str, sequence: int, *, seen: bool) -> asyncio.Future[None]:
        """A session has an event, or its user has seen it; done when that is on disk.

        The future raises InvalidRequest for another epoch, Unavailable when the dispatcher ends.
        """
        return self._find(lambda processor: processor.acked(user_id, epoch, sequence, seen=seen))

    async def replay(self, user_id: str, cursor: tuple[str, int] | None) -> Replay:
        """What a session has to be shown before what is new; all up to its cursor was received.

        Args:
            cursor: Epoch and sequence; None for what still waits.
        """
        newest, reset = await self._find(lambda processor: processor.resume(user_id, cursor))
        after = 0 if cursor is None or reset else cursor[1]
        waiting_to = newest if cursor is None else 0
        events, more = await self.replay_more(user_id, after, waiting_to)
        place = newest if cursor is None or reset else after
        return Replay(self._epoch, place, reset, events, more, waiting_to)

    async def replay_more(self, user_id: str, after: int, waiting_to: int) -> ReplayBatch:
        """What comes after a place in the log of a user's sessions, some of it.

        Args:
            waiting_to: Up to this place only what still waits; behind it, all.
        """
        return await asyncio.to_thread(self._log.replay_batch, user_id, after, waiting_to)

    # ---- users

    def contacts(self, user_id: str) -> asyncio.Future[Contacts]:
        """How a user can be reached."""
        return self._find(lambda processor: processor.contacts(user_id))

    def set_contacts(self, user_id: str, contacts: Contacts) -> asyncio.Future[None]:
        """Replace that; done when it is on disk."""
        return self._find(lambda processor: processor.set_contacts(user_id, contacts))

    def reached(self, user_id: str, channel: Channel, until_ns: int) -> None:
        """A user is active on a channel until then, by the wall clock."""
        self._ask(lambda processor: processor.reached(user_id, channel, until_ns))

    # ---- start and stop

    def start(self) -> None:
        """Take up the work."""
        self._thread.start()

    def stop_taking(self) -> None:
        """Take nothing more of containers; what was taken goes on. They keep what was not answered."""
        self._thread.stop_taking()

    async def close(self) -> None:
        """Do what was asked, answer it, and end."""
        if not self._closed:
            self._closed = True
            self._thread.stop()
        await asyncio.to_thread(self._thread.join)

    def _ask(self, what: Callable[[TransactionProcessor], object]) -> None:
        if self._closed:
            raise Unavailable("the gateway takes no events now")
        self._thread.ask(what)

    def _find(self, find: Callable[[TransactionProcessor], T]) -> asyncio.Future[T]:
        future: asyncio.Future[T] = self._loop.create_future()
        self._waiting.add(future)
        future.add_done_callback(self._waiting.discard)
        future.add_done_callback(retrieved)
        try:
            self._ask(lambda processor: processor.answer(future, lambda: find(processor)))
        except Unavailable as error:
            future.set_exception(error)
        return future

    # ---- from the thread

    def _hand_over(self, after_commit: AfterCommit) -> None:
        self._loop.call_soon_threadsafe(self._do, after_commit)

    def _do(self, after_commit: AfterCommit) -> None:
        self._thread.taken_up(len(after_commit.informed))
        for future, found in after_commit.done:
            if future.done():  # cancelled
                continue
            if isinstance(found, Exception):
                future.set_exception(found)
            else:
                future.set_result(found)
        for answer, ack in after_commit.acks:
            assert not isinstance(answer, bytes)
            answer(ack)
        if after_commit.informed:
            self._outside.inform(after_commit.informed)
        if after_commit.shows:
            self._outside.show(after_commit.shows)
        if after_commit.sends:
            self._outside.send(after_commit.sends)

    def _ended(self, failure: Exception | None) -> None:
        self._loop.call_soon_threadsafe(self._end, failure)

    def _end(self, failure: Exception | None) -> None:
        self._closed = True
        for future in list(self._waiting):
            if not future.done():
                future.set_exception(Unavailable("the gateway takes no events now"))
        if failure and not self.failed.done():
            log.error("the dispatcher has ended", error=repr(failure))
            self.failed.set_exception(failure)
