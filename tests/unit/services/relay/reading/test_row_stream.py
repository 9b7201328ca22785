"""StreamRows: rows as an Arrow stream from a real relay with a real table, and our client, which has no catalog."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pyarrow as pa
import pytest

from dexorder import AsyncClient
from dexorder.client import table_rows
from dexorder.client.relayed import RelaySource
from dexorder.errors import CatalogError, HistoryMismatch, RequestRefused
from dexorder.rows.table import Rows
from dexorder_common.lake.tables import OHLC
from dexorder_protos.dexorder.relay.v1 import rows_service_pb2 as pb
from dexorder_relay.reading import row_stream
from tests.series_messages import series
from tests.unit.services.relay.harness import EARLIER, TICKER, Suite, at, page, suite


def wanted(start: int | None = None, end: int | None = None, **more: Any) -> pb.StreamRowsRequest:
    span: dict[str, Any] = {name: at(each) for name, each in (("start_ns", start), ("end_ns", end)) if each is not None}
    return pb.StreamRowsRequest(series=series(ticker=TICKER, period_seconds=60), **span, **more)


async def answers(s: Suite, request: pb.StreamRowsRequest) -> list[pb.StreamRowsResponse]:
    return [each async for each in s.relay.rows.StreamRows(request, timeout=60)]


def table(found: list[pb.StreamRowsResponse]) -> pa.Table:
    """Read the joined data as any Arrow library does."""
    return pa.ipc.open_stream(b"".join(each.data for each in found)).read_all()


def opens(rows: Rows | pa.Table) -> list[int]:
    times: Any = rows["open_time"].cast(pa.int64()).to_pylist()
    return [each * 1_000 for each in times]


async def test_the_joined_answers_are_one_arrow_stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_stream, "WINDOW_PERIODS", 150)
    monkeypatch.setattr(row_stream, "BATCH_ROWS", 60)
    async with suite(tmp_path) as s:
        minutes = [*range(400, 200, -1), *range(100), 900]  # written backwards, with windows without rows
        snapshot = s.pipeline.write(minutes)
        s.pipeline.write([5], ticker="ETH/USDT.SIM")
        found = await answers(s, wanted())
        rows = table(found)
        assert opens(rows) == [at(m) for m in sorted(minutes)]
        assert rows.schema.names == OHLC.arrow.names and set(rows["ticker"].to_pylist()) == {TICKER}
        assert found[0].snapshot_id != snapshot and found[1].row_count == len(minutes)
        assert max(len(each.data) for each in found) < 60 * 200 + 2_000
        part = await answers(s, wanted(50, 210, snapshot_id=snapshot))
        assert part[0].snapshot_id == snapshot
        assert opens(table(part)) == [at(m) for m in [*range(50, 100), *range(201, 210)]]
        none = await answers(s, wanted(1_000, 2_000))
        assert (none[1].row_count, table(none).num_rows, len(none)) == (0, 0, 2)
        gone = await answers(s, wanted(0, 1, snapshot_id=1))
        assert gone[0].snapshot_id not in (0, 1), "a snapshot that is not kept is replaced by the current one"
        with pytest.raises(grpc.aio.AioRpcError, match="NOPE"):
            await answers(s, pb.StreamRowsRequest(series=series(ticker="BTC/USDT.NOPE", period_seconds=60)))


async def test_a_table_without_rows_has_a_schema(tmp_path: Path) -> None:
    async with suite(tmp_path) as s:
        found = await answers(s, wanted())
        assert table(found).num_rows == 0 and not found[0].HasField("snapshot_id")


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make this machine one that can't open the catalog."""
    for name in ("NAME", "URI", "WAREHOUSE"):
        monkeypatch.delenv(f"DEXORDER_CATALOG_{name}", raising=False)
    monkeypatch.setattr(table_rows, "is_here", lambda properties: False)
    monkeypatch.setattr("dexorder.rows.catalog.load_table", None)


async def test_a_client_without_a_catalog_gets_the_same_rows(
    tmp_path: Path, elsewhere: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with suite(tmp_path) as s, AsyncClient(s.running.address) as client:
        await s.pipeline.report(snapshot_id=s.pipeline.write(range(60)), pages=[page(EARLIER, 0, 60)])
        rows = await client.history(TICKER, "1m", at(10), at(50))
        assert opens(rows) == [at(m) for m in range(10, 50)]
        assert opens(await client.history(TICKER, "1m", at(10), at(50), limit=7)) == [at(m) for m in range(10, 17)]
        stored = await client.read_stored(TICKER, "1m")
        assert opens(stored) == [at(m) for m in range(60)]
        monkeypatch.undo()
        direct = (await client.history(TICKER, "1m", at(10), at(50))).to_arrow()
        assert direct.cast(rows.to_arrow().schema) == rows


async def test_wrong_rows_are_refused(tmp_path: Path, elsewhere: None) -> None:
    async with suite(tmp_path) as s, AsyncClient(s.running.address) as client:
        await s.pipeline.report(snapshot_id=s.pipeline.write(range(60)), pages=[page(EARLIER, 0, 60)])
        await client.history(TICKER, "1m", at(0), at(60), request_id="r")
        ended = await client.wait("r")
        source = RelaySource(s.running.address)
        s.pipeline.write([5])  # a second row for one time
        with pytest.raises(CatalogError, match="two rows for one time"):
            await client.read_stored(TICKER, "1m")
        assert len(await client.read(ended)) == 60, "the announced snapshot does not have it"
        wrong = replace(ended.record, outcome=ended.record.outcome and replace(ended.record.outcome, row_count=59))
        with pytest.raises(HistoryMismatch, match=r"has 60 rows at snapshot \d+, but 59 were announced"):
            await asyncio.to_thread(source.table, wrong, lambda _: None)
        with pytest.raises(RequestRefused):
            await client.read_stored("BTC/USDT.NOPE", "1m")
