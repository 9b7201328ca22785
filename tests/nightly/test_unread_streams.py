"""A thousand streams of rows that nobody reads, beside a relay that has served rows before."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pytest

from dexorder_common.rpc.relay_stubs import RelayStubs
from dexorder_protos.dexorder.relay.v1 import rows_service_pb2 as pb
from tests.series_messages import series
from tests.unit.services.relay.harness import (
    TICKER,
    Pipeline,
    catalog_settings,
    free_port,
    make_tables,
    relay_process,
)

WANTED = pb.StreamRowsRequest(series=series(ticker=TICKER, period_seconds=60))
STREAMS, MAX_GROWTH_KIB = 1_000, 100 << 10


@pytest.mark.nightly
@pytest.mark.timeout(600)
async def test_a_thousand_streams_that_nobody_reads_take_little_memory(tmp_path: Path) -> None:
    """After the reading itself has taken its own; without a limit they took 1.5 GB."""
    catalog = catalog_settings(tmp_path).load()
    make_tables(catalog)
    Pipeline(catalog, None).write(range(20_000))
    catalog.close()
    port = free_port()
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.http2.bdp_probe", 0)]
    with relay_process(tmp_path, port) as (process, _):
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=options) as channel:
            await asyncio.wait_for(channel.channel_ready(), 60)
            rows: Any = RelayStubs(channel).rows
            for _ in range(15):
                await asyncio.gather(*(_read(rows) for _ in range(8)))
            before = _rss_kib(process.pid)
            unread = [rows.StreamRows(WANTED) for _ in range(STREAMS)]
            await asyncio.gather(*(each.read() for each in unread))
            await asyncio.wait_for(_read(rows), 300)  # it waits behind the first window of each of them
            grown = _rss_kib(process.pid) - before
            assert grown < MAX_GROWTH_KIB, f"{grown >> 10} MiB beyond {before >> 10}"
            for each in unread:
                each.cancel()


async def _read(rows: Any) -> int:
    return sum([len(each.data) async for each in rows.StreamRows(WANTED)])


def _rss_kib(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS"))
