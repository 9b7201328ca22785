"""MaintenanceService on a real server, with a stub of the runner."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

import grpc
import pytest

from dexorder_common.model.errors import Unavailable
from dexorder_common.rpc.lifecycle import grpc_server
from dexorder_protos.dexorder.pipeline.v1 import maintenance_service_pb2 as pb
from dexorder_protos.dexorder.pipeline.v1 import maintenance_service_pb2_grpc as rpc
from dexorder_spark.config import SparkSettings
from dexorder_spark.maintenance.runner import StepFailed
from dexorder_spark.server import MAINTENANCE, MaintenanceService


class StubRunner:
    """Runner that records calls; raises ``error`` at the second table; ``hold`` blocks until the call is cancelled."""

    error: Exception | None = None
    hold = False

    def __init__(self) -> None:
        self.asked: list[tuple[Sequence[str], bool]] = []
        self.begun = threading.Event()
        self.left = threading.Event()

    def maintain(
        self, tables: Sequence[str], *, dry_run: bool, cancelled: threading.Event
    ) -> Iterator[pb.MaintainResponse]:
        self.asked.append((tables, dry_run))
        try:
            for number, name in enumerate(tables or ("trading.ohlc",)):
                if self.hold:
                    self.begun.set()
                    cancelled.wait(60)
                    raise Unavailable("the caller has cancelled")
                if number and self.error:
                    raise self.error
                yield pb.MaintainResponse(
                    table=name,
                    data_files_before=20,
                    data_files_after=2,
                    delete_files_before=3,
                    expired_snapshots=7,
                    kept_snapshots=5,
                    removed_files=30,
                    took_ms=1_234,
                )
        finally:
            self.left.set()


@pytest.fixture
def runner() -> StubRunner:
    return StubRunner()


@pytest.fixture
async def stub(runner: StubRunner) -> AsyncIterator[Any]:
    def register(server: grpc.aio.Server) -> tuple[str]:
        rpc.add_MaintenanceServiceServicer_to_server(MaintenanceService(runner), server)  # type: ignore[arg-type]
        return (MAINTENANCE,)

    settings = SparkSettings(listen="127.0.0.1:0", metrics_listen="")
    async with grpc_server(settings, register) as server, grpc.aio.insecure_channel(server.address) as channel:
        yield rpc.MaintenanceServiceStub(channel)


async def test_each_table_is_reported_when_it_is_done(stub: Any, runner: StubRunner) -> None:
    request = pb.MaintainRequest(tables=["trading.ohlc", "trading.coverage"], dry_run=True)
    answers = [answer async for answer in stub.Maintain(request)]
    assert [a.table for a in answers] == ["trading.ohlc", "trading.coverage"]
    assert answers[0] == pb.MaintainResponse(
        table="trading.ohlc",
        data_files_before=20,
        data_files_after=2,
        delete_files_before=3,
        expired_snapshots=7,
        kept_snapshots=5,
        removed_files=30,
        took_ms=1_234,
    )
    assert runner.asked == [(("trading.ohlc", "trading.coverage"), True)]


async def test_an_error_ends_the_stream_after_the_completed_tables(stub: Any, runner: StubRunner) -> None:
    for error, code in (
        (Unavailable("no query runs"), "UNAVAILABLE"),
        (StepFailed("compact failed"), "INTERNAL"),
    ):
        runner.error = error
        seen = []
        with pytest.raises(grpc.aio.AioRpcError, match=str(error)) as caught:
            async for answer in stub.Maintain(pb.MaintainRequest(tables=["trading.ohlc", "trading.coverage"])):
                seen.append(answer.table)
        assert (caught.value.code().name, seen) == (code, ["trading.ohlc"])


async def test_a_caller_that_leaves_ends_the_work(stub: Any, runner: StubRunner) -> None:
    runner.hold = True
    call = stub.Maintain(pb.MaintainRequest())
    assert await asyncio.to_thread(runner.begun.wait, 50)
    call.cancel()
    assert await asyncio.to_thread(runner.left.wait, 50)
