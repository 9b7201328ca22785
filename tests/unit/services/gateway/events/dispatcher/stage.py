"""Transaction processor on a file, with a manual clock; the dispatcher's thread without its sockets."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry

from dexorder_common.clock import ManualClock
from dexorder_gateway.events.config import EventsSettings
from dexorder_gateway.events.dispatcher.metrics import DispatcherMetrics
from dexorder_gateway.events.dispatcher.receiver import Copy, read_copies
from dexorder_gateway.events.dispatcher.start import processor_of
from dexorder_gateway.events.dispatcher.transaction import TransactionProcessor
from dexorder_gateway.events.dispatcher.unit_of_work import AfterCommit
from dexorder_gateway.events.ingress.containers import LOCAL, Container
from dexorder_gateway.events.model import Ack
from dexorder_gateway.events.store.outbox import open_outbox
from tests.unit.services.gateway.events.samples import render

A = b"connection-a"
SECOND = 1_000_000_000
START = ManualClock().wall_ns() // 1_000
"""Positions in logs are after it."""


def take(*copies: Copy) -> Callable[[TransactionProcessor], None]:
    return lambda processor: processor.receiver.take(read_copies(copies))


class Stage:
    """Transaction processor on a file; `again` is a restart."""

    def __init__(self, path: Path, **settings: Any) -> None:
        self.settings = EventsSettings(db=path, **settings)
        self.clock = ManualClock()
        self.registry = CollectorRegistry()
        self.metrics = DispatcherMetrics(self.registry)
        self._open()

    def _open(self) -> None:
        assert self.settings.db is not None
        self.outbox = open_outbox(self.settings.db)
        self.processor = processor_of(self.outbox, self.settings, self.metrics, self.clock, render=render)

    def again(self) -> AfterCommit:
        self.outbox.close()
        self._open()
        return self.work()

    def work(self, *what: Callable[[TransactionProcessor], object]) -> AfterCommit:
        self.processor.begin()
        for each in what:
            each(self.processor)
        self.processor.due()
        return self.processor.commit()

    def take(self, *bodies: bytes, reply_to: bytes = A, container: Container = LOCAL) -> list[tuple[Any, Ack]]:
        return self.work(take(*((container, each, reply_to) for each in bodies))).acks

    def value(self, name: str, **labels: str) -> float:
        return self.registry.get_sample_value(f"dexorder_gateway_event{name}", labels) or 0.0

    def rows(self) -> int:
        assert self.settings.db is not None
        with sqlite3.connect(self.settings.db) as db:
            (count,) = db.execute("SELECT count(*) FROM events").fetchone()
        db.close()
        return int(count)
