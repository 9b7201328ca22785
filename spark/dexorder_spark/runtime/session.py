"""Spark session: its settings, jars and Python workers, and the Iceberg catalog that it shares with pyiceberg."""

from __future__ import annotations

import atexit
import json
import logging
import os
import pwd
import shlex
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession
from sqlalchemy.engine import make_url

from dexorder.setup.class_archive import archive_path, options_with, spark_program
from dexorder.setup.config import SetupError
from dexorder.setup.jars import jar_folder
from dexorder.setup.java import find_java, java_env
from dexorder_common.lake.catalog import CatalogSettings
from dexorder_common.model.errors import Conflict, InvalidRequest
from dexorder_common.packages import import_roots
from dexorder_common.storage.durable_sqlite import shared_journal_mode
from dexorder_spark.config import SparkSettings
from dexorder_spark.runtime.class_archive import home_environment
from dexorder_spark.runtime.package import write_packages
from dexorder_spark.source.udsource import UdSource

_LINE = {
    "event": {"$resolver": "message", "stringified": True},
    "exception": {"$resolver": "exception", "field": "stackTrace", "stackTrace": {"stringified": True}},
    "level": {"$resolver": "level", "field": "name"},
    "logger": {"$resolver": "logger", "field": "name"},
    "service": "spark",
    "timestamp": {
        "$resolver": "timestamp",
        "pattern": {"format": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS'Z'", "timeZone": "UTC"},
    },
}
"""Template of a line. Spark's own structured logs can't be used: they are switched off where Python starts the JVM."""


def write_json_config(folder: Path) -> list[str]:
    """Write a configuration of Log4j into a folder; return the Java options that make the JVM use it."""
    file = folder / "log4j2-json.properties"
    file.write_text(
        "rootLogger.level = warn\n"  # of another level Spark says, not in JSON, that it sets this one
        "rootLogger.appenderRef.stderr.ref = stderr\n"
        "appender.stderr.type = Console\n"
        "appender.stderr.name = stderr\n"
        "appender.stderr.target = SYSTEM_ERR\n"
        "appender.stderr.layout.type = JsonTemplateLayout\n"
        f"appender.stderr.layout.eventTemplate = {json.dumps(_LINE)}\n"
    )
    return [f"-Dlog4j2.configurationFile={file.as_uri()}"]


_BUSY_TIMEOUT_MS = 10_000
_NEVER = "10d"
_OVERRIDABLE = (
    "spark.sql.adaptive.enabled",
    "spark.sql.shuffle.partitions",
    "spark.ui.enabled",
    "spark.ui.showConsoleProgress",
    "spark.driver.memory",
)
"""Settings that ``spark-submit --conf`` may set otherwise; the pipeline needs the others as they are."""
_S3_SCHEMES = ("s3://", "s3a://", "s3n://")
_JAVA_NAMES = {
    "s3.region": "client.region",
    "client.access-key-id": "s3.access-key-id",
    "client.secret-access-key": "s3.secret-access-key",
    "client.session-token": "s3.session-token",
}
"""Java names of pyiceberg's properties; all others have the same name in both."""


def session_conf(settings: SparkSettings, scratch: str, java_options: Sequence[str] = ()) -> dict[str, str]:
    """Return the session's settings except jars and catalog; ``scratch`` is a folder of this process."""
    conf = {
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.catalogImplementation": "in-memory",
        # Jars are not resolved, but Spark's launcher would use the home, which may be missing or read-only.
        "spark.jars.ivy": f"{scratch}/ivy",
        "spark.sql.warehouse.dir": f"{scratch}/spark-warehouse",
        # Batches are small: adaptive planning, wide shuffles and the UI cost more than they save.
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.shuffle.partitions": str(settings.shuffle_partitions),
        "spark.sql.streaming.forceDeleteTempCheckpointLocation": "true",
        "spark.sql.streaming.noDataMicroBatches.enabled": "false",
        "spark.sql.streaming.pollingDelay": f"{settings.poll_ms}ms",
        "spark.sql.streaming.stopTimeout": f"{int(settings.drain_seconds * 1_000)}ms",
        # MERGE carries tickers as literals; ${...} in one must stay text.
        "spark.sql.variable.substitute": "false",
        # A record is a page of about 70 kB.
        "spark.sql.execution.arrow.maxRecordsPerBatch": "128",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        # A batch is cached only until it is written; compressing it took longer than reading it again.
        "spark.sql.inMemoryColumnarStorage.compressed": "false",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        # Without the UI, no user reads what Spark keeps of the last thousand jobs, stages and queries.
        "spark.ui.retainedJobs": "10",
        "spark.ui.retainedStages": "10",
        "spark.ui.retainedTasks": "100",
        "spark.sql.ui.retainedExecutions": "10",
        "spark.sql.streaming.numRecentProgressUpdates": "5",
        # A full collection returns memory to the system; without it, a heap of mostly garbage grows to its limit.
        "spark.cleaner.periodicGC.interval": "5min",
        "spark.driver.memory": settings.driver_memory,
        "spark.driver.extraJavaOptions": shlex.join([*_java_options(scratch), *java_options]),
        "spark.executor.extraJavaOptions": "-Duser.timezone=UTC",
        # Spark's default expression misses the property names of Iceberg's catalogs.
        "spark.redaction.regex": "(?i)secret|password|token|access.?key|credential|authorization",
    }
    if settings.is_local:
        conf |= {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.python.daemon.module": "dexorder_spark.runtime.worker_daemon",
            # Driver and executor are one process here. After a pause of the machine (a closed lid, a migrated VM) Spark
            # would take its own executor for lost, and run on for minutes without one.
            "spark.network.timeout": _NEVER,
            "spark.executor.heartbeatInterval": "1h",
        }
    return conf


def _java_options(scratch: str) -> list[str]:
    return [
        "-Duser.timezone=UTC",
        # Pauses do not matter for batches, and the default collector uses more CPU while a driver starts.
        "-XX:+UseParallelGC",
        "-XX:MinHeapFreeRatio=20",
        "-XX:MaxHeapFreeRatio=40",
        # Six times the default thresholds: while a driver starts, the optimizing compiler takes the cores that its
        # first batches need. Long-running code reaches these thresholds anyway.
        "-XX:Tier4InvocationThreshold=30000",
        "-XX:Tier4MinInvocationThreshold=3600",
        "-XX:Tier4CompileThreshold=90000",
        "-XX:Tier4BackEdgeThreshold=240000",
        "-Xss4m",
        f"-Dderby.system.home={scratch}",
        # Java does not read TMPDIR, and a killed driver leaves its extracted libraries there.
        f"-Djava.io.tmpdir={tempfile.gettempdir()}",
    ]


def build_session(
    settings: SparkSettings,
    catalog: CatalogSettings,
    *,
    extra: Mapping[str, str] | None = None,
    java_options: Sequence[str] | None = None,
) -> SparkSession:
    """Start the JVM, or use the one of ``spark-submit``, and register the data source. One session per process.

    Args:
        extra: More Spark settings.
        java_options: More Java options; None for the options that use the class archive if it exists.

    Raises:
        Conflict: Java or the jars are missing, or this process's user lacks a name; the message has the remedy.
    """
    _check_user()
    jars: list[Path] = []
    if not settings.is_submitted:
        try:
            java = find_java()
            folders = [settings.jars] if settings.jars else [jar_folder(name) for name in catalog.jar_sets]
        except SetupError as error:
            raise Conflict(str(error)) from error
        jars = sorted(path for folder in folders for path in folder.glob("*.jar"))
        os.environ.update(java_env(java) | (home_environment() if settings.is_local else {}))
        java_options = options_with(archive_path(spark_program(), java)) if java_options is None else java_options
    _prepare_python(settings)
    logging.getLogger("py4j").setLevel(logging.WARNING)
    scratch = tempfile.mkdtemp(prefix="dexorder-spark-")
    atexit.register(shutil.rmtree, scratch, ignore_errors=True)
    builder = SparkSession.builder.appName("dexorder")
    if not settings.is_submitted:
        builder = builder.master(settings.master)
    if jars:
        builder = builder.config("spark.jars", ",".join(map(str, jars)))
    logs = write_json_config(Path(scratch)) if settings.log_format == "json" else []
    conf = session_conf(settings, scratch, [*(java_options or ()), *logs]) | dict(extra or {})
    for key in _given() if settings.is_submitted else ():
        conf.pop(key, None)
    for key, value in conf.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    # Not in the builder: all users can see its settings on Java's command line.
    for key, value in catalog_conf(catalog).items():
        session.conf.set(key, value)
    session.sparkContext.setLogLevel("WARN")
    if not settings.is_local and not settings.is_submitted:
        session.sparkContext.addPyFile(str(write_packages(Path(scratch) / "dexorder-packages.zip")))
    if settings.is_local:
        # Write no checksum file beside each local file: Parquet has its own, and Hadoop runs chmod for each.
        jvm: Any = session.sparkContext._jvm
        configuration = session.sparkContext._jsc.hadoopConfiguration()
        jvm.org.apache.hadoop.fs.FileSystem.getLocal(configuration).setWriteChecksum(False)
    session.dataSource.register(UdSource)
    return session


def _check_user() -> None:
    """Raise Conflict for a user without an entry in /etc/passwd: Hadoop's login would end the JVM."""
    try:
        pwd.getpwuid(os.getuid())
    except KeyError:
        raise Conflict(
            f"user {os.getuid()} has no entry in /etc/passwd, which Hadoop, a part of Spark, needs: run the driver as "
            "a user that has one; the image has 10001"
        ) from None


def another_session(session: SparkSession, catalog: CatalogSettings) -> SparkSession:
    """Return a session of the same Spark with separate settings, such as the properties of a commit by MERGE."""
    another = session.newSession()
    for key, value in catalog_conf(catalog).items():
        another.conf.set(key, value)
    another.dataSource.register(UdSource)
    return another


def _given() -> list[str]:
    """Return the overridable settings that ``spark-submit`` was given."""
    SparkContext._ensure_initialized()  # without its JVM, SparkConf is empty
    given = SparkConf()
    return [key for key in _OVERRIDABLE if given.contains(key)]


def jvm_pid(session: SparkSession) -> int:
    """Return the process id of the driver's JVM."""
    jvm: Any = session.sparkContext._jvm
    return int(jvm.java.lang.ProcessHandle.current().pid())


def _prepare_python(settings: SparkSettings) -> None:
    """Make planner and workers run this interpreter (on a cluster, the one it configures) and find this checkout."""
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    if settings.is_local:
        os.environ["PYSPARK_PYTHON"] = sys.executable
    else:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    paths = [*import_roots(), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(path for path in paths if path))


def jdbc_properties(uri: str) -> dict[str, str]:
    """Return the properties with which Iceberg's JdbcCatalog reaches the database of an SQLAlchemy URI.

    The password is separate from the URI, which Java includes in its error messages.
    InvalidRequest if the database is neither SQLite in a file nor PostgreSQL.
    """
    url = make_url(uri)
    backend = url.get_backend_name()
    if backend == "sqlite" and url.database and url.database != ":memory:":
        path = Path(url.database).absolute()
        return {"uri": f"jdbc:sqlite:{path}?busy_timeout={_BUSY_TIMEOUT_MS}&journal_mode={shared_journal_mode()}"}
    if backend == "postgresql" and url.host:
        plain = url._replace(drivername="postgresql", username=None, password=None)
        given = {"jdbc.user": url.username, "jdbc.password": url.password}
        return {"uri": f"jdbc:{plain.render_as_string()}"} | {name: value for name, value in given.items() if value}
    raise InvalidRequest(f"catalog URI of {backend} is not supported; use sqlite:///path or postgresql://host/database")


def java_properties(properties: Mapping[str, str]) -> dict[str, str]:
    """Convert properties of pyiceberg to properties of Iceberg's Java; InvalidRequest as for ``jdbc_properties``."""
    found = {_JAVA_NAMES.get(key, key): value for key, value in properties.items()}
    if "s3.endpoint" in found:
        # as in pyiceberg: a custom endpoint is addressed by path unless the setting says otherwise
        virtual = found.get("s3.force-virtual-addressing", "false").lower() == "true"
        found.setdefault("s3.path-style-access", str(not virtual).lower())
    if properties["type"] == "sql":
        found |= {"type": "jdbc", "jdbc.schema-version": "V1"} | jdbc_properties(properties["uri"])
        if properties["warehouse"].startswith(_S3_SCHEMES):
            found.setdefault("io-impl", "org.apache.iceberg.aws.s3.S3FileIO")
    return found


def catalog_conf(catalog: CatalogSettings) -> dict[str, str]:
    """Return the Spark settings that define the catalog under its name; they contain its secrets.

    Spark must not cache the tables because it shares them with pyiceberg.
    """
    key = f"spark.sql.catalog.{catalog.name}"
    properties = java_properties(catalog.properties()) | {"cache-enabled": "false"}
    return {key: "org.apache.iceberg.spark.SparkCatalog"} | {f"{key}.{k}": v for k, v in properties.items()}
