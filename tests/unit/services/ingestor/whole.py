"""Everything between a client and an exchange in one process: relay, ingestor, exchange, and Spark's part.

Records of a fake gateway are decoded by the code of Spark's workers, appended to a real Iceberg table and reported to
the relay. A candle that is written twice fails the test, unless rows are upserted.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.expressions import AlwaysTrue

from dexorder.client.async_client import AsyncClient
from dexorder.client.requests import Ended
from dexorder_common.lake.rewrite import replace_rows
from dexorder_common.lake.tables import OHLC
from dexorder_common.model.history import HistoryRequest, PageResult
from dexorder_common.model.instrument import Series
from dexorder_common.model.time_range import TimeRange
from dexorder_ingestor.config import IngestorSettings
from dexorder_ingestor.server import work
from dexorder_protos.kafkapixy import kafkapixy_pb2_grpc as pixy_rpc
from dexorder_spark.pipeline.controls import FINAL_KIND, PAGE_KIND
from dexorder_spark.pipeline.decode import decode_record
from dexorder_spark.records.reporter import FinalReport, to_request
from dexorder_spark.tables.ohlc import CANDLES
from tests.unit.services.ingestor.conftest import FAST, Sim, exchanges_file, running_ingestor, running_sim
from tests.unit.services.ingestor.fakes import FakeGateway, Record, grpc_peer
from tests.unit.services.relay.harness import Suite, suite

LONGEST_SECONDS = 60.0


@dataclass
class Chain:
    """A relay, a gateway and an exchange; the test starts ingestors."""

    suite: Suite
    gateway: FakeGateway
    sim: Sim
    settings: dict[str, Any]

    @asynccontextmanager
    async def ingestor(self, **settings: Any) -> AsyncIterator[asyncio.Task[None]]:
        """Run an ingestor until the block ends."""
        async with running_ingestor({**self.settings, **settings}) as (_, task):
            yield task

    def pages(self) -> list[TimeRange]:
        """Return the spans of all pages of all dispatches, in time order."""
        return sorted(r.control.span for r in self.gateway.records if r not in self.gateway.finals)


@dataclass
class Whole:
    """A running chain; ``ask`` makes a user's request."""

    suite: Suite
    gateway: FakeGateway
    sim: Sim
    client: AsyncClient
    tickers: set[str]

    async def ask(
        self, request_id: str, ticker: str, period_seconds: int, span: TimeRange, *, limit: int | None = None
    ) -> Ended:
        """Submit a request and wait for its end."""
        await self.client.submit(HistoryRequest(request_id, ticker, span.start_ns, span.end_ns, period_seconds, limit))
        return await self.client.wait(request_id, timeout=LONGEST_SECONDS)

    async def rows(self, ended: Ended) -> dict[int, list[float]]:
        """Return the rows of a request that ended OK by open time, read as a client does; see `by_open`."""
        return by_open((await self.client.read(ended)).to_arrow())

    def fetched(self) -> list[TimeRange]:
        """Return the ranges that the pages of all dispatches settled, in time order."""
        return sorted(r.control.span for r in self.gateway.records if r not in self.gateway.finals)


def by_open(rows: pa.Table) -> dict[int, list[float]]:
    """Open time in ns -> open, high, low, close, volume."""
    opens = rows.column("open_time").cast(pa.timestamp("us", "UTC")).cast(pa.int64()).to_pylist()
    values = [rows.column(name).to_pylist() for name in ("open", "high", "low", "close", "volume")]
    return {micros * 1_000: list(row) for micros, *row in zip(opens, *values, strict=True)}


class Landing:
    """Spark's part; `land` may be called again and again."""

    def __init__(self, made: Suite, gateway: FakeGateway, *, upsert: bool = False) -> None:
        self._suite = made
        self._gateway = gateway
        self._upsert = upsert
        self._landed = 0
        self._keys: set[tuple[str, int, int]] = set()
        self.tickers: set[str] = set()

    async def run(self) -> None:
        """Land whatever comes, until cancelled."""
        while True:
            await self.land()
            await asyncio.sleep(0.01)

    async def land(self) -> None:
        """Commit the rows of what is new, then report all of it."""
        new = self._gateway.records[self._landed :]
        if not new:
            return
        self._landed += len(new)
        candles: list[pa.RecordBatch] = []
        found = [row for record in new for row in decode_record(CANDLES, _raw(record), candles.append)]
        snapshot_id = await asyncio.to_thread(self._write, candles)
        pages = [_page(row["control"]) for row in found if row["kind"] == PAGE_KIND]
        finals = [_final(row["control"]) for row in found if row["kind"] == FINAL_KIND]
        assert len(pages) + len(finals) == len(found), f"refused: {found}"
        await self._suite.pipeline.stub.ReportJobs(to_request(snapshot_id, pages, finals))

    def _write(self, candles: list[pa.RecordBatch]) -> int | None:
        table = self._suite.pipeline.catalog.load_table(OHLC.name)
        if candles:
            rows = pa.Table.from_batches(candles)
            rows = rows.select(table.schema().column_names).cast(table.schema().as_arrow())
            keys = _keys(rows)
            self.tickers |= {ticker for ticker, *_ in keys}
            if self._upsert and not self._keys.isdisjoint(keys):
                found = table.scan().to_arrow().cast(rows.schema)  # all rows, as tables of tests are small
                new, old = set(_keys(rows)), _keys(found)
                kept = found.filter(pa.array([key not in new for key in old]))
                replace_rows(table, AlwaysTrue(), pa.concat_tables([kept, rows]), {})
            else:
                assert len({*keys, *self._keys}) == len(keys) + len(self._keys), "a candle is there twice"
                table.append(rows)
            self._keys |= set(keys)
        snapshot = self._suite.pipeline.catalog.load_table(OHLC.name).current_snapshot()
        return snapshot.snapshot_id if snapshot else None


def _keys(rows: pa.Table) -> list[tuple[Any, ...]]:
    return list(zip(*(rows.column(name).to_pylist() for name in OHLC.key), strict=True))


def _raw(record: Record) -> dict[str, Any]:
    return {"headers": list(record.control.encode().items()), "payload": record.value.SerializeToString()}


def _page(control: dict[str, Any]) -> PageResult:
    ends = control["empty"]
    return PageResult(
        control["dispatch_id"],
        Series(control["ticker"], control["period_seconds"]),
        TimeRange(control["start_ns"], control["end_ns"]),
        tuple(TimeRange(*pair) for pair in zip(ends[::2], ends[1::2], strict=True)),
        None,
        control["fetched_ns"],
        control["rows"],
        evidence=control["evidence"],
    )


def _final(control: dict[str, Any]) -> FinalReport:
    return FinalReport(control["dispatch_id"], control["status"], control["error_message"], control["total_records"])


@asynccontextmanager
async def chain(
    folder: Path,
    *,
    sim: dict[str, Any] | None = None,
    relay: dict[str, Any] | None = None,
    venue: dict[str, Any] | None = None,
    url: str = "",
    **ingestor: Any,
) -> AsyncIterator[Chain]:
    """A relay, a gateway and an exchange while the block runs; no ingestor.

    Args:
        sim: Settings of the simulated exchange.
        relay: Settings of the relay; by default, its leases last longer than a test.
        venue: More about the venue in the exchanges file.
        url: Of another exchange that is asked instead.
        ingestor: Settings of the ingestors.
    """
    gateway = FakeGateway()
    async with (
        running_sim(**(sim or {})) as exchange,
        grpc_peer(lambda s: pixy_rpc.add_KafkaPixyServicer_to_server(gateway, s)) as gateway_at,
        suite(folder, **{"lease_seconds": 3600, **(relay or {})}) as made,
    ):
        settings = {
            **FAST,
            "broker": made.running.broker_address,
            "gateway": gateway_at,
            "relay": made.running.address,
            "exchanges": exchanges_file(folder, url or exchange.url, **{"slots": 4, **(venue or {})}),
            "rate_limit_dir": folder / "budgets",
            "page_candles": 100,
            **ingestor,
        }
        yield Chain(made, gateway, exchange, settings)
        gateway.gate.set()


@asynccontextmanager
async def whole(folder: Path, *, upsert: bool = False, **settings: Any) -> AsyncIterator[Whole]:
    """The chain with an ingestor and Spark's part while the block runs.

    Args:
        upsert: Rows of candles that are fetched again replace the earlier ones.
        settings: See `chain`.
    """
    async with (
        chain(folder, **settings) as there,
        AsyncClient(there.suite.running.address) as client,
        asyncio.TaskGroup() as group,
    ):
        stop, landing = asyncio.Event(), Landing(there.suite, there.gateway, upsert=upsert)
        working = group.create_task(work(IngestorSettings(**there.settings), stop))
        spark = group.create_task(landing.run())
        try:
            yield Whole(there.suite, there.gateway, there.sim, client, landing.tickers)
        finally:
            stop.set()
            with suppress(asyncio.CancelledError):
                await working
            spark.cancel()
