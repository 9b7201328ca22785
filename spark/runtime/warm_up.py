"""Small batches through temporary tables, so that the first real batch does not pay for cold code."""

from __future__ import annotations

import secrets
import shutil
import tempfile
from collections.abc import Collection, Sequence
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

from services.common.kafka.page_record import page_value
from services.common.lake.catalog import CatalogSettings
from services.common.model.dispatch_id import new_dispatch_id
from services.common.model.history import IssuedDispatch, PageResult
from services.common.model.instrument import Series
from services.common.model.page import Candle, Kind, PageHeaders
from services.common.model.time_range import TimeRange
from spark.pipeline.batch import Pipeline
from spark.pipeline.reporter import FinalReport
from spark.runtime.session import catalog_conf
from spark.source.records import RAW, RAW_DDL
from spark.tables.ohlc import CANDLES
from spark.tables.table import ensure_tables

_MINUTE_NS = 60_000_000_000
_CANDLES = 100
_SERIES = Series("WARM/UP.NONE", 60)
_SPAN = TimeRange(0, _CANDLES * _MINUTE_NS)


class _NoRelay:
    def describe(self, dispatch_ids: Collection[str]) -> dict[str, IssuedDispatch]:
        """Return that each was issued for the page."""
        return {each: IssuedDispatch(each, _SERIES, _SPAN) for each in dispatch_ids}

    def report(self, snapshot_id: int | None, pages: Sequence[PageResult], finals: Sequence[FinalReport]) -> None:
        """Drop the report."""


def warm_up(session: SparkSession, *, merge: bool = False) -> None:
    """Append a page in a temporary catalog. Only for local masters.

    With ``merge`` it is merged afterwards: this takes Java several times as long, and few batches need it.
    """
    folder = Path(tempfile.mkdtemp(prefix="dexorder-warm-up-"))
    catalog = CatalogSettings.local(folder, f"dexorder_warm_up_{secrets.token_hex(4)}")
    try:
        ensure_tables(catalog.load())
        for key, value in catalog_conf(catalog).items():
            session.conf.set(key, value)
        pipeline = Pipeline(CANDLES, catalog, "warm-up", _NoRelay())
        for dispatch in (1, 2)[: 1 + merge]:
            arrow = pa.Table.from_batches([_page(dispatch)])
            pipeline.process(session.createDataFrame(arrow, RAW_DDL))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _page(dispatch: int) -> pa.RecordBatch:
    headers = PageHeaders(Kind.PAGE, *_SERIES, new_dispatch_id(dispatch, "0" * 16), 0, _SPAN, 1)
    value = page_value("warm-up", [Candle(i * _MINUTE_NS, 1.0, 2.0, 0.5, 1.5, 1.0) for i in range(_CANDLES)])
    record = {
        "payload": value,
        "key": "warm-up",
        "headers": list(headers.encode().items()),
        "event_time": 0,
        "partition": 0,
        "offset": 0,
    }
    return pa.RecordBatch.from_pylist([record], schema=RAW)
