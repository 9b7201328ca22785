"""Clocks and made-up pages, through a real relay and Spark: only what the relay issued decides."""

from __future__ import annotations

import asyncio
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from dexorder_common.kafka.page_record import final_value, page_value
from dexorder_common.lake.claims import read_coverage
from dexorder_common.lake.tables import DEAD_LETTERS, OHLC
from dexorder_common.model.dispatch_id import new_dispatch_id, number_of
from dexorder_common.model.page import Candle, Kind, PageHeaders
from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.times import SECOND_NS
from dexorder_protos.dexorder.ingest.v1 import ingest_pb2 as ingest
from dexorder_protos.dexorder.relay.v1 import coverage_service_pb2 as coverage_pb
from dexorder_protos.dexorder.relay.v1 import operator_service_pb2 as operator_pb
from dexorder_spark.pipeline.batch import Pipeline
from dexorder_spark.records.reporter import RelayReporter
from dexorder_spark.source.records import RAW, RAW_DDL
from dexorder_spark.tables.ohlc import CANDLES
from dexorder_spark.tables.table import ensure_tables
from tests.series_messages import series
from tests.unit.services.relay.harness import TICKER, Suite, at, catalog_settings, minute, request, suite

pytestmark = pytest.mark.spark
OK = ingest.HistoryReadyNotification.OK
YEAR_NS = 365 * 86_400 * SECOND_NS
MINUTE_NS = 60 * SECOND_NS
Record = tuple[bytes, PageHeaders]


class Spark:
    """The pipeline of one relay; each batch continues where the last one ended."""

    def __init__(self, session: SparkSession, s: Suite, folder: Path) -> None:
        self.catalog = s.pipeline.catalog
        ensure_tables(self.catalog)
        self._session = session
        self._pipeline = Pipeline(
            CANDLES, catalog_settings(folder), "test", RelayReporter(s.running.address, threading.Event())
        )
        self._offset = 0

    async def process(self, *records: Record) -> None:
        rows = []
        for payload, head in records:
            rows.append(
                {
                    "payload": payload,
                    "key": head.dispatch_id,
                    "headers": list(head.encode().items()),
                    "event_time": 0,
                    "partition": 0,
                    "offset": self._offset,
                }
            )
            self._offset += 1
        frame = self._session.createDataFrame(pa.Table.from_pylist(rows, schema=RAW), RAW_DDL)
        await asyncio.to_thread(self._pipeline.process, frame)

    def prices(self) -> dict[int, float]:
        rows = OHLC.rows(self.catalog.load_table(OHLC.name).scan().to_arrow())
        assert all(row["fetched_at"] <= time.time_ns() // 1_000 for row in rows), "no fetch is in the future"
        found = {minute(row["open_time"] * 1_000): row["close"] for row in rows}
        assert len(found) == len(rows)
        return found

    def claims(self) -> int:
        return sum(part.num_rows for part in read_coverage(self.catalog))

    def letters(self) -> dict[int, str]:
        rows = self.catalog.load_table(DEAD_LETTERS.name).scan().to_arrow().to_pylist()
        return {row["offset"]: row["reason"] for row in rows}


def page(job_id: str, start: int, end: int, price: float, fetched_ns: int, ticker: str = TICKER) -> Record:
    head = PageHeaders(Kind.PAGE, ticker, 60, job_id, 0, TimeRange(at(start), at(end)), fetched_ns)
    candles = [Candle(at(n), price, price, price, price, 1.0) for n in range(start, end)]
    return page_value("r", candles), head


def final(record: Record, status: Any = ingest.DataResponse.OK) -> Record:
    return final_value("r", status, 0), replace(record[1], kind=Kind.FINAL)


async def dispatched(s: Suite, call: Any) -> str:
    ingestor = s.ingestor()
    await ingestor.offer()
    await call
    return (await ingestor.take()).job_id


async def test_a_refresh_beats_an_ingestor_whose_clock_is_a_year_ahead(spark: SparkSession, tmp_path: Path) -> None:
    now_ns = time.time_ns()
    async with suite(tmp_path) as s:
        pipeline = Spark(spark, s, tmp_path)
        first = page(await dispatched(s, s.queued("first", 0, 10)), 0, 10, 1.0, now_ns + YEAR_NS)
        await pipeline.process(first, final(first))
        assert (await s.finished("first")).status == OK
        assert pipeline.prices() == dict.fromkeys(range(10), 1.0)
        again = operator_pb.RefreshHistoricalRequest(request=request("refresh", 0, 10))
        second = page(await dispatched(s, s.relay.operator.RefreshHistorical(again)), 0, 10, 2.0, now_ns - YEAR_NS)
        await pipeline.process(second, final(second))
        assert (await s.finished("refresh")).status == OK
        assert pipeline.prices() == dict.fromkeys(range(10), 2.0)
        await pipeline.process(first, final(first))
        assert pipeline.prices() == dict.fromkeys(range(10), 2.0), "a late copy of what was refreshed"
        assert number_of(second[1].dispatch_id) > number_of(first[1].dispatch_id) and pipeline.letters() == {}


async def test_records_that_no_dispatch_stands_behind_change_nothing(spark: SparkSession, tmp_path: Path) -> None:
    now_ns = time.time_ns()
    made_up = new_dispatch_id(2**61, "0" * 16)
    async with suite(tmp_path) as s:
        pipeline = Spark(spark, s, tmp_path)
        job_id = await dispatched(s, s.queued("r", 0, 10))
        good = page(job_id, 0, 10, 1.0, now_ns)
        hole = TimeRange(at(100), at(1_100))
        empty = (page_value("r", []), replace(good[1], dispatch_id=made_up, span=hole, empty=(hole,)))
        foreign = page(made_up, 0, 10, 9.0, now_ns + YEAR_NS)
        stolen = page(new_dispatch_id(number_of(job_id), "f" * 16), 0, 10, 9.0, now_ns)
        other = page(job_id, 0, 10, 9.0, now_ns, ticker="ETH/USDT.SIM")
        await pipeline.process(
            foreign, final(foreign), empty, page(job_id, 5, 15, 9.0, now_ns), other, stolen, good, final(stolen)
        )
        assert pipeline.prices() == dict.fromkeys(range(10), 1.0)
        assert pipeline.claims() == 1
        letters = pipeline.letters()
        assert letters.keys() == {0, 1, 2, 3, 4, 5, 7}
        assert all("was not issued" in letters[offset] for offset in (0, 1, 2, 5, 7))
        assert "is outside" in letters[3] and "ETH/USDT.SIM" in letters[4]
        known = coverage_pb.StreamCoverageRequest(series=series(TICKER, 60))
        found = [each async for answer in s.relay.coverage.StreamCoverage(known) for each in answer.ranges]
        assert [(minute(each.start_ns), minute(each.end_ns)) for each in found] == [(0, 10)]
        await pipeline.process(final(good))
        record = await s.finished("r")
        assert (record.status, record.row_count) == (OK, 10)


async def test_a_page_from_the_future_is_refused_and_its_range_is_missing(spark: SparkSession, tmp_path: Path) -> None:
    async with suite(tmp_path) as s:
        pipeline = Spark(spark, s, tmp_path)
        start = minute(time.time_ns() // MINUTE_NS * MINUTE_NS) + 10
        ahead = page(await dispatched(s, s.queued("r", start, start + 5)), start, start + 5, 1.0, 1)
        await pipeline.process(ahead, final(ahead))
        record = await s.finished("r")
        assert record.status == ingest.HistoryReadyNotification.ERROR and "ends in the future" in record.error_message
        assert pipeline.prices() == {} and pipeline.claims() == 0
        assert ["ends in the future" in reason for reason in pipeline.letters().values()] == [True]
