"""Start of the dispatcher: its outbox, which only this process may use, its sockets and its rules."""

from __future__ import annotations

import asyncio
import gc
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path

from dexorder_common.clock import Clock, SystemClock
from dexorder_common.config import BadSettings
from dexorder_common.model.user_events import Channel
from dexorder_common.storage.durable_sqlite import background_checkpoints
from dexorder_common.storage.process_lock import sole_owner
from dexorder_common.storage.state_checks import restore_hint
from dexorder_gateway.events.channels.registry import OWN_LIMITS
from dexorder_gateway.events.config import EventsSettings
from dexorder_gateway.events.delivery.channel_policy import SECOND_NS, ContactsCache, DeliverySettings
from dexorder_gateway.events.delivery.delivery import EventDelivery
from dexorder_gateway.events.dispatcher.dispatcher import EventDispatcher
from dexorder_gateway.events.dispatcher.metrics import DispatcherMetrics
from dexorder_gateway.events.dispatcher.transaction import TransactionProcessor
from dexorder_gateway.events.ingress.containers import ContainersFile
from dexorder_gateway.events.ingress.sockets import open_sockets
from dexorder_gateway.events.model import Contacts, Event, EventMessage, no_contact
from dexorder_gateway.events.store.event_log import EventLog
from dexorder_gateway.events.store.outbox import EventOutbox, open_outbox

_MIDDLE_COLLECTIONS = 1_000
"""Collections of the middle generation for each full one."""


@asynccontextmanager
async def open_dispatcher(
    settings: EventsSettings,
    metrics: DispatcherMetrics,
    *,
    render: Callable[[Event], EventMessage],
    reachable: Callable[[Channel, Contacts], str] = no_contact,
    admits: Callable[[str], bool] | None = None,
) -> AsyncIterator[EventDispatcher]:
    """Run the dispatcher of the outbox that ``settings.db`` names, in a context; the caller sets its ``outputs``.

    ``admits`` decides from which IP addresses containers may connect without CURVE; None: from any.

    Raises:
        BadSettings: A file can't be used, or another gateway uses the outbox.
        OSError: An address can't be used.
    """
    assert settings.db is not None
    clock = SystemClock()

    def read_outbox(outbox: EventOutbox) -> TransactionProcessor:
        collect_old_objects_rarely()
        with collector_paused():
            return processor_of(outbox, settings, metrics, clock, render=render, reachable=reachable)

    with ExitStack() as closing:
        closing.enter_context(
            sole_owner(settings.db, variable="DEXORDER_EVENTS_DB", owner="gateway", harm="deliver its events")
        )
        with _naming("DEXORDER_EVENTS_CONTAINERS", settings.containers):
            containers = ContainersFile(settings.containers)
        with _naming("DEXORDER_EVENTS_DB", settings.db):
            outbox = open_outbox(settings.db)
        closing.callback(outbox.close)
        closing.enter_context(background_checkpoints(settings.db, outbox.turn))
        processor = await asyncio.to_thread(read_outbox, outbox)
        sockets = closing.enter_context(open_sockets(settings, containers, metrics.dropped, admits))
        dispatcher = EventDispatcher(processor, sockets, EventLog(settings.db), containers, clock)
        dispatcher.start()
        try:
            yield dispatcher
        finally:
            await dispatcher.close()


def processor_of(
    outbox: EventOutbox,
    settings: EventsSettings,
    metrics: DispatcherMetrics,
    clock: Clock,
    *,
    render: Callable[[Event], EventMessage],
    reachable: Callable[[Channel, Contacts], str] = no_contact,
) -> TransactionProcessor:
    """Return a processor that continues with the content of an outbox."""
    contacts = ContactsCache(outbox.contacts(), outbox.presence(clock.wall_ns()))
    delivery = EventDelivery(delivery_settings(settings), contacts, render=render, reachable=reachable)
    return TransactionProcessor(outbox, delivery, contacts, settings, metrics, clock)


@contextmanager
def _naming(variable: str, path: Path | None) -> Iterator[None]:
    """Turn an error of the block, which opens a file, into one that names its variable."""
    try:
        yield
    except (OSError, ValueError, sqlite3.Error) as error:
        hint = f"; {restore_hint(path)}" if path and isinstance(error, sqlite3.DatabaseError) else ""
        raise BadSettings(f"{variable}: {path} can't be used: {error}{hint}") from error


def delivery_settings(settings: EventsSettings) -> DeliverySettings:
    """Return the settings of the delivery rules."""
    ttl_ns = int(settings.normal_ttl_seconds * SECOND_NS)
    return DeliverySettings(
        normal_ttl_ns=ttl_ns,
        session_ack_ns=int(settings.session_ack_seconds * SECOND_NS),
        channel_attempts=settings.channel_attempts,
        retry_base_ns=int(settings.retry_base_seconds * SECOND_NS),
        retry_max_ns=int(settings.retry_max_seconds * SECOND_NS),
        digest_ns=min(int(settings.digest_seconds * SECOND_NS), ttl_ns // 2),
        channel_order=tuple(Channel[name.strip()] for name in settings.channel_order.split(",") if name.strip()),
        max_concurrent_sends=settings.max_concurrent_sends,
        own_limits=OWN_LIMITS,
    )


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
