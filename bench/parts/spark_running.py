"""A running query from a preloaded topic to the pipeline's table, through our source and through Spark's own."""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from bench.parts import spark_append
from bench.parts.sink import NoReporter
from bench.parts.spark_rows import Stage
from bench.parts.spark_upsert import open_catalog
from dexorder_common.lake.tables import OHLC
from dexorder_common.model.page import MAX_PAGE_CANDLES
from dexorder_spark.config import SparkSettings
from dexorder_spark.pipeline.batch import DecodedBatch, Pipeline
from dexorder_spark.pipeline.page_source import page_source
from dexorder_spark.source.client import SourceClient
from dexorder_spark.table_driver import CommitThread, QueryRules, start_query
from dexorder_spark.tables.ohlc import CANDLES
from tests.rig.report import Row, table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

BATCHES = 8
_SIDES = ("ours", "kafka")
_TIMEOUT_SECONDS = 300.0
_RAW = (
    "value AS payload",
    "cast(key AS string) AS key",
    "map_from_entries(transform(headers, h -> struct(h.key, cast(h.value AS string)))) AS headers",
    "timestamp AS event_time",
    "partition",
    "offset",
)


def rates(stage: Stage, pages: int, rounds: int) -> str:
    """Measure both sides in turn, after a warm-up round; each batch is committed beside the decoding of the next."""
    found: dict[str, list[float]] = defaultdict(list)
    for number in range(1 + rounds):
        for side in _SIDES[:: 1 if number % 2 == 0 else -1]:
            found[side].append(run(stage, side, number, pages))
    ours, kafka = (found[side][1:] for side in _SIDES)
    ratio = statistics.median(ours) / statistics.median(kafka)
    title = (
        f"A running query, {pages:,} pages in batches of {pages // BATCHES}; limit: Spark's Kafka source, same pipeline"
    )
    return table(
        title,
        [
            Row(
                f"rows/s after the first batch, {rounds} rounds",
                spark_append.rates(ours),
                spark_append.rates(kafka),
                f"{ratio:.2f}",
                "at least 1",
            )
        ],
    )


def run(stage: Stage, side: str, number: int, pages: int) -> float:
    """Return the rows per second from the first commit to the last one."""
    catalog = open_catalog(stage.session, stage, f"running_{side}_{number}")
    pipeline = Pipeline(CANDLES, catalog, stage.source, NoReporter())
    ends: list[tuple[float, int]] = []

    def commit(batch: DecodedBatch) -> None:
        rows = pipeline.commit(batch).rows
        ends.append((time.perf_counter(), rows))

    commits = CommitThread(commit)

    def process(frame: DataFrame) -> None:
        batch = pipeline.decode(frame)
        commits.wait()
        commits.submit(batch)

    if side == "ours":
        stage.session.dataSource.register(page_source(CANDLES, catalog))
        settings = SparkSettings(source=stage.source, max_records_per_batch=pages // BATCHES)
        start = pipeline.resume(SourceClient(stage.source).state())
        query = start_query(stage.session, CANDLES, QueryRules.of(CANDLES, settings), process, start)
    else:
        options: dict[str, Any] = {
            "kafka.bootstrap.servers": stage.bootstrap,
            "subscribe": stage.topic,
            "startingOffsets": "earliest",
            "kafka.fetch.max.wait.ms": "10",
            "maxOffsetsPerTrigger": pages // BATCHES,
            "includeHeaders": "true",
        }
        raw = stage.session.readStream.format("kafka").options(**options).load().selectExpr(*_RAW)
        query = (
            raw.writeStream.foreachBatch(lambda frame, _: process(frame)).trigger(processingTime="0 seconds").start()
        )
    deadline = time.monotonic() + _TIMEOUT_SECONDS
    while sum(rows for _, rows in ends) < pages * MAX_PAGE_CANDLES:
        if not query.isActive or commits.has_failed or time.monotonic() > deadline:
            raise AssertionError(f"{side}: {query.status}, {query.exception()}")
        time.sleep(0.01)
    query.stop()
    commits.close()
    if (rows := catalog.load().load_table(OHLC.name).scan().count()) != pages * MAX_PAGE_CANDLES:
        raise AssertionError(f"{side} wrote {rows} rows")
    return sum(rows for _, rows in ends[1:]) / (ends[-1][0] - ends[0][0])
