import pytest

from dexorder_common.lake.catalog import CatalogSettings
from dexorder_common.model.errors import InvalidRequest
from dexorder_spark.runtime.session import catalog_conf, java_properties, jdbc_properties

SQL = {"type": "sql", "uri": "postgresql://db/lake", "warehouse": "s3://lake/w"}


@pytest.mark.parametrize(
    ("uri", "found"),
    [
        ("sqlite:////data/catalog.db", {"uri": "jdbc:sqlite:/data/catalog.db?busy_timeout=10000&journal_mode=WAL"}),
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
