"""Conversion of pages to plain rows, used with both sources, and the sources, for ``bench.spark_source``.

``decode_pages`` runs in Spark's workers, which import it from here.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from confluent_kafka import Producer

from bench.parts.latency import candles
from dexorder_common.kafka.page_record import page_value
from dexorder_common.lake.arrow_types import MICROSECONDS
from dexorder_common.model.page import Kind, PageHeaders
from dexorder_common.model.time_range import TimeRange
from dexorder_protos.dexorder.ingest.v1 import ingest_pb2 as pb
from dexorder_spark.source.udsource import decoding_source
from dexorder_spark.tables.ohlc import decode_candles
from tests.rig.dispatches import dispatch_id

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_PRICES = ("open", "high", "low", "close", "volume")
_FIELDS: list[pa.Field[Any]] = [
    pa.field("open_time", MICROSECONDS),
    *(pa.field(name, pa.float64()) for name in _PRICES),
]
ROWS = pa.schema(_FIELDS)
ROWS_DDL = f"open_time timestamp, {', '.join(f'{name} double' for name in _PRICES)}"
NAMESPACE = "bench"
_READING = ("Waiting for data to arrive", "Waiting for next trigger")
"""Status messages of an idle query."""
_POLL_SECONDS = 0.002
_TIMEOUT_SECONDS = 120.0


@dataclass(frozen=True)
class Stage:
    """Parts that every measurement needs.

    Attributes:
        catalog: Name of the catalog in Spark; its tables are in ``folder``.
        source: Address of udsource, which serves the topic.
    """

    session: SparkSession
    catalog: str
    folder: Path
    bootstrap: str
    topic: str
    source: str

    def make_table(self, name: str) -> str:
        """Create a table of plain rows; return its full name."""
        full = f"{self.catalog}.{NAMESPACE}.{name}"
        self.session.sql(f"CREATE NAMESPACE IF NOT EXISTS {self.catalog}.{NAMESPACE}")
        self.session.sql(f"CREATE TABLE {full} ({ROWS_DDL}) USING iceberg TBLPROPERTIES ('format-version' = '2')")
        return full


Read = Callable[[Stage, str], "DataFrame"]
"""Returns a stream of ``ROWS`` that starts at ``earliest`` or ``latest``."""


def ours(stage: Stage, start: str) -> DataFrame:
    """Decode where udsource is read; from ``earliest``, all records in one batch."""
    drain = str(start == "earliest").lower()
    stage.session.dataSource.register(decoding_source("bench-rows", ROWS_DDL, decode_pages))
    stream = stage.session.readStream.format("bench-rows").option(
        "minPartitions", stage.session.sparkContext.defaultParallelism
    )
    return stream.options(address=stage.source, startingOffsets=start, drain=drain).load()


def kafkas(stage: Stage, start: str) -> DataFrame:
    """Read through Spark's Kafka source, tuned: by default its fetches wait 500 ms for more records in every batch."""
    options = {
        "kafka.bootstrap.servers": stage.bootstrap,
        "subscribe": stage.topic,
        "startingOffsets": start,
        "kafka.fetch.max.wait.ms": "10",
    }
    return (
        stage.session.readStream.format("kafka")
        .options(**options)
        .load()
        .selectExpr("value AS payload")
        .mapInArrow(decode_pages, ROWS_DDL)
    )


SIDES: dict[str, Read] = {"ours": ours, "kafka": kafkas}


def decode_pages(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Convert payloads, each a page, to ``ROWS``; for ``mapInArrow``."""
    for batch in batches:
        payloads: list[Any] = batch.column("payload").to_pylist()
        pages = map(pb.DataResponse.FromString, payloads)
        columns = decode_candles([candle for page in pages for candle in page.ohlc_data])
        micros = (columns.column("open_time_ns").to_numpy() // 1_000).astype(np.int64)
        prices = [columns.column(name) for name in _PRICES]
        yield pa.record_batch([pa.array(micros).cast(MICROSECONDS), *prices], schema=ROWS)


def append(stream: DataFrame, table: str, checkpoint: Path, trigger: dict[str, Any]) -> StreamingQuery:
    """Start a query that appends the rows."""
    writer = stream.writeStream.outputMode("append")
    return writer.option("checkpointLocation", str(checkpoint)).trigger(**trigger).toTable(table)


def produce(producer: Producer, topic: str, span: TimeRange) -> None:
    """Write one page of a dispatch of its own, later than those before, and wait until Kafka has it."""
    now_ns = time.time_ns()
    control = PageHeaders(Kind.PAGE, "BTC/USDT.SIM", 60, dispatch_id(now_ns, "BTC/USDT.SIM"), 0, span, now_ns)
    headers: list[Any] = [(name, value.encode()) for name, value in control.encode().items()]
    producer.produce(topic, page_value("bench", candles(span)), control.dispatch_id.encode(), headers=headers)
    if producer.flush(_TIMEOUT_SECONDS):
        raise AssertionError("the page was not written")


def wait_idle(query: StreamingQuery) -> None:
    """Wait until the query is idle.

    Raises:
        AssertionError: The query ended or did not become idle.
    """
    deadline = time.monotonic() + _TIMEOUT_SECONDS
    while query.status["message"] not in _READING:
        if not query.isActive or time.monotonic() > deadline:
            raise AssertionError(f"the query is not idle: {query.status}, {query.exception()}")
        time.sleep(0.01)


class Watched:
    """A table of a catalog in SQLite, observed from outside Spark."""

    def __init__(self, catalog: Path, table: str) -> None:
        self._file = catalog
        self._table = table

    def seconds_until_snapshot(self, query: StreamingQuery, act: Callable[[], None]) -> float:
        """Return the seconds from the start of ``act`` until the table has a new snapshot.

        Raises:
            AssertionError: The query ended, or there was no snapshot.
        """
        with sqlite3.connect(self._file) as connection:
            before = self._metadata(connection)
            started = time.perf_counter()
            act()
            while self._metadata(connection) == before:
                spent = time.perf_counter() - started
                if spent > _TIMEOUT_SECONDS or not (spent < 1 or query.isActive):
                    raise AssertionError(f"no snapshot after {spent:.0f} s: {query.exception()}")
                time.sleep(_POLL_SECONDS)
            return time.perf_counter() - started

    def _metadata(self, connection: sqlite3.Connection) -> str:
        """Return the location of the table's metadata, which changes with every commit."""
        query = "SELECT metadata_location FROM iceberg_tables WHERE table_name = ?"
        (location,) = connection.execute(query, (self._table,)).fetchone()
        return str(location)
