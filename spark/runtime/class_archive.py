"""Archive of the driver's loaded Java classes, which makes later starts faster.

Most of a driver's start goes into finding, parsing and verifying the classes of Spark's jars. The JDK's class-data
sharing (JEP 350) saves them to a file that fits one Java and one class path. Java silently ignores a file that does not
fit, so nothing depends on it.

``python -m spark.runtime.class_archive``, which ``make classes`` calls, runs a session and a streaming batch once and
writes the archive. A Java that cannot write one is reported, with exit status 0.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyspark

from dexorder.setup.config import SetupError
from dexorder.setup.java import Java, find_java
from services.common.lake.catalog import CatalogSettings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_TIMEOUT_S = 600


def archive_of(java: Java) -> Path:
    """Return the path of the archive for one Java in this Python environment; the file may not exist."""
    return Path(sys.prefix) / "share" / "dexorder" / f"spark-{pyspark.__version__}-java-{java.version}.jsa"


def options_with(archive: Path) -> list[str]:
    """Return the Java options that use the archive; none if it does not exist."""
    if not archive.is_file() or " " in str(archive):  # Spark splits its options at blanks
        return []
    return [f"-XX:SharedArchiveFile={archive}", "-Xshare:auto", "-Xlog:cds=off", "-Xlog:cds+dynamic=off"]


def main() -> int:
    """Write the archive if it does not exist; with an argument, run the driver that writes to that path."""
    if len(sys.argv) > 1:
        run_driver(Path(sys.argv[1]))
        return 0
    started = time.monotonic()
    try:
        java = find_java()
    except SetupError as error:
        print(f"spark.runtime.class_archive: {error}", file=sys.stderr)
        return 1
    outcome = ensure(archive_of(java))
    print(f"[{time.monotonic() - started:5.1f} s] classes of Spark {pyspark.__version__}: {outcome}", flush=True)
    return 0


def ensure(archive: Path) -> str:
    """Write the archive if it does not exist; return the outcome in a few words."""
    if archive.is_file():
        return "archived"
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=archive.parent, prefix=".new-") as scratch:
        new = Path(scratch) / archive.name
        try:
            # In another process, as Java writes the archive when it ends.
            command = [sys.executable, "-m", "spark.runtime.class_archive", str(new)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
        except subprocess.TimeoutExpired:
            return f"not archived within {_TIMEOUT_S} s; drivers start more slowly"
        if not new.is_file():
            lines = done.stderr.strip().splitlines() or ["Java wrote nothing"]
            return f"not archived; drivers start more slowly: {lines[-1][:200]}"
        new.replace(archive)
    return f"archived, {archive.stat().st_size >> 20} MiB"


def run_driver(new: Path) -> None:
    """Run a streaming batch through Python workers, in a Java that archives its classes when it ends."""
    from spark.config import SparkSettings
    from spark.runtime.session import build_session  # it imports this module

    settings = SparkSettings(listen="127.0.0.1:0", metrics_listen="")
    catalog = CatalogSettings.local(new.parent)
    session = build_session(settings, catalog, java_options=[f"-XX:ArchiveClassesAtExit={new}"])
    _stream_once(session, new.with_suffix(".checkpoint"))
    gateway: Any = session.sparkContext._gateway
    session.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(_TIMEOUT_S)


def _stream_once(session: SparkSession, checkpoint: Path) -> None:
    def batch(rows: DataFrame, _: int) -> None:
        rows.mapInArrow(lambda batches: batches, rows.schema).collect()

    rows = session.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()
    query = rows.writeStream.foreachBatch(batch).option("checkpointLocation", str(checkpoint)).start()
    while query.lastProgress is None and query.isActive:
        time.sleep(0.05)
    query.stop()


if __name__ == "__main__":
    sys.exit(main())
