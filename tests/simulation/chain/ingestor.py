"""One life of an ingestor: the product's connection, slots, runner and publisher, against the lying exchange."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

from prometheus_client import CollectorRegistry

from dexorder_common.model.datasets import CANDLES
from dexorder_common.model.history import Dispatch
from dexorder_common.model.page import PageHeaders
from dexorder_ingestor.broker.connection import BrokerConnection
from dexorder_ingestor.broker.dispatches import AnyDispatch, StopSignal
from dexorder_ingestor.broker.slots import DispatchEnd, JobKind, JobSlots, SlotType
from dexorder_ingestor.config import IngestorSettings
from dexorder_ingestor.dispatch_runner import DispatchRunner
from dexorder_ingestor.history.fetch import publish_candles
from dexorder_ingestor.metrics import IngestorMetrics
from dexorder_ingestor.publisher import IngestorPublisher
from tests.simulation.chain.parts import Parts
from tests.simulation.chain.rpc import channel
from tests.simulation.exchange.history import LISTED, SimulatedVenue
from tests.simulation.loop import SECOND_NS, Process

SLOTS = 2
_METRICS = IngestorMetrics(CollectorRegistry())


async def live(parts: Parts, process: Process) -> None:
    """Run one life."""
    run, clock, random = parts.run, parts.run.clock(process), parts.supervisor.generator(process)
    settings = settings_of(parts.world.page)
    venue = SimulatedVenue(parts.world, run.loop, settings, clock, random, parts.exchange_calls, parts.fault_ns)
    venue.is_refused = lambda: process.name in parts.refusing
    publisher = _Publisher(
        channel(run.network, "gateway"), channel(run.network, "relay"), settings, _METRICS, random=random
    )
    publisher.parts = parts
    runner = DispatchRunner(
        {CANDLES: publish_candles}, cast(Any, {LISTED: venue}), publisher, settings, _METRICS, clock
    )

    async def work(dispatch: AnyDispatch, _: StopSignal, fetched: Callable[[], None]) -> DispatchEnd | None:
        assert isinstance(dispatch, Dispatch)
        parts.begin(dispatch)
        run.note(f"{process.name} works on {dispatch.dispatch_id} {periods(parts, dispatch)}")
        parts.on_work(process.name)
        end = await runner.run(dispatch, fetched)
        told = "is not wanted any more" if end is None else end.message or "is done"
        run.note(f"{process.name} {dispatch.dispatch_id} {told}")
        return end

    slots = JobSlots({SlotType(LISTED, JobKind.HISTORICAL): SLOTS}, repeat_ns=60 * SECOND_NS)
    connection = BrokerConnection(
        settings, slots, work, _METRICS, clock, on_connected=_ignore, sockets=parts.wires.sockets(process)
    )
    await connection.run(asyncio.Event())


class _Publisher(IngestorPublisher):
    """The product's publisher, whose answers are judged."""

    parts: Parts

    async def report_page(self, headers: PageHeaders, rows: int, calls: int = 0) -> bool:
        """Report a page; it is not wanted if another dispatch has taken the place before."""
        parts, since_ns = self.parts, self.parts.run.loop.now_ns
        is_wanted = await super().report_page(headers, rows, calls)
        if is_wanted and parts.is_fenced(headers.dispatch_id, since_ns):
            parts.run.fail(f"a page of {headers.dispatch_id} counts, though another dispatch has taken its place")
        return is_wanted


_SETTINGS: dict[int, IngestorSettings] = {}


def settings_of(page: int) -> IngestorSettings:
    """Return the settings for a size of pages."""
    if page not in _SETTINGS:
        _SETTINGS[page] = IngestorSettings(name="simulated", page_candles=page, closing_lag_seconds=0)
    return _SETTINGS[page]


def periods(parts: Parts, dispatch: Dispatch) -> str:
    """Return the range of a dispatch in periods of the world."""
    step_ns, first_ns = dispatch.period_seconds * SECOND_NS, parts.world.span.start_ns
    return f"[{(dispatch.span.start_ns - first_ns) // step_ns}, {(dispatch.span.end_ns - first_ns) // step_ns})"


async def _ignore(_: bool) -> None:
    return
