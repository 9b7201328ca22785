"""Start and stop of the ingestor: gRPC server (health and reflection only), channels, connection to the broker,
instructions of the relay.

On SIGTERM health says NOT_SERVING and no slot is offered; running dispatches get ``drain_seconds``, the rest is
returned to the relay; then sockets and ccxt clients close.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable
from functools import partial

import grpc
from prometheus_client import CollectorRegistry

from dexorder_common.clock import Clock, SystemClock
from dexorder_common.exchanges import load_exchanges
from dexorder_common.model.datasets import CANDLES, TICKERS, Dataset
from dexorder_common.model.history import Dispatch
from dexorder_common.model.times import SECOND_NS
from dexorder_common.rpc.channel import open_channel
from dexorder_common.rpc.lifecycle import RunningServer, grpc_server, stop_signal
from dexorder_ingestor.broker.connection import BrokerConnection
from dexorder_ingestor.broker.dispatches import AnyDispatch, StopSignal
from dexorder_ingestor.broker.slots import DispatchEnd, JobKind, JobSlots, SlotType
from dexorder_ingestor.config import IngestorSettings
from dexorder_ingestor.control import ControlWatcher
from dexorder_ingestor.dispatch_runner import DispatchRunner, Fetch
from dexorder_ingestor.exchange.live_queries import LiveQueries
from dexorder_ingestor.exchange.venue import CcxtVenue
from dexorder_ingestor.history.fetch import publish_candles
from dexorder_ingestor.instrument_reports import InstrumentReporter
from dexorder_ingestor.metrics import IngestorMetrics
from dexorder_ingestor.points.fetch import publish_points, sources
from dexorder_ingestor.publisher import IngestorPublisher
from dexorder_ingestor.realtime.job import RealtimeRunner
from dexorder_ingestor.tickers import publish_tickers

Sleep = Callable[[float], Awaitable[None]]
_COLLECTIONS = 10_000, 10, 100
"""Objects before a collection of young ones, such ones before a middle one, middle ones before a full one."""


async def serve(settings: IngestorSettings) -> None:
    """Work until SIGTERM."""
    collect_rarely()
    async with stop_signal() as stop:
        await work(settings, stop)


def collect_rarely() -> None:
    """Run Python's garbage collections less often, and exempt the imported modules from them.

    They stop the whole process: with 500 markets and 5,000 trades a second twice in 10 s for a second each by
    default. Reference counting still frees objects without cycles at once.
    """
    gc.freeze()
    gc.set_threshold(*_COLLECTIONS)


async def work(
    settings: IngestorSettings, stop: asyncio.Event, *, clock: Clock | None = None, sleep: Sleep = asyncio.sleep
) -> None:
    """Work until ``stop`` is set.

    Raises:
        SystemExit: The exchanges file can't be read, or the folder of the rate limits can't be used.
        OSError: An address can't be bound.
    """
    try:
        exchanges = load_exchanges(settings.exchanges)
    except (OSError, ValueError) as error:
        raise SystemExit(f"DEXORDER_EXCHANGES: {error}") from None
    clock = clock or SystemClock()
    registry = CollectorRegistry()
    metrics = IngestorMetrics(registry)
    try:
        venues = {
            name: CcxtVenue(name, exchange, settings, metrics, clock, sleep=sleep)
            for name, exchange in exchanges.items()
        }
    except OSError as error:
        text = f"DEXORDER_INGESTOR_RATE_LIMIT_DIR: the rate limits can't be stored: {error}"
        raise SystemExit(text) from None
    capacity = {SlotType(name, JobKind.HISTORICAL): each.slots.historical for name, each in exchanges.items()}
    capacity |= {SlotType(name, JobKind.REALTIME): each.slots.realtime for name, each in exchanges.items()}
    slots = JobSlots(
        capacity,
        repeat_ns=int(settings.complete_repeat_seconds * SECOND_NS),
    )
    without_drain = settings.model_copy(update={"drain_seconds": 0})  # its calls only watch health; dispatches drain
    options = [("grpc.max_send_message_length", settings.max_message_bytes)]
    async with (
        grpc_server(without_drain, lambda server: [], registry=registry) as server,
        open_channel(settings.gateway, options=options) as gateway,
        open_channel(settings.relay, options=options) as relay,
    ):
        health = _Health(server)
        publisher = IngestorPublisher(gateway, relay, settings, metrics)
        queries = {name: LiveQueries(venue) for name, venue in venues.items()}
        fetchers: dict[Dataset, Fetch] = {CANDLES: publish_candles, TICKERS: partial(publish_tickers, queries)}
        fetchers |= {dataset: partial(publish_points, source) for dataset, source in sources().items()}
        history = DispatchRunner(fetchers, venues, publisher, settings, metrics, clock)
        realtime = RealtimeRunner(queries, publisher, settings, metrics)
        served = [venues[name] for name in dict.fromkeys(slot.venue for slot in slots.types if slots.free(slot))]
        reporter = InstrumentReporter(served, publisher, settings, metrics, sleep=sleep)

        async def run(dispatch: AnyDispatch, stop: StopSignal, fetched: Callable[[], None]) -> DispatchEnd | None:
            if isinstance(dispatch, Dispatch):
                return await history.run(dispatch, fetched)
            return await realtime.run(dispatch, stop)

        broker = BrokerConnection(settings, slots, run, metrics, clock, on_connected=partial(health.set, "broker"))
        control = ControlWatcher(settings, publisher, slots, broker, history, metrics, stop.set)
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(_watch_channel(gateway, partial(health.set, "gateway"))),
                    group.create_task(_close_health(stop, health)),
                    group.create_task(reporter.run()),
                    group.create_task(control.run()),
                    group.create_task(realtime.reports.run()),
                    group.create_task(realtime.live.run()),
                ]
                await broker.run(stop)
                for task in tasks:
                    task.cancel()
        finally:
            await realtime.close()
            for venue in venues.values():
                await venue.close()


class _Health:
    """Reports SERVING while the broker and the gateway are connected and the ingestor is not stopping."""

    def __init__(self, server: RunningServer) -> None:
        self._server = server
        self._parts = {"broker": False, "gateway": False, "running": True}

    async def set(self, part: str, good: bool) -> None:
        self._parts[part] = good
        await self._server.set_serving(all(self._parts.values()))


async def _close_health(stop: asyncio.Event, health: _Health) -> None:
    await stop.wait()
    await health.set("running", False)


async def _watch_channel(channel: grpc.aio.Channel, report: Callable[[bool], Awaitable[None]]) -> None:
    """Report each change of a channel's state, and keep the channel from staying idle."""
    while True:
        state = channel.get_state(try_to_connect=True)
        await report(state == grpc.ChannelConnectivity.READY)
        await channel.wait_for_state_change(state)
