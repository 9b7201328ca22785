"""Parts that the engine's components share, and the order in which every one of them changes the state.

A kill at any point loses nothing, because each change is made in this order:

1. the state in memory changes, without an await in between;
2. the same change is handed to the store, which keeps the order of changes;
3. only when it is on disk, a caller is answered, a dispatch is sent or an outcome is announced.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from random import Random, SystemRandom
from typing import Any

from dexorder_common.clock import Clock
from dexorder_common.model.errors import Unavailable
from dexorder_common.model.history import HistoryRequest, Outcome
from dexorder_common.model.time_range import TimeRange
from dexorder_relay.access import CallerQuotas
from dexorder_relay.config import RelaySettings
from dexorder_relay.fair_semaphore import FairSemaphore
from dexorder_relay.metrics import RelayMetrics
from dexorder_relay.reading.table_reader import TableReader
from dexorder_relay.state.history import HistoryState
from dexorder_relay.state.request import LiveRequest
from dexorder_relay.store.database import Store

PARALLEL_TABLE_READS = 2


class KeyedEvent(asyncio.Event):
    """An event that also keeps the keys of the signals that have set it."""

    def __init__(self) -> None:
        super().__init__()
        self._keys: dict[str, None] = {}

    def add(self, key: str) -> None:
        """Set the event for a key."""
        self._keys[key] = None
        self.set()

    def take(self) -> list[str]:
        """Return the keys since the last call, each once."""
        keys = list(self._keys)
        self._keys.clear()
        return keys


class Signals:
    """Wake-ups for streams, by key. A signal between two waits is kept; several count as one.

    A signal carries no data: notifications are in the store, and a stream reads on from its cursor when it is woken.
    """

    def __init__(self) -> None:
        self._listeners: defaultdict[str, set[asyncio.Event]] = defaultdict(set)
        self._closed = False

    @contextmanager
    def listen(self, key: str, event: asyncio.Event | None = None) -> Iterator[asyncio.Event]:
        """Yield an event, or this one, that ``notify(key)`` sets. Clear it before looking at the change."""
        event = event or asyncio.Event()
        self._listeners[key].add(event)
        try:
            yield event
        finally:
            self._listeners[key].discard(event)
            if not self._listeners[key]:
                del self._listeners[key]

    @contextmanager
    def listen_each(self, keys: Iterable[str]) -> Iterator[KeyedEvent]:
        """Yield an event that keeps which of these keys are notified."""
        event, listened = KeyedEvent(), list(keys)
        with ExitStack() as stack:
            for key in listened:
                stack.enter_context(self.listen(key, event))
            yield event

    def notify(self, key: str) -> None:
        """Wake every listener of a key."""
        for event in self._listeners.get(key, ()):
            if isinstance(event, KeyedEvent):
                event.add(key)
            else:
                event.set()

    def listened(self, prefix: str) -> list[str]:
        """Return the topics that start with ``prefix`` and have a listener."""
        keys = (key.removeprefix("topic:") for key in self._listeners if key.startswith("topic:"))
        return [key for key in keys if key.startswith(prefix)]

    async def wait(self, event: asyncio.Event) -> None:
        """Wait for the event and clear it; Unavailable if the relay is stopping, for the stream to resume later."""
        if not self._closed:
            await event.wait()
        if self._closed:
            raise Unavailable("the relay is stopping; resume from the last cursor")
        event.clear()

    def close(self) -> None:
        """End every stream, present and future."""
        self._closed = True
        for listeners in self._listeners.values():
            for event in listeners:
                event.set()


async def _no_look(_: LiveRequest) -> None:
    return


async def _no_change(_: HistoryRequest) -> list[TimeRange]:
    return []


@dataclass
class Context:
    """Belongs to one event loop.

    Attributes:
        venues: Exchanges with tickers that are served.
        random: Source of ids and of waits.
        wake: Set when a queued job and a free slot may be available at the same time.
        table_reads: Turns of clients at reading tables; few at a time, so that threads are left for the outcomes of
            requests.
        tasks: The engine's task group while it runs.
        stop_work: Tells ingestors that the work of a request is not needed any more.
        changed_values: Returns the candles with values that a request of the relay has changed.
        request_ends: Called when a request has its outcome.
        look_again: Asks the exchange about the provisional ranges of a request before its outcome is worked out.
    """

    settings: RelaySettings
    venues: frozenset[str]
    state: HistoryState
    store: Store
    reader: TableReader
    clock: Clock
    metrics: RelayMetrics
    random: Random = field(default_factory=SystemRandom)
    quotas: CallerQuotas = field(init=False)
    signals: Signals = field(default_factory=Signals)
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    table_reads: FairSemaphore = field(default_factory=lambda: FairSemaphore(PARALLEL_TABLE_READS))
    tasks: asyncio.TaskGroup | None = None
    stop_work: Callable[[HistoryRequest], None] = lambda request: None
    look_again: Callable[[LiveRequest], Awaitable[None]] = _no_look
    changed_values: Callable[[HistoryRequest], Awaitable[list[TimeRange]]] = _no_change
    request_ends: Callable[[LiveRequest, Outcome], None] = lambda live, outcome: None

    def __post_init__(self) -> None:
        self.quotas = CallerQuotas(self.settings.limits(), lambda *labels: self.metrics.refused.labels(*labels).inc())

    def new_id(self, prefix: str) -> str:
        """Return a new, unique id."""
        return f"{prefix}{self.random.getrandbits(128):032x}"

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine in a task of the engine, which must be running."""
        assert self.tasks is not None
        self.tasks.create_task(work)

    def changed(self, request_ids: Iterable[str]) -> None:
        """Wake the streams that watch these requests."""
        for request_id in request_ids:
            self.signals.notify(f"request:{request_id}")
