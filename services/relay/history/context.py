"""What the rooms of the engine share. All of them keep the order of every change, so that a kill at any point loses
nothing:

1. the board changes in memory, without an await in between;
2. the same change is given to the store, which keeps the order;
3. only when it is on disk is a caller answered, a dispatch sent, or an end announced.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from dataclasses import dataclass, field
from typing import Any

from services.common.clock import Clock
from services.relay.access import Quotas
from services.relay.config import RelaySettings
from services.relay.history.state import HistoryState
from services.relay.metrics import RelayMetrics
from services.relay.notifications import Signals
from services.relay.store.database import Store


@dataclass
class Context:
    """Runs in one event loop.

    Attributes:
        tasks: The engine's, while it runs.
        wake: Set when a queued job and a free slot may have come together.
    """

    settings: RelaySettings
    state: HistoryState
    store: Store
    quotas: Quotas
    clock: Clock
    metrics: RelayMetrics
    signals: Signals = field(default_factory=Signals)
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    tasks: asyncio.TaskGroup | None = None

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Run it in a task of the engine's, which must be running."""
        assert self.tasks is not None
        self.tasks.create_task(work)

    def changed(self, request_ids: Iterable[str]) -> None:
        """Tell those who watch these requests."""
        for request_id in request_ids:
            self.signals.notify(f"request:{request_id}")
