"""``python -m spark.runtime.rehearsal``: run a driver's start once, and keep the Java classes it took.

``make classes`` calls it. It is a gain of time only: a Java that can not do it (one without an archive of its own
classes) is told of, and ends well.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pyspark
from pyspark.sql import DataFrame, SparkSession

from dexorder.setup.config import SetupError
from dexorder.setup.java import find_java
from services.common.lake.catalog import CatalogSettings
from spark.config import SparkSettings
from spark.runtime.class_archive import archive_of
from spark.runtime.session import build_session
from spark.runtime.warm_up import warm_up

_LONGEST_S = 600


def main() -> int:
    """Without an argument: make the archive if there is none. With one: the rehearsal that writes to that path."""
    if len(sys.argv) > 1:
        rehearse(Path(sys.argv[1]))
        return 0
    started = time.monotonic()
    try:
        java = find_java()
    except SetupError as error:
        print(f"spark.runtime.rehearsal: {error}", file=sys.stderr)
        return 1
    outcome = ensure(archive_of(java))
    print(f"[{time.monotonic() - started:5.1f} s] classes of Spark {pyspark.__version__}: {outcome}", flush=True)
    return 0


def ensure(archive: Path) -> str:
    """Make the archive if it is not there; says in a few words what came of it."""
    if archive.is_file():
        return "archived"
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=archive.parent, prefix=".new-") as scratch:
        fresh = Path(scratch) / archive.name
        try:
            # A process of its own: the archive is written when its Java ends.
            command = [sys.executable, "-m", "spark.runtime.rehearsal", str(fresh)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=_LONGEST_S, check=False)
        except subprocess.TimeoutExpired:
            return f"not archived within {_LONGEST_S} s, drivers start slower"
        if not fresh.is_file():
            lines = done.stderr.strip().splitlines() or ["Java wrote nothing"]
            return f"not archived, drivers start slower: {lines[-1][:200]}"
        fresh.replace(archive)
    return f"archived, {archive.stat().st_size >> 20} MiB"


def rehearse(fresh: Path) -> None:
    """A driver's start, its warm-up and a streaming batch, in a Java that keeps their classes when it ends."""
    settings = SparkSettings(listen="127.0.0.1:0", metrics_listen="")
    catalog = CatalogSettings.local(fresh.parent)
    session = build_session(settings, catalog, java_options=[f"-XX:ArchiveClassesAtExit={fresh}"])
    warm_up(session, merge=True)
    _stream_once(session, fresh.with_suffix(".checkpoint"))
    gateway: Any = session.sparkContext._gateway
    session.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(_LONGEST_S)


def _stream_once(session: SparkSession, checkpoint: Path) -> None:
    def batch(rows: DataFrame, _: int) -> None:
        rows.collect()

    rows = session.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()
    query = rows.writeStream.foreachBatch(batch).option("checkpointLocation", str(checkpoint)).start()
    while query.lastProgress is None and query.isActive:
        time.sleep(0.05)
    query.stop()


if __name__ == "__main__":
    sys.exit(main())
