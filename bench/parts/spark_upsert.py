"""The pipeline's upsert: end-to-end latency of new and of replayed ranges, and its time in large tables."""

from __future__ import annotations

import random
import statistics
import time
from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from confluent_kafka import Producer

from bench.parts.latency import candles
from bench.parts.sink import NoReporter
from bench.parts.spark_rows import Stage, Watched, produce, wait_idle
from dexorder_common.kafka.page_record import page_value
from dexorder_common.lake.catalog import CatalogSettings
from dexorder_common.lake.commit import commit_files
from dexorder_common.lake.tables import OHLC
from dexorder_common.model.page import MAX_PAGE_CANDLES, Kind, PageHeaders
from dexorder_common.model.time_range import TimeRange
from dexorder_common.model.times import SECOND_NS
from dexorder_spark.config import SparkSettings
from dexorder_spark.pipeline.batch import Pipeline
from dexorder_spark.pipeline.page_source import page_source
from dexorder_spark.runtime.session import catalog_conf
from dexorder_spark.source.client import SourceClient
from dexorder_spark.source.records import RAW, RAW_DDL
from dexorder_spark.table_driver import QueryRules, start_query
from dexorder_spark.tables.ohlc import CANDLES
from dexorder_spark.tables.table import ensure_tables
from tests.rig.dispatches import dispatch_id
from tests.rig.oracle import minutes
from tests.rig.report import Row, spread, table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

WARM_RANGES = 3
NEW_AIM_S, REPLAYED_AIM_S = 0.3, 0.4
FIRST_MINUTE = -900_000
PERIOD_SECONDS = 60
LARGE_ROWS = 100_000
COALESCED = 50_000
"""Number of rows up to which one task writes the plain append."""
_LOAD_ROWS_A_TASK = 1_250_000


def open_catalog(session: SparkSession, stage: Stage, name: str, snapshots: int = 0) -> CatalogSettings:
    """Create a catalog with the pipeline's tables, of which the candles have snapshots, and define it in Spark."""
    folder = stage.folder / name
    folder.mkdir()
    catalog = CatalogSettings.local(folder, name)
    tables = catalog.load()
    ensure_tables(tables)
    for _ in range(snapshots):
        commit_files(tables.load_table(OHLC.name))
    for key, value in catalog_conf(catalog).items():
        session.conf.set(key, value)
    return catalog


def latency(stage: Stage, runs: int, snapshots: int) -> str:
    """Measure each range when it is new and again for a later dispatch, up to the table's new snapshot."""
    catalog = open_catalog(stage.session, stage, "pipeline", snapshots)
    pipeline = Pipeline(CANDLES, catalog, stage.source, NoReporter())
    before = files_and_kib(stage.folder / "pipeline")

    def process(frame: DataFrame) -> None:
        pipeline.process(frame)

    stage.session.dataSource.register(page_source(CANDLES, catalog))
    rules = QueryRules.of(CANDLES, SparkSettings(source=stage.source))
    query = start_query(stage.session, CANDLES, rules, process, SourceClient(stage.source).state().ends)
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
    added, batches = files_and_kib(stage.folder / "pipeline"), 2 * (WARM_RANGES + runs)
    for kind, (files, kib) in added.items():
        what = f"{(files - before[kind][0]) / batches:.1f} files, {(kib - before[kind][1]) / batches:.1f} KiB"
        rows.append(Row(f"{kind} a batch, before maintenance", what))
    title = f"Produce to visible snapshot through the pipeline's upsert, {snapshots:,} older snapshots"
    return table(title, rows)


def files_and_kib(folder: Path) -> dict[str, tuple[int, float]]:
    """Return number and size of the files of a warehouse by kind."""
    paths = [path for path in folder.rglob("*") if path.is_file()]
    kinds = {
        "data": [path for path in paths if path.suffix == ".parquet"],
        "manifests": [path for path in paths if path.suffix == ".avro"],
        "table metadata": [path for path in paths if path.name.endswith(".metadata.json")],
    }
    return {kind: (len(each), sum(path.stat().st_size for path in each) / 1024) for kind, each in kinds.items()}


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


def in_table(stage: Stage, size: int, rounds: int, tickers: int, snapshots: int) -> str:
    """Measure batches that are new to a table of ``size`` rows, batches that it has, and plain appends of both.

    Our side is the whole pipeline: decode, write, report to no relay, coverage.
    """
    session, last = stage.session, size // tickers
    catalog, plain = (open_catalog(session, stage, f"{kind}_{size}", snapshots) for kind in ("upsert", "plain"))
    name, plain_name = (f"`{each.name}`.{OHLC.name}" for each in (catalog, plain))
    pipeline = Pipeline(CANDLES, catalog, "bench", NoReporter())
    loaded = Batch(0, tickers, 0, last, dispatch=1)
    loaded.frame(session, max(2, size // _LOAD_ROWS_A_TASK)).writeTo(name).append()
    seconds: dict[tuple[int, str], list[float]] = defaultdict(list)
    ways: dict[tuple[int, str], set[str]] = defaultdict(set)
    added = 0
    for number in range(1 + rounds):  # the first warms up
        for rows, batches in plan(number, last, tickers).items():
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
    if (found := session.table(name).count()) != loaded.rows + added:
        raise AssertionError(f"the table has {found} rows instead of {loaded.rows + added}")
    table_rows = []
    for (rows, kind), seen in ways.items():
        took, alone = (statistics.median(seconds[rows, each]) for each in (kind, "plain"))
        what = f"{rows:,} rows, {kind}: {' and '.join(sorted(seen))}"
        table_rows.append(Row(what, f"{took:.2f} s", f"{alone:.2f} s", f"{took / alone:.1f}"))
    title = (
        f"Upsert into {loaded.rows:,} rows of {tickers} tickers, {snapshots:,} older snapshots, medians of {rounds};"
        " limit: the same rows by a plain append"
    )
    return table(title, table_rows)


def plan(number: int, last: int, tickers: int) -> dict[int, dict[str, Batch]]:
    """Return the batches of a round by size and kind; ``disjoint`` batches of two rounds have no common key.

    Args:
        number: Number of the round.
        last: Minutes of each ticker that were loaded.
    """
    each = min(25, last // MAX_PAGE_CANDLES) * MAX_PAGE_CANDLES
    many = LARGE_ROWS // each
    small = Batch(number % tickers, 1, last // 2, MAX_PAGE_CANDLES, dispatch=2 + number)
    large = Batch(number * many % (tickers - many + 1), many, 0, each, dispatch=2 + number)
    behind = last + 2 * number * each
    return {
        small.rows: {"disjoint": replace(small, first_minute=behind), "overlapping": small},
        large.rows: {"disjoint": replace(large, first_minute=behind + MAX_PAGE_CANDLES), "overlapping": large},
    }
