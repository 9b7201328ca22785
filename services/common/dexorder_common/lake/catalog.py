"""The Iceberg catalog: its settings, shared by relay, Spark and clients, and how to open it.

PostgreSQL is reached through pg8000, with the TLS parameters of libpq and JDBC: ``?sslmode=...&sslrootcert=...``.
"""

from __future__ import annotations

import json
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

import tenacity
from pydantic import Field, SecretStr, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict
from pyiceberg.catalog import Catalog, load_catalog
from sqlalchemy import event
from sqlalchemy.engine import Engine, make_url
from sqlalchemy.exc import IntegrityError, OperationalError, ProgrammingError

from dexorder_common.config import file_uri
from dexorder_common.lake.local_files import with_synced_files
from dexorder_common.lake.sql_catalog import LakeCatalog

_DRIVER = "postgresql+pg8000"
_TIMEOUT_SECONDS = 30.0
"""Longest wait for an answer of PostgreSQL; a catalog's statements touch a few rows."""

PUBLIC_PROPERTIES = frozenset(
    {
        "type",
        "uri",
        "warehouse",
        "prefix",
        "scope",
        "audience",
        "resource",
        "oauth2-server-uri",
        "rest.sigv4-enabled",
        "rest.signing-region",
        "rest.signing-name",
        "s3.endpoint",
        "s3.region",
        "client.region",
        "s3.force-virtual-addressing",
        "s3.anonymous",
        "s3.proxy-uri",
        "s3.connect-timeout",
        "s3.request-timeout",
        "py-io-impl",
        "gcs.project-id",
        "gcs.service.host",
        "adls.account-name",
        "adls.account-host",
    }
)
"""Properties that the relay announces to anyone. An allowlist, so that a secret under a new name is not announced."""
_PUBLIC_QUERY = ("sslmode", "sslrootcert")


class CatalogSettings(BaseSettings):
    """Settings of the catalog, for pyiceberg and for Iceberg's Java alike. ``DEXORDER_CATALOG_<NAME>``."""

    model_config = SettingsConfigDict(
        frozen=True, env_prefix="DEXORDER_CATALOG_", extra="ignore", populate_by_name=True, hide_input_in_errors=True
    )

    name: str = "dexorder"
    """Name of the catalog. It is part of the keys in a database, so it must be the same everywhere."""
    type: Literal["sql", "rest"] = "sql"
    """``sql``: a SQLite or PostgreSQL database (pyiceberg's SqlCatalog, Iceberg's JdbcCatalog); ``rest``: a server."""
    uri: str = Field(default="sqlite:///catalog.db", repr=False)
    """SQLAlchemy URI of the database, or address of the REST server."""
    warehouse: str = "file://./warehouse"
    """URI of the folder or bucket in which tables are created. For ``rest``, the server's name of its warehouse, sent
    only if it is set."""
    password: SecretStr | None = None
    """Password of PostgreSQL, for a URI without one."""
    more: Annotated[dict[str, str], NoDecode] = Field(
        default_factory=dict, repr=False, validation_alias="DEXORDER_CATALOG_PROPERTIES"
    )
    """More properties as a JSON map with pyiceberg's names (``s3.endpoint``, ``s3.access-key-id``, ``token``)."""

    @field_validator("more", mode="before")
    @classmethod
    def _from_json(cls, given: Any) -> Any:
        try:
            return json.loads(given or "{}") if isinstance(given, str) else given
        except ValueError as error:
            raise ValueError(f"is not JSON: {error}") from None

    @classmethod
    def local(cls, folder: Path, name: str = "dexorder") -> Self:
        """Return settings for SQLite and files in an absolute folder, regardless of the environment."""
        return cls(
            name=name,
            type="sql",
            uri=f"sqlite:///{folder / 'catalog.db'}",
            warehouse=file_uri(folder / "warehouse"),
            password=None,
            more={},
        )

    def properties(self) -> dict[str, str]:
        """Return the properties for pyiceberg's ``load_catalog``, including secrets."""
        base = {"type": self.type, "uri": self.uri}
        if self.type == "sql" or "warehouse" in self.model_fields_set:
            base["warehouse"] = self.warehouse
        return self.over(base)

    def public_properties(self) -> dict[str, str]:
        """Return the properties that the relay announces, without secrets; a client adds its own with ``over``."""
        return {key: _harmless(value) for key, value in self.properties().items() if key in PUBLIC_PROPERTIES}

    def over(self, announced: Mapping[str, str]) -> dict[str, str]:
        """Return announced properties, overridden by the ones set here."""
        given: dict[str, str] = {
            key: getattr(self, key) for key in ("type", "uri", "warehouse") if key in self.model_fields_set
        }
        merged: dict[str, str] = {**announced, **self.more, **given}
        if self.password and "uri" in merged:
            merged["uri"] = with_password(merged["uri"], self.password.get_secret_value())
        return merged

    @property
    def jar_sets(self) -> tuple[str, ...]:
        """Sets of jars in jars.toml that Spark needs to reach the catalog."""
        plain = self.type == "sql" and self.uri.startswith("sqlite") and self.warehouse.startswith("file:")
        return ("spark",) if plain else ("spark", "production")

    def load(self) -> Catalog:
        """Open the catalog. Creates its two tables in an empty database."""
        return open_catalog(self.name, self.properties())


@tenacity.retry(
    # Parts that start at the same time all create the tables of an empty database; all but one fail.
    retry=tenacity.retry_if_exception_type((ProgrammingError, OperationalError, IntegrityError)),
    stop=tenacity.stop_after_attempt(4),
    wait=tenacity.wait_random_exponential(0.2, max=1),
    reraise=True,
)
def open_catalog(name: str, properties: Mapping[str, str]) -> Catalog:
    """Open a catalog with pyiceberg; PostgreSQL through pg8000."""
    found = with_synced_files(properties)
    if found.get("uri", "").startswith("postgresql"):
        # After a restart of the database, the next call reconnects instead of failing.
        found |= {"uri": with_driver(found["uri"]), "pool_pre_ping": "true"}
    return LakeCatalog(name, **found) if found.get("type") == "sql" else load_catalog(name, **found)


def _harmless(value: str) -> str:
    """Return a URI without password and without query parameters other than TLS; return any other text unchanged."""
    if "://" not in value or value.startswith("sqlite"):
        return value
    if value.startswith("postgresql"):
        url = make_url(value)._replace(password=None)
        hidden = [key for key in url.query if key not in _PUBLIC_QUERY]
        return url.difference_update_query(hidden).render_as_string()
    parts = urlsplit(value)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl()


def with_driver(uri: str) -> str:
    """Return a PostgreSQL URI that names no driver with pg8000 as its driver; return any other URI unchanged."""
    return uri.replace("postgresql:", f"{_DRIVER}:", 1) if uri.startswith("postgresql:") else uri


def with_password(uri: str, password: str) -> str:
    """Return a PostgreSQL URI without a password with this one added; return any other URI unchanged."""
    if not uri.startswith("postgresql"):
        return uri
    url = make_url(uri)
    return uri if url.password else url.set(password=password).render_as_string(hide_password=False)


def tls_context(sslmode: str | None, sslrootcert: str | None) -> ssl.SSLContext | bool | None:
    """Return pg8000's ``ssl_context``: False for no TLS, None for TLS if offered, True for TLS without verification.

    Args:
        sslmode: disable, allow, prefer, require, verify-ca or verify-full, else ValueError; None means prefer.
        sslrootcert: PEM file of the certificate authority; None or ``system`` trusts the machine's authorities.
    """
    match sslmode:
        case "disable":
            return False
        case None | "allow" | "prefer":
            return None
        case "require":
            return True
        case "verify-ca" | "verify-full":
            context = ssl.create_default_context(cafile=None if sslrootcert == "system" else sslrootcert)
            context.check_hostname = sslmode == "verify-full"
            return context
    raise ValueError(f"sslmode {sslmode!r} is not one of disable, allow, prefer, require, verify-ca, verify-full")


@event.listens_for(Engine, "do_connect")
def _connect(dialect: Any, record: Any, arguments: Any, parameters: dict[str, Any]) -> None:
    # pyiceberg creates the engine from the URI alone, and pg8000 accepts only its own parameter names and types.
    if dialect.driver != "pg8000":
        return
    if "ssl_context" not in parameters:
        parameters["ssl_context"] = tls_context(parameters.pop("sslmode", None), parameters.pop("sslrootcert", None))
    parameters["timeout"] = float(parameters.get("timeout", _TIMEOUT_SECONDS))
