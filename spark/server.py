"""Wiring of the driver: gRPC and metrics in the main thread, Spark in a second one, maintenance in a third.

At the end health becomes NOT_SERVING, the query stops after its running batch, and the JVM ends. If this exceeds the
drain seconds, the process exits anyway; an interrupted batch is replayed.
"""

from __future__ import annotations

import asyncio
import os
import threading
from functools import partial

import grpc
import structlog
from prometheus_client import CollectorRegistry

from services.common.config import load_settings
from services.common.lake.catalog import CatalogSettings
from services.common.rpc.lifecycle import grpc_server, run, stop_signal
from services.gen.dexorder.pipeline.v1 import maintenance_service_pb2_grpc as rpc
from spark.config import MaintenanceSettings, SparkSettings
from spark.maintenance.runner import MaintenanceRunner
from spark.metrics import MaintenanceMetrics
from spark.pipeline.driver import Driver
from spark.pipeline.reporter import named_snapshots
from spark.runtime.locks import WriterLock
from spark.service import MAINTENANCE, MaintenanceService
from spark.tables.ohlc import CANDLES

log = structlog.get_logger(__name__)


def main() -> None:
    """Run ``python -m spark``."""
    settings, catalog = load_settings(SparkSettings), load_settings(CatalogSettings)
    maintenance = load_settings(MaintenanceSettings)
    run("spark", settings, lambda: serve(settings, catalog, maintenance))


async def serve(settings: SparkSettings, catalog: CatalogSettings, maintenance_settings: MaintenanceSettings) -> None:
    """Serve until SIGTERM, or until the driver fails, whose error is raised."""
    registry = CollectorRegistry()
    writer_lock = WriterLock()
    metrics = MaintenanceMetrics(registry)
    named = partial(named_snapshots, settings.relay)
    maintenance = MaintenanceRunner(catalog, maintenance_settings, writer_lock, metrics, named=named)

    def register(server: grpc.aio.Server) -> tuple[str]:
        rpc.add_MaintenanceServiceServicer_to_server(MaintenanceService(maintenance), server)
        return (MAINTENANCE,)

    async with stop_signal() as stop, grpc_server(settings, register, registry=registry) as server:
        loop = asyncio.get_running_loop()
        stopping = threading.Event()

        def on_ready(ready: bool) -> None:
            if not stopping.is_set():
                asyncio.run_coroutine_threadsafe(server.set_serving(ready), loop)

        driver = Driver(
            settings,
            catalog,
            CANDLES,
            stop=stopping,
            on_ready=on_ready,
            registry=registry,
            writer_lock=writer_lock,
            maintenance=maintenance,
        )
        thread = _DriverThread(driver)
        thread.start()
        stopped: asyncio.Future[bool] = asyncio.ensure_future(stop.wait())
        try:
            await asyncio.wait((stopped, thread.ended), return_when=asyncio.FIRST_COMPLETED)
            await server.set_serving(False)
            stopping.set()
            await asyncio.wait([thread.ended], timeout=settings.drain_seconds)
            if not thread.ended.done():
                log.error("the query did not stop in time; exiting", drain_seconds=settings.drain_seconds)
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
