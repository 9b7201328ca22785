"""Archive of the classes that Spark's driver loads; see `dexorder.setup.class_archive`.

``python -m dexorder_spark.runtime.class_archive``, which ``make classes`` calls, runs a session and a streaming batch
once and writes the archive.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dexorder.setup import class_archive
from dexorder_common.lake.catalog import CatalogSettings
from dexorder_spark.runtime.home import write_home

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def run_driver(new: Path) -> None:
    """Run a streaming batch through Python workers, in a Java that archives its classes when it ends."""
    from dexorder_spark.config import SparkSettings
    from dexorder_spark.runtime.session import build_session  # it imports this module

    settings = SparkSettings(listen="127.0.0.1:0", metrics_listen="")
    catalog = CatalogSettings.local(new.parent)
    session = build_session(settings, catalog, java_options=class_archive.options_to_write(new))
    _stream_once(session, new.with_suffix(".checkpoint"))
    gateway: Any = session.sparkContext._gateway
    session.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(class_archive.TIMEOUT_S)


def _stream_once(session: SparkSession, checkpoint: Path) -> None:
    def batch(rows: DataFrame, _: int) -> None:
        rows.mapInArrow(lambda batches: batches, rows.schema).collect()

    rows = session.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()
    query = rows.writeStream.foreachBatch(batch).option("checkpointLocation", str(checkpoint)).start()
    while query.lastProgress is None and query.isActive:
        time.sleep(0.05)
    query.stop()


if __name__ == "__main__":
    write_home()  # the archive fits one class path, the home's
    sys.exit(class_archive.main("dexorder_spark.runtime.class_archive", class_archive.spark_program(), run_driver))
