"""Who waits for the records of a group and topic."""

from __future__ import annotations

import asyncio
from typing import Protocol

from services.common.model.errors import SuiteError
from services.gateway.kafkapixy.topic_reader import Record
from services.gateway.kafkapixy.types import Delivery, Demand

Deliveries = list[Delivery[Record]]
ONE = Demand()


class Caller(Protocol):
    """Whoever waits for records; called on the event loop."""

    @property
    def gone(self) -> bool:
        """Whether it waits no more."""

    def ask(self) -> Demand:
        """What it would take."""

    def give(self, deliveries: Deliveries) -> None:
        """Here they are; it waits no more."""


class Stream(Caller, Protocol):
    """A caller that stays."""

    def stop(self, error: SuiteError) -> None:
        """Nothing more will come, and no ack is taken."""


class UnaryCaller:
    """A unary call that waits.

    Attributes:
        future: Its record.
    """

    def __init__(self, future: asyncio.Future[Delivery[Record]]) -> None:
        self.future = future

    @property
    def gone(self) -> bool:
        """Whether it was given a record, told a failure or cancelled."""
        return self.future.done()

    def ask(self) -> Demand:
        """One record."""
        return ONE

    def give(self, deliveries: Deliveries) -> None:
        """Here it is."""
        self.future.set_result(deliveries[0])

    def fail(self, error: SuiteError) -> None:
        """It gets none."""
        if not self.future.done():
            self.future.set_exception(error)
