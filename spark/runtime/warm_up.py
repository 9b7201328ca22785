"""Tiny batches through throw-away tables, so that the first real one does not pay for cold code."""

from __future__ import annotations

import secrets
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

from services.common.kafka.page_record import page_value
from services.common.lake.catalog import CatalogSettings
from services.common.model.page import Candle, Kind, PageHeaders
from services.common.model.time_range import TimeRange
from spark.pipeline.batch import Pipeline
from spark.pipeline.reporter import FinalReport, PageReport
from spark.runtime.catalog import catalog_conf
from spark.source.records import RAW, RAW_DDL
from spark.tables.definitions import ensure_tables

_MINUTE_NS = 60_000_000_000


class _Nobody:
    def report(self, snapshot_id: int | None, pages: Sequence[PageReport], finals: Sequence[FinalReport]) -> None:
        """Drop it."""


def warm_up(session: SparkSession, *, merge: bool = False) -> None:
    """Append a page, in a catalog of its own that is deleted afterwards. Local masters only.

    Args:
        merge: Then merge it, which takes Java several times as long; few batches need it.
    """
    folder = Path(tempfile.mkdtemp(prefix="dexorder-warm-up-"))
    catalog = CatalogSettings.local(folder, f"dexorder_warm_up_{secrets.token_hex(4)}")
    try:
        ensure_tables(catalog.load())
        for key, value in catalog_conf(catalog).items():
            session.conf.set(key, value)
        pipeline = Pipeline(catalog, "warm-up", _Nobody())
        for fetched_ns in (_MINUTE_NS, 2 * _MINUTE_NS)[: 1 + merge]:
            arrow = pa.Table.from_batches([_page(fetched_ns)])
            pipeline.process(session.createDataFrame(arrow, RAW_DDL))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _page(fetched_ns: int, candles: int = 100) -> pa.RecordBatch:
    span = TimeRange(0, candles * _MINUTE_NS)
    control = PageHeaders(Kind.PAGE, "WARM/UP.NONE", 60, "warm-up", 0, span, fetched_ns)
    value = page_value("warm-up", [Candle(i * _MINUTE_NS, 1.0, 2.0, 0.5, 1.5, 1.0) for i in range(candles)])
    record = {
        "payload": value,
        "key": "warm-up",
        "headers": list(control.encode().items()),
        "event_time": 0,
        "partition": 0,
        "offset": 0,
    }
    return pa.RecordBatch.from_pylist([record], schema=RAW)
