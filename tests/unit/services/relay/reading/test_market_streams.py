"""Trades and tickers through the relay: the rows that a client with the catalog reads, in bounded memory."""

from __future__ import annotations

import asyncio
import json
import random
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pyarrow as pa
import pytest

from dexorder import AsyncClient
from dexorder.client import table_rows
from dexorder.client.relayed import RelaySource
from dexorder.errors import CatalogError, NotSupported, RequestRefused
from dexorder.rows.table import Rows
from dexorder_common.lake.tables import OHLC, TICKERS, TICKS, IcebergTable
from dexorder_common.model.datasets import TRADES
from dexorder_common.model.instrument import Series
from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.times import MAX_TIME_NS, SECOND_NS, to_datetime
from dexorder_protos.dexorder.ingest.v1 import ingest_pb2 as ingest
from dexorder_protos.dexorder.relay.v1 import rows_service_pb2 as pb
from dexorder_relay.reading import row_stream
from dexorder_relay.reading.rows import MarketRows
from tests.fakes.candle_table import START
from tests.fakes.relay_server import FakeRelay, Notify, ended, relay_info, serving
from tests.series_messages import series
from tests.unit.dexorder.rows.test_market_rows import snapshot, trade
from tests.unit.services.relay.harness import Suite, refused, suite
from tests.unit.services.relay.realtime.test_snapshots import land
from tests.unit.services.relay.realtime.worker import worker

TICKER = "BTC/USDT.SIM"
pytestmark = pytest.mark.filterwarnings("ignore:Parquet writer option")  # pyiceberg writes larger row groups


def append(s: Suite, table: IcebergTable, rows: list[dict[str, Any]]) -> None:
    table.load_or_create(s.pipeline.catalog).append(pa.Table.from_pylist(rows, schema=table.arrow))


def after(seconds: float) -> int:
    return START + round(seconds * SECOND_NS)


@asynccontextmanager
async def both(s: Suite, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[AsyncClient, AsyncClient]]:
    """Give a client that reads the catalog, and one that can't reach it."""
    for name in ("NAME", "URI", "WAREHOUSE"):
        monkeypatch.delenv(f"DEXORDER_CATALOG_{name}", raising=False)
    monkeypatch.setattr(table_rows, "is_here", lambda properties: False)
    folder = s.folder
    place = "dexorder", {"uri": f"sqlite:///{folder}/catalog.db", "warehouse": f"file://{folder}/warehouse"}
    async with AsyncClient(s.running.address, place) as direct, AsyncClient(s.running.address) as relayed:
        assert isinstance(await relayed.rows.source(), RelaySource) and not isinstance(
            await direct.rows.source(), RelaySource
        )
        yield direct, relayed


def same(one: Rows, other: Rows) -> bool:
    """Return whether two tables have the same rows in the same order; forms of text may differ."""
    first, second = one.to_arrow(), other.to_arrow()
    return bool(first.column_names == second.column_names and first.cast(second.schema).equals(second))


async def test_trades_are_those_of_the_direct_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_stream, "WINDOW_ROWS", 12)
    monkeypatch.setattr(row_stream, "BATCH_ROWS", 7)
    sizes: list[int] = []
    read = MarketRows.rows

    def noted(rows: MarketRows, series: Series, span: TimeRange) -> pa.Table:
        found = read(rows, series, span)
        sizes.append(found.num_rows)
        return found

    monkeypatch.setattr(MarketRows, "rows", noted)
    chance = random.Random(7)
    ids = [8, 9, 10, 11, 99, 100, 101, *range(990, 1_060), "a1", "b", "ab"]
    # Several trades have one time; some come late, in another file, and days are partitions.
    made = [
        trade(str(each), chance.choice([0, 1, 1.5, 90_000, 90_000.25, 400_000]) + n // 9) for n, each in enumerate(ids)
    ]
    chance.shuffle(made)
    async with suite(tmp_path) as s, both(s, monkeypatch) as (direct, relayed):
        for part in (made[:50], made[50:], [trade("1", 1, "ETH/USDT.SIM")]):
            append(s, TICKS, part)
        everything = await relayed.trades(TICKER, START, after(10**7))
        assert same(await direct.trades(TICKER, START, after(10**7)), everything)
        assert everything.num_rows == len(ids)
        assert "dispatch" not in everything.column_names
        key = [(row["time"], len(row["trade_id"]), row["trade_id"]) for row in everything.to_pylist()]
        assert key == sorted(key)
        assert len(sizes) > 5 and max(sizes) <= 12
        for ticker, start, end in (
            (TICKER, 1, 2),
            (TICKER, 1.0000004, 90_000.2500004),  # ends between microseconds
            (TICKER, 0, 90_000.25),
            (TICKER, 20_000, 80_000),  # no trades
            (TICKER, 10**6, 10**7),
            ("ETH/USDT.SIM", 0, 10),
            ("XRP/USDT.SIM", 0, 10**7),  # not known
        ):
            found = await relayed.trades(ticker, after(start), after(end))
            assert same(await direct.trades(ticker, after(start), after(end)), found), (ticker, start, end)
        with pytest.raises(RequestRefused, match="exchange 'NOPE' is not known; this relay has"):
            await relayed.trades("BTC/USDT.NOPE", START)


async def test_snapshots_are_those_of_the_direct_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with suite(tmp_path) as s, both(s, monkeypatch) as (direct, relayed):
        append(s, TICKERS, [snapshot(TICKER, 1.0, 100, dispatch=7), snapshot("BTC/USDT.OTHERSIM", 4.0, 100)])
        append(s, TICKERS, [snapshot(TICKER, 2.0, 99, dispatch=8), snapshot("ETH/USDT.SIM", 5.0, 100)])
        append(s, TICKERS, [snapshot("LUNA/USDT.SIM", 3.0, 10), snapshot("ETH/USDT.SIM", 6.0, 100, page=1)])
        append(s, TICKERS, [{**snapshot("DOT/USDT.SIM", 1.0, 100), "received_at": None}])
        here, there = await direct.rows.source(), await relayed.rows.source()
        for venue, start, end in (("SIM", 50, 1_000), ("SIM", 0, 100), ("SIM", 200, 300), ("SIM", 0, 10**6)):
            span = TimeRange(after(start), after(end))
            found = await asyncio.to_thread(there.snapshots, venue, span)
            assert same(await asyncio.to_thread(here.snapshots, venue, span), found), (venue, start, end)
        found = await asyncio.to_thread(there.snapshots, "SIM", TimeRange(after(50), MAX_TIME_NS))
        assert found.select(["ticker", "last"]).to_pylist() == [
            {"ticker": TICKER, "last": 2.0},
            {"ticker": "ETH/USDT.SIM", "last": 6.0},
        ]
        assert "dispatch" not in found.column_names and "page" not in found.column_names
        with pytest.raises(RequestRefused, match="exchange 'NOPE' is not known; this relay has"):
            await asyncio.to_thread(there.snapshots, "NOPE", span)


async def test_a_table_that_does_not_exist_or_has_no_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    everything = TimeRange(0, MAX_TIME_NS)
    async with suite(tmp_path) as s, both(s, monkeypatch) as clients:
        for client in clients:
            with pytest.raises(CatalogError, match=r"does not contain the table trading\.ticks"):
                await client.trades(TICKER, START)
            with pytest.raises(CatalogError, match=r"does not contain the table trading\.tickers"):
                await asyncio.to_thread((await client.rows.source()).snapshots, "SIM", everything)
        for table in (TICKS, TICKERS):
            table.load_or_create(s.pipeline.catalog)
        direct, relayed = clients
        assert (
            same(await direct.trades(TICKER, START), none := await relayed.trades(TICKER, START)) and not none.num_rows
        )
        here, there = await direct.rows.source(), await relayed.rows.source()
        none = await asyncio.to_thread(there.snapshots, "SIM", everything)
        assert same(await asyncio.to_thread(here.snapshots, "SIM", everything), none) and not none.num_rows


async def test_answers_name_the_snapshot_and_read_an_older_one(tmp_path: Path) -> None:
    async with suite(tmp_path) as s:
        append(s, TICKS, [trade("1", 1)])
        wanted = pb.StreamRowsRequest(series=series(ticker=TICKER, period_seconds=0))
        first = [each async for each in s.relay.rows.StreamRows(wanted, timeout=60)]
        append(s, TICKS, [trade("2", 2)])
        wanted.snapshot_id = first[0].snapshot_id
        again = [each async for each in s.relay.rows.StreamRows(wanted, timeout=60)]
        assert again == first
        assert pa.ipc.open_stream(b"".join(each.data for each in first)).read_all()["trade_id"].to_pylist() == ["1"]
        wanted.ClearField("snapshot_id")
        now = [each async for each in s.relay.rows.StreamRows(wanted, timeout=60)]
        assert now[1].row_count == 2 and now[0].snapshot_id != first[0].snapshot_id
        good: dict[str, Any] = {"series": series(TICKER)}
        for bad in (
            {"start_ns": 5, "end_ns": 4},
            {"end_ns": 2**63},
            {"series": series("*.NOPE")},
            {"series": series("x")},
        ):
            request = pb.StreamRowsRequest(**{**good, **bad})
            with refused(grpc.StatusCode.INVALID_ARGUMENT):
                await s.relay.rows.StreamRows(request, timeout=60).read()


async def test_two_windows_are_read_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pair, guard, read = threading.Barrier(2, timeout=60), threading.Lock(), MarketRows.rows
    running, most = 0, 0

    def watched(rows: MarketRows, series: Series, span: TimeRange) -> pa.Table:
        nonlocal running, most
        with guard:
            running += 1
            most = max(most, running)
        pair.wait()
        found = read(rows, series, span)
        with guard:
            running -= 1
        return found

    monkeypatch.setattr(MarketRows, "rows", watched)
    wanted = pb.StreamRowsRequest(series=series(ticker=TICKER, period_seconds=0))

    async def answered(s: Suite) -> int:
        return sum([1 async for _ in s.relay.rows.StreamRows(wanted, timeout=60)])

    async with suite(tmp_path) as s:
        append(s, TICKS, [trade(str(n), n) for n in range(10)])
        assert await asyncio.gather(*(answered(s) for _ in range(6))) == [3] * 6  # schema, number, one batch
    assert most == 2


async def test_a_relay_without_the_call_is_named() -> None:
    fake = FakeRelay({}, ended(Notify.OK), info=relay_info("0.0.9"))  # it lacks StreamRows
    with serving(fake):
        read = partial(RelaySource(fake.address).points, Series(TICKER, dataset=TRADES), TimeRange(0, 1))
        with pytest.raises(NotSupported, match=r"is version 0\.0\.9 and does not have this call; this client is"):
            await asyncio.to_thread(read)
        fake.missing_calls.add("GetServerInfo")
        with pytest.raises(NotSupported, match=r"is older than 0\.1\.0 and does not have this call"):
            await asyncio.to_thread(read)


WITHOUT_LAKE = """
import sys
sys.modules.update(dict.fromkeys(("pyiceberg", "sqlalchemy", "numpy"), None))
from dexorder.cli import main
main()
"""


async def run_without_lake(s: Suite, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> str:
    """Run the command as it is installed without ``dexorder[lake]``, and return what it prints."""
    for name in ("NAME", "URI", "WAREHOUSE"):
        monkeypatch.delenv(f"DEXORDER_CATALOG_{name}", raising=False)
    words = (*arguments, "--relay", s.running.address)
    pipe = asyncio.subprocess.PIPE
    run = await asyncio.create_subprocess_exec(sys.executable, "-c", WITHOUT_LAKE, *words, stdout=pipe, stderr=pipe)
    out, err = await asyncio.wait_for(run.communicate(), 120)
    assert run.returncode == 0, err.decode()
    return out.decode()


async def test_the_command_needs_no_lake_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with suite(tmp_path) as s:
        one = worker(s)
        await one.ready(ingest.ANY)
        printing = asyncio.create_task(run_without_lake(s, monkeypatch, "tickers", "SIM", "--json"))
        sent = await one.job()
        now = [{**snapshot(TICKER, 2.5, 0), "received_at": to_datetime((await s.record(sent.request_id)).submitted_ns)}]
        append(s, TICKERS, now)
        await one.complete(sent.job_id)
        await land(s, sent.job_id, 1)
        assert [(each["ticker"], each["last"]) for each in json.loads(await printing)] == [(TICKER, 2.5)]
        s.pipeline.write(range(3))
        read = json.loads(await run_without_lake(s, monkeypatch, "read", TICKER, "1m", "--json"))
        assert (read["row_count"], read["table"], len(read["rows"])) == (3, OHLC.name, 3)
