"""The catalog in the words of Iceberg's Java, so that Spark and pyiceberg share tables."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from sqlalchemy.engine import make_url

from services.common.lake.catalog import CatalogSettings
from services.common.model.errors import InvalidRequest

_BUSY_TIMEOUT_MS = 10_000
_S3_SCHEMES = ("s3://", "s3a://", "s3n://")
_JAVA_NAMES = {
    "s3.region": "client.region",
    "client.access-key-id": "s3.access-key-id",
    "client.secret-access-key": "s3.secret-access-key",
    "client.session-token": "s3.session-token",
}
"""Where Java has another name for a property of pyiceberg's; all others go through as they are."""


def jdbc_properties(uri: str) -> dict[str, str]:
    """What Iceberg's JdbcCatalog needs to reach the database of an SQLAlchemy URI.

    The password stands apart from the URI, which Java writes into its error messages.

    Raises:
        InvalidRequest: A database other than SQLite and PostgreSQL, or SQLite in memory.
    """
    url = make_url(uri)
    backend = url.get_backend_name()
    if backend == "sqlite" and url.database and url.database != ":memory:":
        path = Path(url.database).absolute()
        return {"uri": f"jdbc:sqlite:{path}?busy_timeout={_BUSY_TIMEOUT_MS}&journal_mode=WAL"}
    if backend == "postgresql" and url.host:
        plain = url._replace(drivername="postgresql", username=None, password=None)
        given = {"jdbc.user": url.username, "jdbc.password": url.password}
        return {"uri": f"jdbc:{plain.render_as_string()}"} | {name: value for name, value in given.items() if value}
    raise InvalidRequest(f"catalog URI of {backend}: sqlite:///path or postgresql://host/database is needed")


def java_properties(properties: Mapping[str, str]) -> dict[str, str]:
    """Properties of Iceberg's Java for those of pyiceberg.

    Raises:
        InvalidRequest: As ``jdbc_properties``.
    """
    found = {_JAVA_NAMES.get(key, key): value for key, value in properties.items()}
    if "s3.endpoint" in found:
        # pyiceberg's rule: an endpoint of one's own is addressed by path, unless told otherwise
        virtual = found.get("s3.force-virtual-addressing", "false").lower() == "true"
        found.setdefault("s3.path-style-access", str(not virtual).lower())
    if properties["type"] == "sql":
        found |= {"type": "jdbc", "jdbc.schema-version": "V1"} | jdbc_properties(properties["uri"])
        if properties["warehouse"].startswith(_S3_SCHEMES):
            found.setdefault("io-impl", "org.apache.iceberg.aws.s3.S3FileIO")
    return found


def catalog_conf(catalog: CatalogSettings) -> dict[str, str]:
    """Settings of a Spark session that make the catalog known under its name; they hold its secrets.

    It shares its tables with pyiceberg, so Spark must not cache them.
    """
    key = f"spark.sql.catalog.{catalog.name}"
    properties = java_properties(catalog.properties()) | {"cache-enabled": "false"}
    return {key: "org.apache.iceberg.spark.SparkCatalog"} | {f"{key}.{k}": v for k, v in properties.items()}
