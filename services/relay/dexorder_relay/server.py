"""Start and stop of the relay.

Start: store, coverage, broker socket, engine, gRPC; then health is SERVING. Stop: health NOT_SERVING, streams end,
running calls drain, engine and socket stop, the store writes what it was given and closes. Ingestors continue their
jobs meanwhile.
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
from tenacity import AsyncRetrying, stop_after_attempt, wait_exponential

from dexorder_common.clock import Clock, SystemClock
from dexorder_common.config import BadSettings
from dexorder_common.exchanges import load_exchanges
from dexorder_common.lake.catalog import CatalogSettings
from dexorder_common.lake.coverage import Claim, Retraction
from dexorder_common.model.dispatch_id import DispatchNumbers
from dexorder_common.model.errors import Unavailable
from dexorder_common.model.times import SECOND_NS
from dexorder_common.rpc.lifecycle import grpc_server, stop_signal
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
from dexorder_relay.state import coverage, planner
from dexorder_relay.state.changes import Changes, CoverageRead
from dexorder_relay.state.history import HistoryState
from dexorder_relay.state.job import RetryPolicy
from dexorder_relay.state.leases import Leases
from dexorder_relay.state.realtime_job import Registry
from dexorder_relay.state.udfs import UdfRegistry
from dexorder_relay.store.database import open_store
from dexorder_relay.store.loading import read_udfs

log = structlog.get_logger(__name__)
LOAD_ATTEMPTS = 5
COVERAGE_MARGIN_NS = 24 * 3_600 * SECOND_NS
"""Largest difference between the clocks of relay and pipeline with which no claim is missed at start."""


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
        state = _empty_state(settings, numbers)
        context = Context(settings, frozenset(venues), state, store, reader, clock, metrics)
        realtime = Registry(state.leases, new_request_id)
        numbers.restart(await _load(context, realtime, retraction_table), wall_ns=clock.wall_ns())
        udfs = UdfRegistry({each.name: each for each in await store.read(read_udfs)})
        retraction_log = RetractionLog(retraction_table, numbers, clock)
        engine = RelayEngine(context, realtime, retraction_log, udfs, catalog, tables)
        with open_broker(settings, metrics) as broker:
            async with asyncio.TaskGroup() as tasks:
                work = [tasks.create_task(engine.run(broker)), tasks.create_task(broker.run(engine.dispatcher))]
                add = partial(register, engine=engine)
                async with grpc_server(settings, add, registry=registry, roles=ROLES, trace_roots=ROOTS) as server:
                    await server.set_serving(True)
                    try:
                        yield RunningRelay(server.address, broker.address, server.leave)
                    finally:
                        context.signals.close()  # progress and notification streams have no end of their own
                for task in work:
                    task.cancel()


def _open(catalog: CatalogSettings) -> Catalog:
    try:
        return catalog.load()
    except Exception as error:  # each kind of catalog has errors of its own
        cause = (str(error) or type(error).__name__).splitlines()[0]
        raise Unavailable(
            f"catalog {catalog.name!r} can't be opened: {cause}; DEXORDER_CATALOG_URI names it"
        ) from error


def _empty_state(settings: RelaySettings, numbers: DispatchNumbers) -> HistoryState:
    leases = Leases(
        lease_ns=int(settings.lease_seconds * SECOND_NS),
        new_id=numbers.new_id,
        max_slots=settings.max_slots_per_ingestor,
    )
    retry_policy = RetryPolicy(settings.max_attempts, int(settings.retry_backoff_seconds * SECOND_NS))
    return HistoryState(
        leases,
        retry_policy,
        job_periods=settings.job_periods,
        page_periods=settings.page_periods,
        recheck_after_ns=[int(each * SECOND_NS) for each in settings.recheck_after_seconds],
    )


async def _load(context: Context, registry: Registry, table: RetractionTable) -> int:
    """Load the database, then apply retractions and claims that the tables have beyond it.

    Claims are read from shortly before the last load on, as the database has those before.

    Returns:
        The largest number of a dispatch or of a retraction that the database or a table has.
    """
    state, store, reader, clock = context.state, context.store, context.reader, context.clock
    await store.load(state, registry, now_ns=clock.monotonic_ns())
    read_ns, since_ns = clock.wall_ns(), max(0, await store.coverage_read_ns() - COVERAGE_MARGIN_NS)
    applied = await store.retractions()
    attempts = AsyncRetrying(stop=stop_after_attempt(LOAD_ATTEMPTS), wait=wait_exponential(0.2, max=5), reraise=True)
    made: list[Retraction] = await attempts(asyncio.to_thread, table.read)
    claims: list[Claim] = await attempts(asyncio.to_thread, lambda: list(reader.coverage(since_ns)))
    numbers = [await store.last_number(), await attempts(asyncio.to_thread, reader.last_dispatch)]
    numbers += [each.order.dispatch for each in made] + [claim.dispatch for claim in claims]
    changes, new = Changes(), [each for each in made if each not in applied]
    for each in new:
        coverage.retract(state, each.series, [each.span], each.order, changes)
    unknown = [state.covered(claim.series).holes(claim.span) for claim in claims]
    for claim in claims:
        coverage.cover(state, claim.series, claim.span, claim.empty, claim.order, changes)
    coverage.note_claims(state, zip(claims, unknown, strict=True), changes, now_ns=read_ns)
    for each in new:
        planner.replan(state, each.series, [each.span], changes)
    coverage.settle_jobs(state, changes)
    changes.append(CoverageRead(read_ns))
    await store.commit(changes)
    log.info(
        "loaded",
        requests=len(state.requests),
        jobs=len(state.jobs),
        covered_ranges=len(claims),
        subscriptions=len(registry.subscriptions),
    )
    return max(numbers)
