"""Start and stop of the relay.

Start: store, coverage, broker socket, engine, gRPC; then health is SERVING. Stop: health NOT_SERVING, streams end,
running calls drain, engine and socket stop, the store writes its queued changes and closes. Ingestors continue their
jobs during a restart.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial

import structlog
from prometheus_client import CollectorRegistry
from pyiceberg.catalog import Catalog

from dexorder_common.clock import Clock, SystemClock
from dexorder_common.config import BadSettings
from dexorder_common.exchanges import load_exchanges
from dexorder_common.lake.catalog import CatalogSettings
from dexorder_common.model.dispatch_id import DispatchNumbers
from dexorder_common.model.errors import Unavailable
from dexorder_common.rpc.lifecycle import RunningServer, grpc_server, stop_signal
from dexorder_relay.access import ROLES
from dexorder_relay.broker.router import open_broker
from dexorder_relay.config import RelaySettings
from dexorder_relay.engine import RelayEngine
from dexorder_relay.metrics import RelayMetrics
from dexorder_relay.reading.table_reader import TableReader
from dexorder_relay.realtime.jobs import new_request_id
from dexorder_relay.requests.context import Context
from dexorder_relay.requests.retraction_log import RetractionLog, RetractionTable
from dexorder_relay.requests.traces import ROOTS
from dexorder_relay.service.services import register
from dexorder_relay.start import empty_state, load
from dexorder_relay.state.realtime_job import Registry
from dexorder_relay.state.udfs import UdfRegistry
from dexorder_relay.store.database import Store, open_store
from dexorder_relay.store.loading import read_udfs

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class RunningRelay:
    """Addresses of a running relay.

    Attributes:
        leave: Reports NOT_SERVING and returns after ``lame_duck_seconds``.
    """

    address: str
    broker_address: str
    leave: Callable[[], Awaitable[None]]


async def serve(settings: RelaySettings, catalog: CatalogSettings) -> None:
    """Serve until SIGTERM or SIGINT, or until the store fails."""
    async with stop_signal() as stop, relay(settings, catalog, SystemClock()) as running:
        log.info("ready", address=running.address, broker=running.broker_address)
        await stop.wait()
        await running.leave()


@asynccontextmanager
async def relay(settings: RelaySettings, catalog: CatalogSettings, clock: Clock) -> AsyncIterator[RunningRelay]:
    """Run a relay until the block ends; a failure of a part ends the block with it.

    Raises:
        OSError: An address cannot be bound.
        BadSettings: There is no such exchanges file, or it is invalid.
        ValueError: The database is invalid, or another relay uses the database.
        Unavailable: The catalog or a table cannot be read now.
    """
    try:
        venues = load_exchanges(settings.exchanges)
    except (OSError, ValueError) as error:
        raise BadSettings(f"DEXORDER_EXCHANGES: {error}") from None
    registry = CollectorRegistry()
    metrics = RelayMetrics(registry)
    async with open_store(settings.db, metrics.committed, clock.wall_ns()) as store:
        tables = await asyncio.to_thread(_open, catalog)
        reader, retraction_table = TableReader(tables), RetractionTable(tables)
        numbers = DispatchNumbers()
        state = empty_state(settings, numbers)
        context = Context(settings, frozenset(venues), state, store, reader, clock, metrics)
        realtime = Registry(state.leases, new_request_id)
        numbers.restart(await load(context, realtime, retraction_table), wall_ns=clock.wall_ns())
        udfs = UdfRegistry({each.name: each for each in await store.read(read_udfs)})
        retraction_log = RetractionLog(retraction_table, numbers, clock)
        engine = RelayEngine(context, realtime, retraction_log, udfs, catalog, tables)
        with open_broker(settings, metrics) as broker:
            async with asyncio.TaskGroup() as tasks:
                work = [tasks.create_task(engine.run(broker)), tasks.create_task(broker.run(engine.dispatcher))]
                add = partial(register, engine=engine)
                async with grpc_server(settings, add, registry=registry, roles=ROLES, trace_roots=ROOTS) as server:
                    await server.set_serving(True)
                    work.append(tasks.create_task(_report_space(store, server)))
                    try:
                        yield RunningRelay(server.address, broker.address, server.leave)
                    finally:
                        context.signals.close()  # progress and notification streams never end by themselves
                for task in work:
                    task.cancel()


async def _report_space(store: Store, server: RunningServer) -> None:
    """Say NOT_SERVING while the disk is full."""
    while True:
        await store.full.wait()
        log.error("the disk of the database is full; calls are refused until it has space, acknowledged ones are safe")
        await server.set_serving(False)
        await store.space.wait()
        log.info("the disk has space again")
        await server.set_serving(True)


def _open(catalog: CatalogSettings) -> Catalog:
    try:
        return catalog.load()
    except Exception as error:  # each kind of catalog raises different errors
        cause = (str(error) or type(error).__name__).splitlines()[0]
        raise Unavailable(
            f"catalog {catalog.name!r} can't be opened: {cause}; DEXORDER_CATALOG_URI names it"
        ) from error
