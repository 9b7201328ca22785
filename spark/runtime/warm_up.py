"""Small batches through temporary tables, so that the first real batch does not pay for cold code."""

from __future__ import annotations

import secrets
import shutil
import tempfile
from collections.abc import Collection, Sequence
from pathlib import Path

from pyspark.sql import SparkSession

from services.common.lake.catalog import CatalogSettings
from services.common.model.history import IssuedDispatch, PageResult
from spark.pipeline.batch import Pipeline
from spark.pipeline.reporter import FinalReport
from spark.pipeline.sample_page import SAMPLE_SERIES, SAMPLE_SPAN, sample_page
from spark.runtime.session import catalog_conf
from spark.source.records import RAW_DDL
from spark.tables.ohlc import CANDLES
from spark.tables.table import ensure_tables


class _NoRelay:
    def describe(self, dispatch_ids: Collection[str]) -> dict[str, IssuedDispatch]:
        """Return that each was issued for the page."""
        return {each: IssuedDispatch(each, SAMPLE_SERIES, SAMPLE_SPAN) for each in dispatch_ids}

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
            pipeline.process(session.createDataFrame(sample_page(dispatch), RAW_DDL))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
