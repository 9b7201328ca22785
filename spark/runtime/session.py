"""The Spark session: Iceberg's catalog beside pyiceberg's, the jars, and the Python the workers run."""

from __future__ import annotations

import atexit
import logging
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from dexorder.setup.config import SetupError
from dexorder.setup.jars import jar_folder
from dexorder.setup.java import find_java, java_env
from services.common.lake.catalog import CatalogSettings
from services.common.model.errors import Conflict
from spark.config import SparkSettings
from spark.runtime.catalog import catalog_conf
from spark.runtime.class_archive import archive_of, options_with
from spark.runtime.package import write_packages
from spark.source.udsource import UdSource

_ROOT = Path(__file__).resolve().parents[2]


def session_conf(settings: SparkSettings, scratch: str, java_options: Sequence[str] = ()) -> dict[str, str]:
    """All of the session's settings but jars and catalog; ``scratch`` is a folder of this process."""
    conf = {
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.warehouse.dir": f"{scratch}/spark-warehouse",
        # Batches are small: planning them anew, spreading them and showing them costs more than it gives.
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.shuffle.partitions": str(settings.shuffle_partitions),
        "spark.sql.streaming.noDataMicroBatches.enabled": "false",
        "spark.sql.streaming.pollingDelay": f"{settings.poll_ms}ms",
        "spark.sql.streaming.stopTimeout": f"{int(settings.drain_seconds * 1_000)}ms",
        # MERGE carries tickers as literals; ${...} in one must stay text.
        "spark.sql.variable.substitute": "false",
        # A record is a page of about 70 kB.
        "spark.sql.execution.arrow.maxRecordsPerBatch": "128",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        # A batch is cached for the seconds until it is written; squeezing it took longer than reading it again.
        "spark.sql.inMemoryColumnarStorage.compressed": "false",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": settings.driver_memory,
        "spark.driver.extraJavaOptions": " ".join([*_java_options(scratch), *java_options]),
        "spark.executor.extraJavaOptions": "-Duser.timezone=UTC",
        # Spark's own expression misses the words of Iceberg's catalogs.
        "spark.redaction.regex": "(?i)secret|password|token|access.?key|credential|authorization",
    }
    if settings.is_local:
        conf |= {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.python.daemon.module": "spark.runtime.worker_daemon",
        }
    return conf


def _java_options(scratch: str) -> list[str]:
    return [
        "-Duser.timezone=UTC",
        # Pauses do not matter to batches, and Java's usual collector takes more CPU while a driver starts.
        "-XX:+UseParallelGC",
        # Six times Java's own thresholds: while a driver starts, the compiler of what runs often takes the cores its
        # first batches need. What runs all day passes these numbers all the same.
        "-XX:Tier4InvocationThreshold=30000",
        "-XX:Tier4MinInvocationThreshold=3600",
        "-XX:Tier4CompileThreshold=90000",
        "-XX:Tier4BackEdgeThreshold=240000",
        "-Xss4m",
        f"-Dderby.system.home={scratch}",
        # Java does not read TMPDIR, and a killed driver leaves its unpacked libraries there.
        f"-Djava.io.tmpdir={tempfile.gettempdir()}",
    ]


def build_session(
    settings: SparkSettings,
    catalog: CatalogSettings,
    *,
    extra: Mapping[str, str] | None = None,
    java_options: Sequence[str] | None = None,
) -> SparkSession:
    """Start the JVM, or take the one of ``spark-submit``, and register the data source. One session a process.

    Args:
        settings: The driver's.
        catalog: Where the tables are.
        extra: Settings of Spark beside ours.
        java_options: Options of Java beside ours; none for those of the archived classes, where there are some.

    Raises:
        Conflict: Java or the jars are not there; says how to get them.
    """
    jars: list[Path] = []
    if not settings.is_submitted:
        try:
            java, jars = find_java(), _jars(settings, catalog)
        except SetupError as error:
            raise Conflict(str(error)) from error
        os.environ.update(java_env(java))
        java_options = options_with(archive_of(java)) if java_options is None else java_options
    _prepare_python(settings)
    logging.getLogger("py4j").setLevel(logging.WARNING)
    scratch = tempfile.mkdtemp(prefix="dexorder-spark-")
    atexit.register(shutil.rmtree, scratch, ignore_errors=True)
    builder = SparkSession.builder.appName("dexorder")
    if not settings.is_submitted:
        builder = builder.master(settings.master)
    if jars:
        builder = builder.config("spark.jars", ",".join(map(str, jars)))
    for key, value in (session_conf(settings, scratch, java_options or ()) | dict(extra or {})).items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    # Not before: what the builder is given stands on Java's command line for all to see.
    for key, value in catalog_conf(catalog).items():
        session.conf.set(key, value)
    session.sparkContext.setLogLevel("WARN")
    if not settings.is_local and not settings.is_submitted:
        session.sparkContext.addPyFile(str(write_packages(Path(scratch) / "dexorder-packages.zip")))
    if settings.is_local:
        _write_no_checksums(session)
    session.dataSource.register(UdSource)
    return session


def _write_no_checksums(session: SparkSession) -> None:
    """No checksum file beside each local file: Parquet has its own, and Hadoop starts a chmod process for each file."""
    jvm: Any = session.sparkContext._jvm
    configuration = session.sparkContext._jsc.hadoopConfiguration()
    jvm.org.apache.hadoop.fs.FileSystem.getLocal(configuration).setWriteChecksum(False)


def jvm_pid(session: SparkSession) -> int:
    """Process id of the driver's JVM."""
    jvm: Any = session.sparkContext._jvm
    return int(jvm.java.lang.ProcessHandle.current().pid())


def _jars(settings: SparkSettings, catalog: CatalogSettings) -> list[Path]:
    folders = [settings.jars] if settings.jars else [jar_folder(name) for name in catalog.jar_sets]
    return sorted(path for folder in folders for path in folder.glob("*.jar"))


def _prepare_python(settings: SparkSettings) -> None:
    """Planner and workers run this interpreter, on a cluster the one it names, and find this checkout."""
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    if settings.is_local:
        os.environ["PYSPARK_PYTHON"] = sys.executable
    else:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    paths = [str(_ROOT), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(path for path in paths if path))
