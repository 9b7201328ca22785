"""Wiring of the driver: gRPC and metrics in the main thread, Spark and its queries in others, maintenance in one more.

At the end health becomes NOT_SERVING, each query stops after its running batch, and the JVM ends. If this exceeds the
drain seconds, the process exits anyway; an interrupted batch is replayed.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Any, TypeAlias

import grpc
import structlog
from prometheus_client import CollectorRegistry

from dexorder_common.config import load_settings
from dexorder_common.lake.catalog import CatalogSettings
from dexorder_common.model.datasets import DATASETS
from dexorder_common.rpc.lifecycle import RunningServer, grpc_server, run, stop_signal
from dexorder_protos.dexorder.pipeline.v1 import maintenance_service_pb2 as pb
from dexorder_protos.dexorder.pipeline.v1 import maintenance_service_pb2_grpc as rpc
from dexorder_spark.config import MaintenanceSettings, SparkSettings
from dexorder_spark.driver import Driver
from dexorder_spark.maintenance.metrics import MaintenanceMetrics
from dexorder_spark.maintenance.runner import MaintenanceRunner
from dexorder_spark.records.reporter import named_snapshots
from dexorder_spark.runtime.locks import WriterLocks
from dexorder_spark.tables.funding import FUNDING
from dexorder_spark.tables.ohlc import CANDLES
from dexorder_spark.tables.table import PageTable
from dexorder_spark.tables.tickers import SNAPSHOTS
from dexorder_spark.tables.ticks import TRADES

log = structlog.get_logger(__name__)
Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"
MAINTENANCE = pb.DESCRIPTOR.services_by_name["MaintenanceService"].full_name
PAGE_TABLES = {each.dataset: each for each in (CANDLES, TRADES, SNAPSHOTS, FUNDING)}
"""All tables that a driver can fill, by dataset."""


def tables_of(settings: SparkSettings) -> list[PageTable]:
    """Return the tables that the settings name, in the order of the datasets."""
    tables = [PAGE_TABLES[each] for each in DATASETS]
    return [table for table in tables if table.name.rpartition(".")[2] in settings.tables.split(",")]


class MaintenanceService(rpc.MaintenanceServiceServicer):
    """RPC behind ``dexorder maintain``. The server interceptor maps errors."""

    def __init__(self, runner: MaintenanceRunner) -> None:
        self._runner = runner

    async def Maintain(  # noqa: N802
        self, request: pb.MaintainRequest, context: Context
    ) -> AsyncIterator[pb.MaintainResponse]:
        """Maintain table after table. If the caller cancels, the work ends after the current step."""
        cancelled = threading.Event()
        results = self._runner.maintain(tuple(request.tables), dry_run=request.dry_run, cancelled=cancelled)
        working = None
        try:
            while True:
                working = asyncio.ensure_future(asyncio.to_thread(next, results, None))
                result = await asyncio.shield(working)
                if result is None:
                    return
                yield result
        finally:
            cancelled.set()
            if working is not None:
                await asyncio.gather(working, return_exceptions=True)
            results.close()


class TableHealth:
    """Health of the queries: one service for each table, and "" for all of them."""

    def __init__(self, names: Sequence[str]) -> None:
        self._ready = dict.fromkeys(names, False)

    async def show(self, server: RunningServer, name: str, ready: bool) -> None:
        """Set the health of a table's query."""
        self._ready[name] = ready
        await server.set_serving(ready, [name])
        await server.set_serving(all(self._ready.values()))

    async def stop(self, server: RunningServer) -> None:
        """Set all to NOT_SERVING."""
        await server.set_serving(False, [*self._ready])
        await server.set_serving(False)


def main() -> None:
    """Run ``python -m dexorder_spark``."""
    settings, catalog = load_settings(SparkSettings), load_settings(CatalogSettings)
    maintenance = load_settings(MaintenanceSettings)
    run("spark", settings, lambda: serve(settings, catalog, maintenance))


async def serve(settings: SparkSettings, catalog: CatalogSettings, maintenance_settings: MaintenanceSettings) -> None:
    """Serve until SIGTERM, or until the driver fails; then raise its error."""
    registry = CollectorRegistry()
    locks = WriterLocks()
    metrics = MaintenanceMetrics(registry)
    named = partial(named_snapshots, settings.relay)
    maintenance = MaintenanceRunner(catalog, maintenance_settings, locks, metrics, named=named)

    def register(server: grpc.aio.Server) -> tuple[str]:
        rpc.add_MaintenanceServiceServicer_to_server(MaintenanceService(maintenance), server)
        return (MAINTENANCE,)

    async with stop_signal() as stop, grpc_server(settings, register, registry=registry) as server:
        loop = asyncio.get_running_loop()
        stopping = threading.Event()

        tables = tables_of(settings)
        health = TableHealth([table.name for table in tables])

        def on_ready(name: str, ready: bool) -> None:
            if not stopping.is_set():
                asyncio.run_coroutine_threadsafe(health.show(server, name, ready), loop)

        driver = Driver(
            settings,
            catalog,
            tables,
            stop=stopping,
            on_ready=on_ready,
            registry=registry,
            locks=locks,
            maintenance=maintenance,
        )
        thread = _DriverThread(driver)
        thread.start()
        stopped: asyncio.Future[bool] = asyncio.ensure_future(stop.wait())
        try:
            await asyncio.wait((stopped, thread.ended), return_when=asyncio.FIRST_COMPLETED)
            stopping.set()
            await health.stop(server)
            await asyncio.wait([thread.ended], timeout=settings.drain_seconds)
            if not thread.ended.done():
                log.error("the queries did not stop in time; exiting", drain_seconds=settings.drain_seconds)
                os._exit(1)
            thread.ended.result()
        finally:
            stopped.cancel()


class _DriverThread(threading.Thread):
    """Thread that runs the driver; ``ended`` receives its outcome."""

    def __init__(self, driver: Driver) -> None:
        super().__init__(name="driver", daemon=True)
        self._loop = asyncio.get_running_loop()
        self._driver = driver
        self.ended: asyncio.Future[None] = self._loop.create_future()

    def run(self) -> None:
        """Run the driver to its end."""
        try:
            self._driver.run()
        except BaseException as error:  # the main thread raises it
            self._loop.call_soon_threadsafe(self.ended.set_exception, error)
        else:
            self._loop.call_soon_threadsafe(self.ended.set_result, None)
