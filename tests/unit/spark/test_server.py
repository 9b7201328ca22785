import asyncio
import os
import signal
import threading
from collections.abc import Callable
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from dexorder_common.lake.catalog import CatalogSettings
from dexorder_spark import server
from dexorder_spark.config import MaintenanceSettings, SparkSettings
from dexorder_spark.table_driver import QueryFailed
from tests.rig.processes import free_ports

SERVING = health_pb2.HealthCheckResponse.SERVING


class StubDriver:
    """Driver whose tables are ready once ``candles_are_ready``; ends on ``stop``, or with an error."""

    error: Exception | None = None

    candles_are_ready = threading.Event()

    def __init__(self, *_: Any, stop: threading.Event, on_ready: Callable[[str, bool], None], **__: Any) -> None:
        self.stop = stop
        self.on_ready = on_ready

    def run(self) -> None:
        if self.error:
            raise self.error
        for name in ("trading.ticks", "trading.tickers", "trading.funding"):
            self.on_ready(name, True)
        self.candles_are_ready.wait()
        self.on_ready("trading.ohlc", True)
        self.stop.wait()


@pytest.fixture
def settings(monkeypatch: pytest.MonkeyPatch) -> SparkSettings:
    monkeypatch.setattr(server, "Driver", StubDriver)
    return SparkSettings(listen=f"127.0.0.1:{free_ports(1)[0]}", metrics_listen="")


async def test_health_is_that_of_all_tables_and_of_each_and_sigterm_ends_the_process(settings: SparkSettings) -> None:
    serving = asyncio.create_task(server.serve(settings, CatalogSettings(), MaintenanceSettings()))
    async with grpc.aio.insecure_channel(settings.listen) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)  # the stubs lack Watch

        async def serves(name: str) -> None:
            watch = stub.Watch(health_pb2.HealthCheckRequest(service=name), wait_for_ready=True)
            async for answer in watch:
                if answer.status == SERVING:
                    break
            watch.cancel()

        await serves("trading.ticks")
        await serves("trading.tickers")
        await serves("trading.funding")
        assert (await stub.Check(health_pb2.HealthCheckRequest())).status != SERVING
        StubDriver.candles_are_ready.set()
        await serves("trading.ohlc")
        await serves("")
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.wait_for(serving, 30)


async def test_a_driver_that_gives_up_ends_the_process_with_its_error(
    settings: SparkSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(StubDriver, "error", QueryFailed("6 times in a row"))
    with pytest.raises(QueryFailed):
        await asyncio.wait_for(server.serve(settings, CatalogSettings(), MaintenanceSettings()), 30)
