import re
import shlex
import zipfile
from pathlib import Path

import pyspark
import pytest

from dexorder_common.lake.catalog import CatalogSettings
from dexorder_common.model.errors import Conflict, InvalidRequest
from dexorder_common.storage.durable_sqlite import shared_journal_mode
from dexorder_spark.config import SparkSettings
from dexorder_spark.runtime import class_archive
from dexorder_spark.runtime.class_archive import home_environment, write_home
from dexorder_spark.runtime.package import write_packages
from dexorder_spark.runtime.session import build_session, catalog_conf, java_properties, jdbc_properties, session_conf


def test_only_a_local_session_is_tied_to_loopback() -> None:
    local = session_conf(SparkSettings(), "/s")
    remote = session_conf(SparkSettings(master="spark://host:7077"), "/s")
    assert local["spark.driver.bindAddress"] == "127.0.0.1"
    assert "spark.driver.bindAddress" not in remote
    assert local["spark.sql.session.timeZone"] == "UTC"


def test_spark_hides_the_secrets_of_every_kind_of_catalog() -> None:
    hidden = re.compile(session_conf(SparkSettings(), "/s")["spark.redaction.regex"])
    for name in ("s3.access-key-id", "s3.secret-access-key", "jdbc.password", "token", "credential"):
        assert hidden.search(f"spark.sql.catalog.dexorder.{name}"), name


def test_executors_elsewhere_get_our_packages(tmp_path: Path) -> None:
    names = zipfile.ZipFile(write_packages(tmp_path / "packages.zip")).namelist()
    assert {
        "dexorder_spark/source/udsource.py",
        "dexorder_common/kafka/page_record.py",
        "dexorder_protos/source/v1/source_pb2.py",
    } <= {*names}


def test_a_folder_may_have_a_space_in_its_name() -> None:
    options = session_conf(SparkSettings(), "/a folder/s")["spark.driver.extraJavaOptions"]
    assert "-Dderby.system.home=/a folder/s" in shlex.split(options)  # Spark splits them by the same rules


def test_a_user_without_a_name_is_refused_before_java_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dexorder_spark.runtime.session.os.getuid", lambda: 2**31 - 7)
    with pytest.raises(Conflict, match=f"user {2**31 - 7} has no entry in /etc/passwd"):
        build_session(SparkSettings(), CatalogSettings())


# ---- the catalog on both sides

SQL = {"type": "sql", "uri": "postgresql://db/lake", "warehouse": "s3://lake/w"}


@pytest.mark.parametrize(
    ("uri", "found"),
    [
        (
            "sqlite:////data/catalog.db",
            {"uri": f"jdbc:sqlite:/data/catalog.db?busy_timeout=10000&journal_mode={shared_journal_mode()}"},
        ),
        (
            "postgresql+psycopg2://me:pass%20word@db:5433/iceberg",
            {"uri": "jdbc:postgresql://db:5433/iceberg", "jdbc.user": "me", "jdbc.password": "pass word"},
        ),
        ("postgresql://db/iceberg?sslmode=require", {"uri": "jdbc:postgresql://db/iceberg?sslmode=require"}),
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
    assert conf["spark.sql.catalog.lake.type"] == "jdbc"
    assert conf["spark.sql.catalog.lake.warehouse"] == "file:///w"
    assert conf["spark.sql.catalog.lake.jdbc.schema-version"] == "V1"
    assert conf["spark.sql.catalog.lake.cache-enabled"] == "false", "pyiceberg writes beside Spark"
    assert "spark.sql.catalog.lake.io-impl" not in conf


@pytest.mark.parametrize(
    ("given", "key", "value"),
    [
        ({}, "io-impl", "org.apache.iceberg.aws.s3.S3FileIO"),
        ({"warehouse": "file:///w"}, "io-impl", None),
        ({"io-impl": "my.FileIO"}, "io-impl", "my.FileIO"),
        ({"s3.region": "eu-west-1"}, "client.region", "eu-west-1"),
        ({"client.access-key-id": "id"}, "s3.access-key-id", "id"),
        ({"s3.secret-access-key": "x"}, "s3.secret-access-key", "x"),
        ({"s3.endpoint": "http://s3"}, "s3.path-style-access", "true"),
        ({"s3.endpoint": "http://s3", "s3.force-virtual-addressing": "True"}, "s3.path-style-access", "false"),
        ({"s3.endpoint": "http://s3", "s3.path-style-access": "false"}, "s3.path-style-access", "false"),
        ({}, "s3.path-style-access", None),
    ],
)
def test_pyicebergs_properties_become_javas(given: dict[str, str], key: str, value: str | None) -> None:
    assert java_properties(SQL | given).get(key) == value


def test_properties_of_a_rest_catalog_are_unchanged() -> None:
    given = {"type": "rest", "uri": "https://lake/api", "credential": "id:secret", "prefix": "main"}
    assert java_properties(given) == given


# ---- Spark home without the archive of pyspark


def test_a_home_has_sparks_programs_and_jars_but_no_archive_of_python(tmp_path: Path) -> None:
    folder = tmp_path / "home"
    assert home_environment(folder) == {}, "it was not created"
    for _ in range(2):
        write_home(folder)
    assert home_environment(folder) == {"SPARK_HOME": str(folder)}
    assert sorted(each.name for each in folder.iterdir()) == ["bin", "jars"]
    assert (folder / "jars").samefile(Path(pyspark.__file__).parent / "jars")


def test_links_of_a_removed_installation_are_replaced(tmp_path: Path) -> None:
    (tmp_path / "bin").symlink_to(tmp_path / "removed")
    assert home_environment(tmp_path) == {}
    write_home(tmp_path)
    assert home_environment(tmp_path)


def test_a_python_that_needs_the_archive_gets_sparks_own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_home(tmp_path)
    monkeypatch.setattr(class_archive, "find_spec", lambda name: None)
    assert home_environment(tmp_path) == {}
