"""Files of an installation with which Spark starts faster: its home, and an archive of the classes that it loads.

Spark puts ``$SPARK_HOME/python/lib/pyspark.zip`` first on the path of each Python process it starts. A module in an
archive is compiled again in every process, which takes 0.5 s of processor time for each of the four that start with the
driver. Before the first data source, Spark also starts one to look for packages named ``pyspark_*``, unless the archive
is missing. Our home has links to everything but the archive, so that these processes load the installed package.

``python -m dexorder_spark.runtime.class_archive``, which ``make classes`` calls, creates the home, runs a session and a
streaming batch once and writes the archive of classes (`dexorder.setup.class_archive`).
"""

from __future__ import annotations

import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyspark

from dexorder.setup import class_archive
from dexorder_common.lake.catalog import CatalogSettings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

HOME = Path(sys.prefix).resolve() / "share" / "dexorder" / f"spark-home-{pyspark.__version__}"
_LINKED = ("bin", "jars")


def write_home(home: Path = HOME) -> None:
    """Create the home for the installed pyspark; links of an earlier installation are replaced."""
    package = Path(pyspark.__file__).resolve().parent
    home.mkdir(parents=True, exist_ok=True)
    for name in _LINKED:
        new = home / f".{name}"
        new.unlink(missing_ok=True)
        new.symlink_to(package / name)
        new.replace(home / name)


def home_environment(home: Path = HOME) -> dict[str, str]:
    """Return the variables with which Spark uses the home; none if it was not created, or Python needs the archive."""
    usable = (home / "bin" / "spark-submit").is_file() and all(find_spec(name) for name in ("pyspark", "py4j"))
    return {"SPARK_HOME": str(home)} if usable else {}


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
