import zipfile
from pathlib import Path

import pytest

from services.common.catalog import CatalogSettings
from services.common.errors import InvalidRequest
from spark.config import SparkSettings
from spark.session import catalog_conf, jdbc_properties, package_zip, session_conf


@pytest.mark.parametrize(
    ("uri", "found"),
    [
        ("sqlite:////data/catalog.db", {"uri": "jdbc:sqlite:/data/catalog.db?busy_timeout=10000&journal_mode=WAL"}),
        (
            "postgresql+psycopg2://me:pass%20word@db:5433/iceberg",
            {"uri": "jdbc:postgresql://db:5433/iceberg", "jdbc.user": "me", "jdbc.password": "pass word"},
        ),
        ("postgresql://db/iceberg", {"uri": "jdbc:postgresql://db/iceberg"}),
    ],
)
def test_both_sides_reach_the_same_database(uri: str, found: dict[str, str]) -> None:
    assert jdbc_properties(uri) == found


@pytest.mark.parametrize("uri", ["sqlite://", "sqlite:///:memory:", "mysql://h/d"])
def test_a_database_spark_cannot_share_is_refused(uri: str) -> None:
    with pytest.raises(InvalidRequest, match="catalog URI"):
        jdbc_properties(uri)


def test_the_catalog_has_the_same_name_and_warehouse_on_both_sides() -> None:
    conf = catalog_conf(CatalogSettings(name="lake", uri="sqlite:////c.db", warehouse="file:///w"))
    assert conf["spark.sql.catalog.lake.warehouse"] == "file:///w"
    assert conf["spark.sql.catalog.lake.jdbc.schema-version"] == "V1"
    assert conf["spark.sql.catalog.lake.cache-enabled"] == "false", "pyiceberg writes beside Spark"


def test_only_a_local_session_is_tied_to_loopback() -> None:
    catalog = CatalogSettings(uri="sqlite:////c.db")
    local = session_conf(SparkSettings(), catalog, "/s")
    remote = session_conf(SparkSettings(master="spark://host:7077"), catalog, "/s")
    assert local["spark.driver.bindAddress"] == "127.0.0.1"
    assert "spark.driver.bindAddress" not in remote
    assert local["spark.sql.session.timeZone"] == "UTC"


def test_executors_elsewhere_get_our_packages(tmp_path: Path) -> None:
    names = zipfile.ZipFile(package_zip(tmp_path)).namelist()
    assert {"spark/source/udsource.py", "services/common/page.py", "services/gen/source/v1/source_pb2.py"} <= {*names}
