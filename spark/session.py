"""The Spark session: Iceberg's catalog beside pyiceberg's, the jars, and the Python the workers run."""

from __future__ import annotations

import atexit
import logging
import os
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from sqlalchemy.engine import make_url

from dexorder.setup.errors import SetupError
from dexorder.setup.jars import jar_folder
from dexorder.setup.java import java_env
from services.common.catalog import CatalogSettings
from services.common.errors import Conflict, InvalidRequest
from spark.config import SparkSettings
from spark.source.udsource import UdSource

_ROOT = Path(__file__).resolve().parents[1]
_BUSY_TIMEOUT_MS = 10_000


def jdbc_properties(uri: str) -> dict[str, str]:
    """What Iceberg's JdbcCatalog needs to reach the database of an SQLAlchemy URI.

    Raises:
        InvalidRequest: A database other than SQLite and PostgreSQL, or SQLite in memory.
    """
    url = make_url(uri)
    backend = url.get_backend_name()
    if backend == "sqlite" and url.database and url.database != ":memory:":
        path = Path(url.database).absolute()
        return {"uri": f"jdbc:sqlite:{path}?busy_timeout={_BUSY_TIMEOUT_MS}&journal_mode=WAL"}
    if backend == "postgresql" and url.host:
        port = f":{url.port}" if url.port else ""
        found = {"uri": f"jdbc:postgresql://{url.host}{port}/{url.database or ''}"}
        given = {"jdbc.user": url.username, "jdbc.password": url.password}
        return found | {name: value for name, value in given.items() if value}
    raise InvalidRequest(f"catalog URI of {backend}: sqlite:///path or postgresql://host/database is needed")


def catalog_conf(catalog: CatalogSettings, name: str | None = None) -> dict[str, str]:
    """Spark settings of one catalog. It shares its tables with pyiceberg, so Spark must not cache them."""
    key = f"spark.sql.catalog.{name or catalog.name}"
    properties = jdbc_properties(catalog.uri) | {
        "type": "jdbc",
        "jdbc.schema-version": "V1",
        "warehouse": catalog.warehouse,
        "cache-enabled": "false",
    }
    return {key: "org.apache.iceberg.spark.SparkCatalog"} | {f"{key}.{k}": v for k, v in properties.items()}


def session_conf(settings: SparkSettings, catalog: CatalogSettings, scratch: str) -> dict[str, str]:
    """All of the session's settings but the jars; ``scratch`` is a folder of this process."""
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
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": settings.driver_memory,
        "spark.driver.extraJavaOptions": (
            # Java does not read TMPDIR, and a killed driver leaves its unpacked libraries there
            f"-Duser.timezone=UTC -Xss4m -Dderby.system.home={scratch} -Djava.io.tmpdir={tempfile.gettempdir()}"
        ),
        "spark.executor.extraJavaOptions": "-Duser.timezone=UTC",
    }
    if settings.is_local:
        conf |= {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
        }
    return conf | catalog_conf(catalog)


def build_session(
    settings: SparkSettings, catalog: CatalogSettings, *, extra: Mapping[str, str] | None = None
) -> SparkSession:
    """Start the JVM and register the data source. One session a process.

    Raises:
        Conflict: Java or the jars are not there; says how to get them.
    """
    try:
        os.environ.update(java_env())
        jars = sorted((settings.jars or jar_folder("spark")).glob("*.jar"))
    except SetupError as error:
        raise Conflict(str(error)) from error
    _prepare_python()
    logging.getLogger("py4j").setLevel(logging.WARNING)
    scratch = tempfile.mkdtemp(prefix="dexorder-spark-")
    atexit.register(shutil.rmtree, scratch, ignore_errors=True)
    builder = SparkSession.builder.appName("dexorder")
    if settings.master:
        builder = builder.master(settings.master)
    if jars:
        builder = builder.config("spark.jars", ",".join(map(str, jars)))
    for key, value in (session_conf(settings, catalog, scratch) | dict(extra or {})).items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("WARN")
    if not settings.is_local:
        session.sparkContext.addPyFile(str(package_zip(Path(scratch))))
    session.dataSource.register(UdSource)
    return session


def jvm_pid(session: SparkSession) -> int:
    """Process id of the driver's JVM."""
    jvm: Any = session.sparkContext._jvm
    return int(jvm.java.lang.ProcessHandle.current().pid())


def _prepare_python() -> None:
    """Workers and planner run this interpreter and find this checkout."""
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    paths = [str(_ROOT), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(path for path in paths if path))


def package_zip(folder: Path) -> Path:
    """Our packages for executors on other machines; what they import must be installed there."""
    target = folder / "dexorder-packages.zip"
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for package in ("spark", "services"):
            for path in sorted((_ROOT / package).rglob("*.py")):
                archive.write(path, path.relative_to(_ROOT))
    return target
