"""Where the Iceberg tables are: one set of settings for the relay, Spark and clients."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

import tenacity
from pydantic import Field, SecretStr, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict
from pyiceberg.catalog import Catalog, load_catalog
from sqlalchemy.engine import make_url
from sqlalchemy.exc import IntegrityError, OperationalError, ProgrammingError

from services.common.lake.postgres import with_driver, with_password

NAMESPACE = "trading"
OHLC_TABLE = f"{NAMESPACE}.ohlc"
COVERAGE_TABLE = f"{NAMESPACE}.coverage"
RETRACTION_TABLE = f"{NAMESPACE}.coverage_retractions"
DEAD_LETTER_TABLE = f"{NAMESPACE}.dead_letters"

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
"""What anyone may learn from the relay. A list of the harmless: a secret under a new name must not slip through."""
_PUBLIC_QUERY = ("sslmode", "sslrootcert")


class CatalogSettings(BaseSettings):
    """The catalog, as pyiceberg and Iceberg's Java both reach it. ``DEXORDER_CATALOG_<NAME>``."""

    model_config = SettingsConfigDict(
        frozen=True, env_prefix="DEXORDER_CATALOG_", extra="ignore", populate_by_name=True, hide_input_in_errors=True
    )

    name: str = "dexorder"
    """Catalog name; part of the key in a database's tables, so it must be the same everywhere."""
    type: Literal["sql", "rest"] = "sql"
    """``sql``: a SQLite or PostgreSQL database (pyiceberg's SqlCatalog, Iceberg's JdbcCatalog); ``rest``: a server."""
    uri: str = Field(default="sqlite:///catalog.db", repr=False)
    """SQLAlchemy URI of the database, or the address of the REST server."""
    warehouse: str = "file://./warehouse"
    """URI of the folder or bucket below which tables are created; for ``rest`` what the server calls its warehouse,
    not sent when it is not set."""
    password: SecretStr | None = None
    """Of PostgreSQL, where the URI has none."""
    more: Annotated[dict[str, str], NoDecode] = Field(
        default_factory=dict, repr=False, validation_alias="DEXORDER_CATALOG_PROPERTIES"
    )
    """Further properties as a JSON map, in pyiceberg's names (``s3.endpoint``, ``s3.access-key-id``, ``token``)."""

    @field_validator("more", mode="before")
    @classmethod
    def _from_json(cls, given: Any) -> Any:
        try:
            return json.loads(given or "{}") if isinstance(given, str) else given
        except ValueError as error:
            raise ValueError(f"is not JSON: {error}") from None

    @classmethod
    def local(cls, folder: Path, name: str = "dexorder") -> Self:
        """SQLite and files below an absolute folder, whatever the environment says."""
        return cls(
            name=name,
            type="sql",
            uri=f"sqlite:///{folder / 'catalog.db'}",
            warehouse=(folder / "warehouse").as_uri(),
            password=None,
            more={},
        )

    def properties(self) -> dict[str, str]:
        """Properties for pyiceberg's ``load_catalog``, secrets included."""
        base = {"type": self.type, "uri": self.uri}
        if self.type == "sql" or "warehouse" in self.model_fields_set:
            base["warehouse"] = self.warehouse
        return self.over(base)

    def public_properties(self) -> dict[str, str]:
        """The same without secrets, for anyone who asks; a client adds its own (``over``)."""
        return {key: _harmless(value) for key, value in self.properties().items() if key in PUBLIC_PROPERTIES}

    def over(self, announced: Mapping[str, str]) -> dict[str, str]:
        """Somebody's properties with what is set here instead."""
        given: dict[str, str] = {
            key: getattr(self, key) for key in ("type", "uri", "warehouse") if key in self.model_fields_set
        }
        merged: dict[str, str] = {**announced, **self.more, **given}
        if self.password and "uri" in merged:
            merged["uri"] = with_password(merged["uri"], self.password.get_secret_value())
        return merged

    @property
    def jar_sets(self) -> tuple[str, ...]:
        """Sets of jars.toml that Spark needs to reach it."""
        plain = self.type == "sql" and self.uri.startswith("sqlite") and self.warehouse.startswith("file:")
        return ("spark",) if plain else ("spark", "production")

    def load(self) -> Catalog:
        """Open the catalog; creates its two tables in an empty database."""
        return open_catalog(self.name, self.properties())


@tenacity.retry(
    # Parts that start together create the tables of an empty database together; all but one fail.
    retry=tenacity.retry_if_exception_type((ProgrammingError, OperationalError, IntegrityError)),
    stop=tenacity.stop_after_attempt(4),
    wait=tenacity.wait_random_exponential(0.2, max=1),
    reraise=True,
)
def open_catalog(name: str, properties: Mapping[str, str]) -> Catalog:
    """Open it with pyiceberg; PostgreSQL through the driver that we bring."""
    found = dict(properties)
    if found.get("uri", "").startswith("postgresql"):
        # A database that was restarted costs a reconnect, not a failed call.
        found |= {"uri": with_driver(found["uri"]), "pool_pre_ping": "true"}
    return load_catalog(name, **found)


def _harmless(value: str) -> str:
    """A URI without its password and all of its query but TLS; any other text as it is."""
    if "://" not in value or value.startswith("sqlite"):
        return value
    if value.startswith("postgresql"):
        url = make_url(value)._replace(password=None)
        hidden = [key for key in url.query if key not in _PUBLIC_QUERY]
        return url.difference_update_query(hidden).render_as_string()
    parts = urlsplit(value)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl()
