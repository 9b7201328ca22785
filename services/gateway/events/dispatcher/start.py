"""What a dispatcher needs: its outbox, for this process alone, its ports, its rules."""

from __future__ import annotations

import asyncio
import gc
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path

from services.common.clock import Clock, SystemClock
from services.common.config import BadSettings
from services.common.model.user_events import Channel
from services.common.storage.durable_sqlite import background_checkpoints
from services.common.storage.process_lock import sole_owner
from services.gateway.events.config import EventsSettings
from services.gateway.events.delivery.contacts_cache import ContactsCache, no_contact
from services.gateway.events.delivery.rules import DeliverySettings
from services.gateway.events.delivery.state_machine import Delivery
from services.gateway.events.dispatcher.dispatcher import Dispatcher, Outside
from services.gateway.events.dispatcher.metrics import DispatcherMetrics
from services.gateway.events.dispatcher.transaction import TransactionProcessor
from services.gateway.events.ingress.containers import ContainersFile
from services.gateway.events.ingress.sockets import open_sockets
from services.gateway.events.model import Contacts, Event, Message
from services.gateway.events.store.outbox import Outbox

_MIDDLE_COLLECTIONS = 1_000
"""Collections of the middle generation for each full one."""


@asynccontextmanager
async def open_dispatcher(
    settings: EventsSettings,
    outside: Outside,
    metrics: DispatcherMetrics,
    *,
    render: Callable[[Event], Message],
    reachable: Callable[[Channel, Contacts], str] = no_contact,
    clock: Clock | None = None,
) -> AsyncIterator[Dispatcher]:
    """The dispatcher of the outbox that ``settings.db`` names, for this process alone, until the block ends.

    ``outside`` is first called when the event loop runs again after the block was entered.

    Args:
        render: How an event reads.
        reachable: Why a channel can't be used with these contacts; empty where it can.

    Raises:
        BadSettings: A file can't be used, or another gateway uses the outbox.
        OSError: An address can't be used.
    """
    assert settings.db is not None
    clock = clock or SystemClock()
    with ExitStack() as closing:
        closing.enter_context(
            sole_owner(settings.db, variable="DEXORDER_EVENTS_DB", owner="gateway", harm="deliver its events")
        )
        containers = _containers(settings)
        outbox = _outbox(settings.db)
        closing.callback(outbox.close)
        closing.enter_context(background_checkpoints(settings.db))
        processor = await asyncio.to_thread(_processor, outbox, settings, metrics, render, reachable, clock)
        ports = closing.enter_context(open_sockets(settings, containers, metrics.dropped))
        dispatcher = Dispatcher(processor, ports, settings.db, containers, outside, clock)
        dispatcher.start()
        try:
            yield dispatcher
        finally:
            await dispatcher.close()


def _containers(settings: EventsSettings) -> ContainersFile:
    try:
        return ContainersFile(settings.containers)
    except (OSError, ValueError) as error:
        raise BadSettings(f"DEXORDER_EVENTS_CONTAINERS: {settings.containers} can't be used: {error}") from error


def _outbox(path: Path) -> Outbox:
    try:
        return Outbox(path)
    except (OSError, ValueError, sqlite3.Error) as error:
        raise BadSettings(f"DEXORDER_EVENTS_DB: {path} can't be used: {error}") from error


def _processor(
    outbox: Outbox,
    settings: EventsSettings,
    metrics: DispatcherMetrics,
    render: Callable[[Event], Message],
    reachable: Callable[[Channel, Contacts], str],
    clock: Clock,
) -> TransactionProcessor:
    people = ContactsCache(outbox.contacts(), outbox.presence(clock.wall_ns()))
    delivery = Delivery(DeliverySettings.of(settings), people, render=render, reachable=reachable)
    collect_old_objects_rarely()
    with collector_paused():
        return TransactionProcessor(outbox, delivery, people, settings, metrics, clock)


@contextmanager
def collector_paused() -> Iterator[None]:
    """Pause the garbage collector for the block, and exempt the objects that the block leaves from later collections.

    Collections during a large build take longer than the build. Reference counting still frees objects without cycles.
    """
    gc.disable()
    try:
        yield
        gc.freeze()
    finally:
        gc.enable()


def collect_old_objects_rarely() -> None:
    """Run full collections a hundred times less often than Python's default; young objects as often as before.

    With hundreds of thousands of long-lived objects, a full collection stops the process for a quarter of a second.
    """
    young, middle, _ = gc.get_threshold()
    gc.set_threshold(young, middle, _MIDDLE_COLLECTIONS)
