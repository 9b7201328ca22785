"""The pipeline's upsert: end-to-end latency of new and of replayed ranges, and its time in large tables."""

from __future__ import annotations

import random
import statistics
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from confluent_kafka import Producer

from bench.parts.latency import candles
from bench.parts.sink import NoReporter
from bench.parts.spark_rows import Stage, Watched, produce, wait_idle
from dexorder.testing.dispatches import dispatch_id
from dexorder.testing.oracle import minutes
from dexorder.testing.report import Row, spread, table
from services.common.kafka.page_record import page_value
from services.common.lake.catalog import CatalogSettings
from services.common.lake.tables import OHLC
from services.common.model.page import MAX_PAGE_CANDLES, Kind, PageHeaders
from services.common.model.time_range import TimeRange
from services.common.model.times import SECOND_NS
from spark.pipeline.batch import Pipeline
from spark.runtime.session import catalog_conf
from spark.source.records import RAW, RAW_DDL
from spark.tables.ohlc import CANDLES
from spark.tables.table import ensure_tables

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

WARM_RANGES = 3
NEW_AIM_S, REPLAYED_AIM_S = 0.5, 0.8
FIRST_MINUTE = -900_000
TICKERS = 20
PERIOD_SECONDS = 60
COALESCED = 50_000
"""Number of rows up to which one task writes the plain append."""
_LOAD_ROWS_A_TASK = 1_250_000


def open_catalog(session: SparkSession, stage: Stage, name: str) -> CatalogSettings:
    """Create a catalog with the pipeline's tables, and define it in Spark."""
    folder = stage.folder / name
    folder.mkdir()
    catalog = CatalogSettings.local(folder, name)
    ensure_tables(catalog.load())
    for key, value in catalog_conf(catalog).items():
        session.conf.set(key, value)
    return catalog


def latency(stage: Stage, runs: int) -> str:
    """Measure each range when it is new and again with a later fetch time, up to the table's new snapshot."""
    catalog = open_catalog(stage.session, stage, "pipeline")
    pipeline = Pipeline(CANDLES, catalog, stage.source, NoReporter())

    def process(raw: DataFrame, _: int) -> None:
        pipeline.process(raw)

    stream = stage.session.readStream.format("udsource").options(address=stage.source, startingOffsets="latest").load()
    writer = stream.writeStream.foreachBatch(process).option("checkpointLocation", str(stage.folder / "pipeline-log"))
    query = writer.trigger(processingTime="0 seconds").start()
    watched = Watched(stage.folder / "pipeline" / "catalog.db", "ohlc")
    producer = Producer({"bootstrap.servers": stage.bootstrap, "linger.ms": 0})
    jitter, seconds = random.Random(0), defaultdict[str, list[float]](list)
    try:
        for number in range(WARM_RANGES + runs):
            span = minutes(FIRST_MINUTE + number * MAX_PAGE_CANDLES, MAX_PAGE_CANDLES)
            for kind in ("new", "replayed"):
                wait_idle(query)
                time.sleep(jitter.uniform(0, 0.1))

                def act(span: TimeRange = span) -> None:
                    produce(producer, stage.topic, span)

                seconds[kind].append(watched.seconds_until_snapshot(query, act))
    finally:
        query.stop()
    found = stage.session.table(f"{catalog.name}.{OHLC.name}").count()
    if found != (WARM_RANGES + runs) * MAX_PAGE_CANDLES:
        raise AssertionError(f"the table has {found} rows")
    rows = []
    for kind, aim_s in (("new", NEW_AIM_S), ("replayed", REPLAYED_AIM_S)):
        warm = seconds[kind][WARM_RANGES:]
        verdict = "ok" if statistics.median(warm) <= aim_s else "short"
        rows.append(
            Row(
                f"{kind} range of {MAX_PAGE_CANDLES:,} rows, {runs} runs",
                spread(warm),
                aim=f"p50 <= {aim_s} s: {verdict}",
            )
        )
    return table("Produce to visible snapshot through the pipeline's upsert", rows)


@dataclass(frozen=True)
class Batch:
    """A block of candles: some minutes of some adjacent tickers."""

    first_ticker: int
    tickers: int
    first_minute: int
    minutes: int
    dispatch: int

    @property
    def rows(self) -> int:
        """Number of candles."""
        return self.tickers * self.minutes

    def frame(self, session: SparkSession, tasks: int) -> DataFrame:
        """Return the rows in the columns of the table, ascending by time; Spark's expressions create them."""
        minute = f"({self.first_minute} + id div {self.tickers})"
        start_s = minutes(0, 0).start_ns // SECOND_NS
        return session.range(0, self.rows, 1, tasks).selectExpr(
            f"concat('T', cast({self.first_ticker} + id % {self.tickers} AS string), '/USDT.BENCH') AS ticker",
            f"{PERIOD_SECONDS} AS period_seconds",
            f"timestamp_seconds({start_s} + {minute} * {PERIOD_SECONDS}) AS open_time",
            "100D + id % 977 AS open",
            "101D + id % 977 AS high",
            "99D + id % 977 AS low",
            "100.5D + id % 977 AS close",
            "cast(id % 1009 AS double) / 7 AS volume",
            "cast(NULL AS double) AS quote_volume",
            "cast(NULL AS bigint) AS trades",
            "timestamp_seconds(1) AS fetched_at",
            f"{self.dispatch}L AS dispatch",
            "0 AS page",
        )

    def records(self, session: SparkSession) -> DataFrame:
        """Return the same keys as the pipeline's input: a record for each page."""
        rows: list[dict[str, Any]] = []
        for ticker in range(self.first_ticker, self.first_ticker + self.tickers):
            for start in range(self.first_minute, self.first_minute + self.minutes, MAX_PAGE_CANDLES):
                span = minutes(start, MAX_PAGE_CANDLES)
                control = PageHeaders(
                    Kind.PAGE,
                    f"T{ticker}/USDT.BENCH",
                    PERIOD_SECONDS,
                    dispatch_id(self.dispatch, f"T{ticker}/USDT.BENCH"),
                    len(rows),
                    span,
                    SECOND_NS,
                )
                rows.append(
                    {
                        "payload": page_value("bench", candles(span)),
                        "key": "bench",
                        "headers": list(control.encode().items()),
                        "event_time": 0,
                        "partition": 0,
                        "offset": len(rows),
                    }
                )
        return session.createDataFrame(pa.Table.from_pylist(rows, schema=RAW), RAW_DDL)


def by_size(stage: Stage, sizes: list[int], rounds: int) -> Iterator[str]:
    """Yield a result table for each size."""
    for size in sizes:
        yield in_table(stage, size, rounds)


def in_table(stage: Stage, size: int, rounds: int) -> str:
    """Measure batches that are new to a table of ``size`` rows, batches that it has, and plain appends of both.

    Our side is the whole pipeline: decode, write, report to no relay, coverage.
    """
    session, last = stage.session, size // TICKERS
    catalog, plain = (open_catalog(session, stage, f"{kind}_{size}") for kind in ("upsert", "plain"))
    name, plain_name = (f"`{each.name}`.{OHLC.name}" for each in (catalog, plain))
    pipeline = Pipeline(CANDLES, catalog, "bench", NoReporter())
    loaded = Batch(0, TICKERS, 0, last, dispatch=1)
    loaded.frame(session, max(2, size // _LOAD_ROWS_A_TASK)).writeTo(name).append()
    seconds: dict[tuple[int, str], list[float]] = defaultdict(list)
    ways: dict[tuple[int, str], set[str]] = defaultdict(set)
    added = 0
    for number in range(1 + rounds):  # the first warms up
        for rows, batches in plan(number, last).items():
            for kind, batch in batches.items():
                frame = batch.frame(session, 2).persist()
                frame.count()
                given, records = frame.coalesce(1) if rows <= COALESCED else frame, batch.records(session)
                started = time.perf_counter()
                given.writeTo(plain_name).append()
                appended = time.perf_counter()
                way = pipeline.process(records).path
                ended = time.perf_counter()
                frame.unpersist()
                added += rows if kind == "disjoint" else 0
                if number:
                    seconds[rows, kind].append(ended - appended)
                    seconds[rows, "plain"].append(appended - started)
                    ways[rows, kind].add(way)
    if (found := session.table(name).count()) != size + added:
        raise AssertionError(f"the table has {found} rows instead of {size + added}")
    table_rows = []
    for (rows, kind), seen in ways.items():
        took, alone = (statistics.median(seconds[rows, each]) for each in (kind, "plain"))
        what = f"{rows:,} rows, {kind}: {' and '.join(sorted(seen))}"
        table_rows.append(Row(what, f"{took:.2f} s", f"{alone:.2f} s", f"{took / alone:.1f}"))
    title = f"Upsert into {size:,} rows, medians of {rounds}; limit: the same rows by a plain append"
    return table(title, table_rows)


def plan(number: int, last: int) -> dict[int, dict[str, Batch]]:
    """Return the batches of a round by size and kind; ``disjoint`` batches of two rounds have no common key.

    Args:
        number: Number of the round, from 0 to 39.
        last: Minutes of each ticker that were loaded.
    """
    small = Batch(number % TICKERS, 1, last // 2, MAX_PAGE_CANDLES, dispatch=2 + number)
    large = Batch(4 * number % TICKERS, 4, 0, 25 * MAX_PAGE_CANDLES, dispatch=2 + number)
    behind = {  # first the small ones, whose tickers repeat after 20 rounds, then the large ones, after 5
        small: last + number // TICKERS * small.minutes,
        large: last + 2 * small.minutes + number // 5 * large.minutes,
    }
    return {
        each.rows: {"disjoint": replace(each, first_minute=start), "overlapping": each}
        for each, start in behind.items()
    }
