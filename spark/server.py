"""Wiring of the driver: gRPC health and metrics in the main thread, Spark in another.

At the end: health says NOT_SERVING, the query stops behind its running batch, the JVM ends; all within the drain
seconds, after which the process leaves anyway. A batch cut short is replayed.
"""

from __future__ import annotations

import asyncio
import os
import threading

import structlog
from prometheus_client import CollectorRegistry

from services.common.catalog import CatalogSettings
from services.common.config import load_settings
from services.common.lifecycle import RunningServer, grpc_server, run, stop_signal
from spark.config import SparkSettings
from spark.driver import Driver

log = structlog.get_logger(__name__)


def main() -> None:
    """Entry point of ``python -m spark``."""
    settings, catalog = load_settings(SparkSettings), load_settings(CatalogSettings)
    run("spark", settings, lambda: serve(settings, catalog))


async def serve(settings: SparkSettings, catalog: CatalogSettings) -> None:
    """Run until SIGTERM or until the driver gives up.

    Raises:
        Exception: What the driver's thread ended with.
    """
    registry = CollectorRegistry()
    async with stop_signal() as stop, grpc_server(settings, lambda _: (), registry=registry) as server:
        thread = _DriverThread(settings, catalog, registry, server)
        thread.start()
        stopped: asyncio.Future[bool] = asyncio.ensure_future(stop.wait())
        try:
            await asyncio.wait((stopped, thread.ended), return_when=asyncio.FIRST_COMPLETED)
            await server.set_serving(False)
            thread.stop.set()
            await asyncio.wait([thread.ended], timeout=settings.drain_seconds)
            if not thread.ended.done():
                log.error("the query did not stop in time; leaving", drain_seconds=settings.drain_seconds)
                os._exit(1)
            thread.ended.result()
        finally:
            stopped.cancel()


class _DriverThread(threading.Thread):
    """Runs the driver; ``ended`` gets its outcome."""

    def __init__(
        self, settings: SparkSettings, catalog: CatalogSettings, registry: CollectorRegistry, server: RunningServer
    ) -> None:
        super().__init__(name="driver", daemon=True)
        self._loop = asyncio.get_running_loop()
        self._server = server
        self.stop = threading.Event()
        self.ended: asyncio.Future[None] = self._loop.create_future()
        self._driver = Driver(settings, catalog, stop=self.stop, on_ready=self._on_ready, registry=registry)

    def run(self) -> None:
        """Thread body."""
        try:
            self._driver.run()
        except BaseException as error:  # handed to the main thread, which raises it
            self._loop.call_soon_threadsafe(self.ended.set_exception, error)
        else:
            self._loop.call_soon_threadsafe(self.ended.set_result, None)

    def _on_ready(self, ready: bool) -> None:
        if not self.stop.is_set():
            asyncio.run_coroutine_threadsafe(self._server.set_serving(ready), self._loop)
