"""(c) A preloaded topic to Iceberg, beside the same read and decode to a sink that drops everything."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from confluent_kafka import Producer

from bench.parts.latency import candles
from dexorder_common.kafka.page_record import page_value
from dexorder_common.lake.catalog import CatalogSettings
from dexorder_common.model import datasets
from dexorder_common.model.history import IssuedDispatch, PageResult
from dexorder_common.model.page import MAX_PAGE_CANDLES, Kind, PageHeaders
from dexorder_spark.config import SparkSettings
from dexorder_spark.pipeline.batch import Pipeline
from dexorder_spark.pipeline.controls import DECODED_DDL
from dexorder_spark.pipeline.decode import decode_batches
from dexorder_spark.records.reporter import FinalReport
from dexorder_spark.runtime.session import build_session, catalog_conf
from dexorder_spark.tables.ohlc import CANDLES
from dexorder_spark.tables.table import ensure_tables
from tests.rig.dispatches import dispatch_id, issued
from tests.rig.oracle import minutes
from tests.rig.report import Row, table
from tests.rig.suite import Suite

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROUNDS = 6
FIRST_MINUTE = -1_000_000


class NoReporter:
    """Relay that knows every dispatch and drops every report."""

    def describe(self, dispatch_ids: Collection[str]) -> dict[str, IssuedDispatch]:
        """Return the dispatches that their ids describe."""
        return issued(dispatch_ids)

    def report(self, snapshot_id: int | None, pages: Sequence[PageResult], finals: Sequence[FinalReport]) -> None:
        """Drop the report."""


def measure(suite: Suite, pages: int) -> str:
    """Run a warm-up round, then alternating rounds (Java compiles during some); return the ratio of the best ones."""
    preload(suite.address("kafka"), pages)
    settings = SparkSettings(listen="127.0.0.1:0", metrics_listen="")
    iceberg, dropped = rounds(settings, suite.address("udsource"), ROUNDS)
    total = pages * MAX_PAGE_CANDLES
    ours, limit = (total / min(times[1:]) for times in (iceberg, dropped))
    row = Row(
        f"{total:,} candles in {pages} pages, one batch, fresh table each round",
        f"{ours:,.0f} rows/s",
        f"{limit:,.0f} rows/s",
        f"{ours / limit:.2f}",
        "at least 0.5",
    )
    return table("(c) Preloaded topic to Iceberg; limit: the same read and decode to a no-op sink", [row])


def rounds(settings: SparkSettings, source: str, count: int) -> tuple[list[float], list[float]]:
    """Return the seconds of each round into Iceberg, and of those that drop the candles; the first one warms up."""
    iceberg, dropped = [], []
    with tempfile.TemporaryDirectory() as scratch:
        session = build_session(settings, CatalogSettings.local(Path(scratch)))
        try:
            for number in range(1 + count):
                folder = Path(scratch) / str(number)
                folder.mkdir()
                dropped.append(drain(session, source, folder / "dropped", drop))
                iceberg.append(drain(session, source, folder / "iceberg", into_iceberg(session, source, folder)))
        finally:
            session.stop()
    return iceberg, dropped


def preload(bootstrap: str, pages: int) -> None:
    """Write pages of one job each, so that they spread over the partitions."""
    producer = Producer({"bootstrap.servers": bootstrap, "partitioner": "fnv1a_random", "compression.codec": "lz4"})
    for number in range(pages):
        span = minutes(FIRST_MINUTE + number * MAX_PAGE_CANDLES, MAX_PAGE_CANDLES)
        control = PageHeaders(Kind.PAGE, "BTC/USDT.SIM", 60, dispatch_id(number + 1, "BTC/USDT.SIM"), 0, span, 1)
        headers: list[Any] = [(name, value.encode()) for name, value in control.encode().items()]
        producer.produce(
            datasets.CANDLES.topic, page_value("preload", candles(span)), control.dispatch_id.encode(), headers=headers
        )
        producer.poll(0)
    if left := producer.flush(60):
        raise AssertionError(f"{left} pages were not written")


def drain(session: SparkSession, source: str, folder: Path, process: Callable[[DataFrame], object]) -> float:
    """Return the seconds of one batch with the whole topic, from planning to Spark's commit log."""

    def batch(raw: DataFrame, _: int) -> None:
        process(raw)

    stream = session.readStream.format("udsource").options(address=source, drain="true", startingOffsets="earliest")
    writer = stream.load().writeStream.foreachBatch(batch)
    query = writer.option("checkpointLocation", str(folder)).trigger(availableNow=True).start()
    query.awaitTermination()
    progress: Any = max(query.recentProgress, key=lambda each: each.numInputRows)
    return float(progress.durationMs["triggerExecution"]) / 1_000


def drop(raw: DataFrame) -> None:
    """Decode in the workers and drop the candles; collect the control rows in the driver, as the pipeline does."""

    def run(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return decode_batches(CANDLES, batches, lambda page: None, lambda record, reason: None)

    raw.coalesce(raw.sparkSession.sparkContext.defaultParallelism).mapInArrow(run, DECODED_DDL).collect()


def into_iceberg(session: SparkSession, source: str, folder: Path) -> Callable[[DataFrame], object]:
    """Return the pipeline on new tables."""
    catalog = CatalogSettings.local(folder, f"bench{folder.name}")
    ensure_tables(catalog.load())
    for key, value in catalog_conf(catalog).items():
        session.conf.set(key, value)
    return Pipeline(CANDLES, catalog, source, NoReporter()).process
